"""What a list is made of: which parts of the list before, and which new messages.

Messages are compared by their JSON values, type-strictly: one that is written another way is the same message, 1 and
1.0 are two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from turnkeep import jsontext
from turnkeep.jsontext import RawJSON

MAX_PARTS: Final = 256
"""A list of more parts is stored once more, whole."""

_NEW = -1


@dataclass(frozen=True)
class Parts:
    """A list as pairs: (start, stop) of the list before, half-open, or (-1, k) for the next k of the new messages.

    `new` are the indices of those in the list, in order.
    """

    pairs: tuple[tuple[int, int], ...]
    new: tuple[int, ...]

    def is_same(self, length: int) -> bool:
        """Whether the list is the one before, of that length."""
        return self.pairs == (((0, length),) if length else ())

    def is_longer(self, length: int) -> bool:
        """Whether the list is the one before, of that length, with the new messages at its end."""
        return self.pairs == (*(((0, length),) if length else ()), (_NEW, len(self.new)))

    @property
    def numbers(self) -> list[int]:
        """The pairs one after the other."""
        return [number for pair in self.pairs for number in pair]


def parts(before: Sequence[str], texts: Sequence[str]) -> Parts:
    """Find what a list, as JSON texts, is made of.

    What both lists begin and end with is taken from the list before; between them, each message that was there.
    """
    same = _Same(before, texts)
    start = 0
    while start < min(len(before), len(texts)) and same(start, start):
        start += 1
    end = 0
    while end < min(len(before), len(texts)) - start and same(len(before) - 1 - end, len(texts) - 1 - end):
        end += 1
    sources = [*range(start), *same.between(start, end), *range(len(before) - end, len(before))]
    made = _joined(sources)
    return made if len(made.pairs) <= MAX_PARTS else _joined([_NEW] * len(texts))


def _joined(sources: Sequence[int]) -> Parts:
    """Parts from what each message of a list is: an index in the list before, or -1."""
    pairs: list[tuple[int, int]] = []
    for source in sources:
        first, last = pairs[-1] if pairs else (0, 0)
        if source == _NEW:
            pairs[-1:] = [(_NEW, last + 1)] if pairs and first == _NEW else [*pairs[-1:], (_NEW, 1)]
        elif pairs and first != _NEW and last == source:
            pairs[-1] = first, source + 1
        else:
            pairs.append((source, source + 1))
    return Parts(tuple(pairs), tuple(index for index, source in enumerate(sources) if source == _NEW))


class _Same:
    """Which messages of two lists are the same. Digests are made where texts differ, once each."""

    def __init__(self, before: Sequence[str], texts: Sequence[str]) -> None:
        self._before = before
        self._texts = texts
        self._digests: dict[str, bytes] = {}

    def __call__(self, old: int, new: int) -> bool:
        return self._before[old] == self._texts[new] or self._digest(self._before[old]) == self._digest(
            self._texts[new]
        )

    def between(self, start: int, end: int) -> list[int]:
        """For each message of the list but the first `start` and the last `end` where it was between those before."""
        old = range(start, len(self._before) - end)
        if not old:
            return [_NEW] * (len(self._texts) - end - start)
        first = {self._digest(self._before[index]): index for index in reversed(old)}
        found: list[int] = []
        for new in range(start, len(self._texts) - end):
            following = found[-1] + 1 if found and found[-1] != _NEW else start
            goes_on = following in old and self(following, new)
            found.append(following if goes_on else first.get(self._digest(self._texts[new]), _NEW))
        return found

    def _digest(self, text: str) -> bytes:
        if text not in self._digests:
            self._digests[text] = jsontext.digest(RawJSON(text))
        return self._digests[text]


def same_values(texts: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two lists of JSON texts hold the same values."""
    return len(texts) == len(others) and all(
        text == other or jsontext.digest(RawJSON(text)) == jsontext.digest(RawJSON(other))
        for text, other in zip(texts, others, strict=True)
    )


def owner_of(branch: int, lineage: Sequence[int], turn: int, sub_step: int) -> int:
    """The branch that holds the checkpoint at (turn, sub_step) in the history of a branch with this lineage."""
    for i in range(0, len(lineage), 3):
        if (turn, sub_step) <= (lineage[i + 1], lineage[i + 2]):
            return lineage[i]
    return branch


def without(positions: Mapping[int, int], held: Sequence[int]) -> list[tuple[int, int, int]]:
    """Ranges (branch, start, stop) of each branch's first so many positions that no triple of `held` holds."""
    own = defaultdict[int, list[tuple[int, int]]](list)
    for branch, start, stop in zip(held[0::3], held[1::3], held[2::3], strict=True):
        own[branch].append((start, stop))
    left = []
    for branch, end in positions.items():
        at = 0
        for start, stop in sorted(own[branch]):
            if start > at:
                left.append((branch, at, start))
            at = max(at, stop)
        if at < end:
            left.append((branch, at, end))
    return left


def in_turn(ranges: Sequence[tuple[int, int, int]], most: int) -> Iterator[list[int]]:
    """Ranges as flat triples, so that no more than `most` positions come together."""
    triples: list[int] = []
    room = most
    for branch, start, stop in ranges:
        while start < stop:
            taken = min(stop - start, room)
            triples += (branch, start, start + taken)
            start += taken
            room -= taken
            if not room:
                yield triples
                triples, room = [], most
    if triples:
        yield triples
