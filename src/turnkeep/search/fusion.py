"""Rankings made into one (pure)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

Found = TypeVar("Found", bound=Hashable)

_K = 60  # how little the first ranks stand out from those below; what the method's authors found to be good


def fused(rankings: Iterable[Sequence[Found]]) -> list[tuple[Found, float]]:
    """Reciprocal rank fusion: what several rankings place high comes first.

    Equal scores stay in the order in which they were found, the first ranking's first.
    """
    scores: dict[Found, float] = {}
    for ranking in rankings:
        for rank, found in enumerate(ranking, start=1):
            scores[found] = scores.get(found, 0.0) + 1 / (_K + rank)
    return sorted(scores.items(), key=lambda item: -item[1])
