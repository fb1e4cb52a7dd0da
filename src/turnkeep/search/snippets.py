"""A few words of a text around those that were looked for (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_WORD = re.compile(r"[^\W_]+")
_SPACE = re.compile(r"\s+")
_WIDTH = 200
_BEFORE = 40
_LONGEST_TEXT = 100_000  # characters that are looked at
_LONGEST_ENDING = 5  # of an inflected word, after its stem
_SHORTEST_STEM = 3


@dataclass(frozen=True)
class Snippet:
    """Text on one line, and the (start, stop) of each word in it that was looked for."""

    text: str
    marks: tuple[tuple[int, int], ...]


def snippet(text: str, wanted: Collection[str], width: int = _WIDTH) -> Snippet:
    """The part of a text, at most `width` characters of it, that has the most different words of `wanted` in it.

    The beginning, where it has none. Where something is left out there is an ellipsis, which counts as well.
    """
    line = _SPACE.sub(" ", text[:_LONGEST_TEXT]).strip()
    found = [(match.start(), match.end(), stem) for match in _WORD.finditer(line) if (stem := _stem(match[0], wanted))]
    start, stop = _window(line, _best_start(found, width), width)
    before, after = "…" if start > 0 else "", "…" if stop < len(line) or len(text) > _LONGEST_TEXT else ""
    shift = len(before) - start
    marks = [(first + shift, last + shift) for first, last, _ in found if first >= start and last <= stop]
    return Snippet(f"{before}{line[start:stop]}{after}", tuple(marks))


def _stem(word: str, wanted: Collection[str]) -> str | None:
    """The lexeme that a word is a form of, so far as its letters tell."""
    low = word.casefold()
    if low in wanted:
        return low
    for lexeme in wanted:
        common = lexeme if len(lexeme) <= _SHORTEST_STEM else lexeme[:-1]
        longest = len(lexeme) + _LONGEST_ENDING
        if len(lexeme) >= _SHORTEST_STEM and low.startswith(common) and len(low) <= longest:
            return lexeme
    return None


def _best_start(found: list[tuple[int, int, str]], width: int) -> int:
    """Where a window begins that has the most different lexemes; the first of such windows."""
    best, most, last = 0, 0, 0
    inside: dict[str, int] = {}
    for first, (start, _, stem) in enumerate(found):
        while last < len(found) and found[last][1] <= start + width - _BEFORE:
            inside[found[last][2]] = inside.get(found[last][2], 0) + 1
            last += 1
        if len(inside) > most:
            best, most = start, len(inside)
        if last > first:
            inside[stem] -= 1
            if not inside[stem]:
                del inside[stem]
        else:
            last = first + 1
    return best


def _window(line: str, match: int, width: int) -> tuple[int, int]:
    """The bounds of the part around a match, at spaces where there are some near."""
    if len(line) <= width:
        return 0, len(line)
    start = max(0, min(match - _BEFORE, len(line) - width))
    if start > 0:
        space = line.find(" ", start, max(match, start))
        start = start if space < 0 else space + 1
    stop = min(len(line), start + width - 2)
    if stop < len(line):
        space = line.rfind(" ", stop - _BEFORE, stop)
        stop = stop if space < 0 else space
    return start, stop
