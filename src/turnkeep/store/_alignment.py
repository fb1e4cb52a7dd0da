"""Two sequences laid beside each other. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_MOST_PAIRS = 1_000_000


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
    middle = _tellable(a[start : len(a) - end], b[start : len(b) - end])
    for tag, a_start, a_stop, b_start, b_stop in SequenceMatcher(None, *middle, autojunk=False).get_opcodes():
        blocks.append(
            Block(tag == "equal", range(start + a_start, start + a_stop), range(start + b_start, start + b_stop))
        )
    if end:
        blocks.append(Block(True, range(len(a) - end, len(a)), range(len(b) - end, len(b))))
    return blocks


def _tellable(a: Sequence[Hashable], b: Sequence[Hashable]) -> tuple[Sequence[Hashable], Sequence[Hashable]]:
    """The same sequences, with repeated elements numbered where comparing each with each would take too long."""
    counts_a, counts_b = Counter(a), Counter(b)
    if sum(number * counts_b[element] for element, number in counts_a.items()) <= _MOST_PAIRS:
        return a, b
    return _numbered(a), _numbered(b)


def _numbered(elements: Sequence[Hashable]) -> list[Hashable]:
    seen: Counter[Hashable] = Counter()
    numbered: list[Hashable] = []
    for element in elements:
        numbered.append((element, seen[element]))
        seen[element] += 1
    return numbered
