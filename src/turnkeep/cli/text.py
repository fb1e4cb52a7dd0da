"""Text for a terminal: made harmless, cut, counted."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

# What can move the cursor, change a terminal, reorder a line or hide: control characters (C0 without line
# break and tab, DEL, C1), line separators, bidirectional overrides, tags, and surrogates, which can't be printed.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
_BREAKS = re.compile("[\t\n]")
# JSON text has these only inside strings, where an escape means the same.
_HARMFUL_IN_JSON = re.compile("[\x7f-\x9f\u061c\u2028\u2029\u202a-\u202e\u2066-\u2069]")

_SHORTEST_PREFIX = 8


def printable(text: str) -> str:
    """The text with everything that could control a terminal shown as an escape, such as ``\\x1b``."""
    return _HARMFUL.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The same without line breaks and tabs, for a cell or a heading."""
    return _BREAKS.sub(_escape, printable(text))


def harmless_json(text: str) -> str:
    """JSON text that a terminal may show: the same value, with what could control it as JSON escapes."""
    return _HARMFUL_IN_JSON.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


def cut(text: str, characters: int, lines: int) -> tuple[str, int]:
    """At most so many characters and lines of a text, and the number of characters left out."""
    kept = text[:characters]
    ends = [mark.end() for mark in re.finditer("\n", kept)]
    if len(ends) > lines:
        kept = kept[: ends[lines - 1]]
    if len(kept) == len(text):
        return text, 0
    return kept.rstrip("\n"), len(text) - len(kept.rstrip("\n"))


def duration(span: timedelta) -> str:
    """A length of time in its largest unit: `3 s`, `5 min`, `7 h`, `12 d`."""
    seconds = max(span.total_seconds(), 0)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def ago(then: datetime, now: datetime) -> str:
    """How long ago a time was; a date where that is more than 60 days."""
    if now - then > timedelta(days=60):
        return f"{then:%Y-%m-%d}"
    return f"{duration(now - then)} ago"


def size(number: int) -> str:
    """A number of bytes for people."""
    value = float(number)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: `1 message`, `2 messages`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def short_ids(ids: Sequence[uuid.UUID]) -> list[str]:
    """Beginnings of ids, equally long and long enough to tell these ids apart."""
    texts = {str(one) for one in ids}
    length = _SHORTEST_PREFIX
    while len({text[:length] for text in texts}) < len(texts):
        length += 1
    return [str(one)[:length] for one in ids]


def _escape(mark: re.Match[str]) -> str:
    code = ord(mark[0])
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\u{code:04x}" if code > 0xFF else {9: "\\t", 10: "\\n", 13: "\\r"}.get(code, f"\\x{code:02x}")
