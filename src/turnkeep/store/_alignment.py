"""Two sequences laid beside each other. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True)
class Block:
    """Stretches of two sequences that belong together: the same elements, or unlike ones, of which one may be empty."""

    same: bool
    a: range
    b: range


def align(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Block]:
    """Divide two sequences into stretches that are the same and stretches that are not, in order."""
    least = min(len(a), len(b))
    start = next((i for i in range(least) if a[i] != b[i]), least)
    end = next((i for i in range(least - start) if a[-1 - i] != b[-1 - i]), least - start)
    blocks = [Block(True, range(start), range(start))] if start else []
    for tag, a_start, a_stop, b_start, b_stop in SequenceMatcher(
        None, a[start : len(a) - end], b[start : len(b) - end]
    ).get_opcodes():
        blocks.append(
            Block(tag == "equal", range(start + a_start, start + a_stop), range(start + b_start, start + b_stop))
        )
    if end:
        blocks.append(Block(True, range(len(a) - end, len(a)), range(len(b) - end, len(b))))
    return blocks
