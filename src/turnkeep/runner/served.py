"""What model servers say when they fail, out of the shapes that they give it (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

PASSING: Final = frozenset({408, 409, 425, 429})
"""HTTP statuses below 500 that another try may not meet."""

TOO_LONG: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
"""Kinds of errors that another try meets again, whatever the status says."""

_MAX_REASON_CHARACTERS: Final = 2000


def told(error: object) -> tuple[str, set[str]]:
    """An error's message and its kinds, out of the shapes that servers give them."""
    if isinstance(error, Mapping) and isinstance(error.get("error"), Mapping | str):
        error = error["error"]
    if not isinstance(error, Mapping):
        return shorten("" if error is None else str(error)), set()
    message = error.get("message") or error.get("detail") or dict(error)
    kinds = {kind for kind in (error.get("code"), error.get("type")) if isinstance(kind, str)}
    return shorten(message if isinstance(message, str) else repr(message)), kinds


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds after which a server wants to be asked again, if it says so."""
    text = headers.get("retry-after-ms") or headers.get("retry-after", "")
    try:
        seconds = float(text) / (1000 if headers.get("retry-after-ms") else 1)
    except ValueError:
        try:
            # The server's own clock tells how long it is until then.
            now = parsedate_to_datetime(headers["date"]) if "date" in headers else datetime.now(UTC)
            seconds = (parsedate_to_datetime(text) - now).total_seconds()
        except (ValueError, TypeError):
            return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def cause(error: BaseException) -> str:
    """What an error came from, in a few words."""
    origin = error.__cause__ or error
    return shorten(f"{type(origin).__name__}: {origin}".removesuffix(": "))


def shorten(text: str) -> str:
    """A reason that is not too long to be kept."""
    return text if len(text) <= _MAX_REASON_CHARACTERS else text[: _MAX_REASON_CHARACTERS - 1] + "…"
