"""What a scripted server of embeddings answers, and what it can be told to do. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

Json = dict[str, Any]

MODEL = "scripted-embeddings"
BEHAVIOUR: Json = {
    "dimensions": 64,
    "status": None,  # of every answer
    "retry_after": None,
    "refused": [],  # words whose texts are refused, with `refused_status`
    "refused_status": 400,
    "silencing": [],  # words at which the connection is cut
    "nan": [],  # words whose vectors hold what is no number
    "zero": [],  # words whose vectors are zero
    "held": False,  # answers wait until it is false again
}


def vector(text: str, dimensions: int) -> list[float]:
    """A text's vector: texts that share words are near each other, and the same text always gets the same one."""
    numbers = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()) or [""]:
        digest = hashlib.sha256(word.encode("utf-8", "replace")).digest()
        numbers[int.from_bytes(digest[:4], "big") % dimensions] += 1.0 if digest[4] % 2 else -1.0
    length = math.sqrt(sum(number * number for number in numbers))
    return [number / length for number in numbers] if length else [1.0, *numbers[1:]]
