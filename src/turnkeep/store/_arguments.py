"""Arguments of the store's calls, checked before any of them is sent."""

from __future__ import annotations

import math
from typing import Any

from turnkeep.errors import InvalidInputError
from turnkeep.model import check_text

MAX_PAGE = 1000
_MAX_KEY_CHARACTERS = 500
_LARGEST = 2**31 - 1
_LONGEST_LEASE = 86_400.0


def branch_number(branch: object) -> int | None:
    """Return a branch's number, or None for the current one."""
    return None if branch is None else _whole(branch, "branch", 0)


def place(at: object, name: str) -> tuple[int | None, int | None]:
    """Return (turn_index, sub_step), or two Nones for the head."""
    if at is None:
        return None, None
    if not isinstance(at, tuple | list) or len(at) != 2:
        raise InvalidInputError(f"{name}: expected (turn_index, sub_step), got {at!r}")
    return _whole(at[0], f"{name}[0]", -1), _whole(at[1], f"{name}[1]", 0)


def check_key(key: object) -> str:
    """Return an idempotency key."""
    return check_text(key, "key", _MAX_KEY_CHARACTERS)


def page(limit: object) -> int:
    """Return the size of a page."""
    if _whole(limit, "limit", 1) > MAX_PAGE:
        raise InvalidInputError(f"limit: {limit}; 1 to {MAX_PAGE} are allowed")
    return int(str(limit))


def lease_seconds(seconds: object) -> float:
    """Return the length of a lease."""
    return _number(seconds, "seconds", _LONGEST_LEASE)


def delay_seconds(seconds: object) -> float:
    """Return a time to wait, which may be 0."""
    return 0.0 if seconds == 0 else _number(seconds, "delay", _LONGEST_LEASE)


def timeout_seconds(seconds: object) -> float:
    """Return a deadline."""
    return _number(seconds, "timeout", math.inf)


def hook(redact: Any) -> Any:
    """Return a redaction hook."""
    if redact is not None and not callable(redact):
        raise InvalidInputError(f"redact: expected a function, got {type(redact).__name__}")
    return redact


def pool_size(size: object) -> int:
    """Return a number of connections."""
    return _whole(size, "pool_size", 1)


def _whole(value: object, name: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LARGEST:
        raise InvalidInputError(f"{name}: expected a whole number from {least}, got {value!r}")
    return value


def _number(value: object, name: str, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most or math.isinf(value):
        limit = "" if math.isinf(most) else f" and at most {most:g}"
        raise InvalidInputError(f"{name}: expected seconds, more than 0{limit}, got {value!r}")
    return float(value)
