"""Lengths of time as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from turnkeep.cli.text import duration
from turnkeep.errors import InvalidInputError

_AGE = re.compile(r"(\d+(?:\.\d+)?)(min|h|d|w)", re.ASCII)
_UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_LONGEST = timedelta(days=365_000)


def age(option: str, text: str) -> timedelta:
    """A length of time such as 30d."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise InvalidInputError(f"{option}: {text!r} is no length of time: a number and min, h, d or w, such as 30d")
    number, unit = float(found[1]), _UNITS[found[2]]
    if number * unit.total_seconds() > _LONGEST.total_seconds():
        raise InvalidInputError(f"{option}: {text!r} is longer than a thousand years")
    return number * unit


def is_age(text: str) -> bool:
    """Whether a text is meant as a length of time."""
    return _AGE.fullmatch(text.strip()) is not None


def time_to_live(option: str, text: str) -> timedelta | None:
    """A length of time such as 30d, or `none`."""
    return None if text == "none" else age(option, text)


def lasting(kept: timedelta | None) -> str:
    """A time to live in words, all of it: `30 d`, `1 h 30 min`."""
    if kept is None:
        return "for ever"
    parts = []
    while kept >= _UNITS["min"]:
        parts.append(duration(kept))
        kept %= next(length for length in (_UNITS["d"], _UNITS["h"], _UNITS["min"]) if kept >= length)
    if kept or not parts:
        parts.append(f"{kept.total_seconds():g} s")
    return " ".join(parts)
