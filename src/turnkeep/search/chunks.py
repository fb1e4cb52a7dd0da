"""A text cut into chunks that an embedding model can take, at the borders a reader would choose. Pure."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

CHUNK: Final = 1800
"""How long a chunk may be, in characters of a script with letters: some 450 tokens, which nearly every model takes."""
OVERLAP: Final = 150
MOST_CHUNKS: Final = 1000
"""How many chunks a turn may have: what comes after them is not searched."""

_LEAST_PART: Final = 0.5  # of a chunk: no border before it is worth a shorter one
_SENTENCE_END: Final = re.compile(r"[.!?…][\"')\]»”]*\s|[。！？]")
_SPACE: Final = re.compile(r"\s")
_MOST_BACK: Final = 32


@dataclass(frozen=True)
class Cut:
    """A text in chunks, and how many characters of it come after the last of them."""

    chunks: tuple[str, ...]
    left_out: int


def cut(text: str, *, chunk: int = CHUNK, overlap: int = OVERLAP, most: int = MOST_CHUNKS) -> Cut:
    """Cut a text: between paragraphs, else lines, sentences, words, and else wherever it must be.

    Each chunk begins with the end of the one before, so that what stands across a border is found. A character of a
    script that has no letters (Chinese, Japanese) counts for four, as models take it.
    """
    chunks: list[str] = []
    start = covered = 0
    while start < len(text):
        if len(chunks) == most:
            return Cut(tuple(chunks), len(text) - covered)
        covered = _end(text, start, chunk)
        if piece := text[start:covered].strip():
            chunks.append(piece)
        start = covered if covered == len(text) else _next_start(text, start, covered, overlap)
    return Cut(tuple(chunks), 0)


def _end(text: str, start: int, chunk: int) -> int:
    """Where a chunk that begins at `start` ends."""
    limit = _reach(text, start, chunk)
    if limit == len(text):
        return limit
    least = start + max(1, int((limit - start) * _LEAST_PART))
    for border in ("\n\n", "\n"):
        if (found := text.rfind(border, least, limit)) >= 0:
            return found + len(border)
    window = text[least:limit]
    for pattern in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in pattern.finditer(window)]
        if ends:
            return least + ends[-1]
    return _between_characters(text, least, limit)


def _reach(text: str, start: int, chunk: int) -> int:
    """How far a chunk can go at most."""
    window = text[start : start + chunk]
    if window.isascii():
        return start + len(window)
    weight = 0
    for index, character in enumerate(window):
        weight += 1 if character < "\u0370" else 2 if character < "\u0e00" else 4
        if weight > chunk:
            return start + max(index, 1)
    return start + len(window)


def _next_start(text: str, start: int, end: int, overlap: int) -> int:
    """Where the next chunk begins: some words before the end of this one."""
    back = min(overlap, (end - start) // 4)
    space = _SPACE.search(text, end - back, end)
    if space is not None and space.end() < end:
        return space.end()
    if _SPACE.search(text, start, end - back) is not None:  # one long word at the end
        return end
    return max(_between_characters(text, start + 1, end - back), start + 1)


def _between_characters(text: str, least: int, at: int) -> int:
    """The nearest place not after `at` that does not divide what is seen as one character."""
    for place in range(at, max(least, at - _MOST_BACK), -1):
        divided = unicodedata.combining(text[place]) or "\u200d" in text[place - 1 : place + 1]
        if not divided and not "\ufe00" <= text[place] <= "\ufe0f":
            return place
    return at
