"""What a hook makes of values before they are encoded, compared and stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from turnkeep.errors import RedactionError, UnreadableError
from turnkeep.jsontext import RawJSON, decode, encode
from turnkeep.redaction import Redact
from turnkeep.store._writes import UNCHANGED


def value(hook: Redact, given: object, path: str) -> Any:
    """The value to be stored. What the hook leaves as it is keeps its exact text.

    The hook gets a value of its own, read from the text that would be stored. Raises `RedactionError` where it fails,
    and for what it can't be shown.
    """
    text = encode(given, path)
    try:
        seen = decode(text, path)
    except UnreadableError as error:
        raise RedactionError(f"{error}: so the redaction hook can't look at it; nothing was stored") from None
    before = encode(seen, path)
    try:
        made = hook(seen)
    except Exception as error:
        raise RedactionError(
            f"{path}: the redaction hook has failed ({type(error).__name__}); nothing was stored"
        ) from error
    after = encode(made, f"redact({path})")
    if after != before:
        return RawJSON(after)
    # Of members of the same name the hook has seen the last one only.
    return RawJSON(before if isinstance(given, RawJSON) and _repeats_names(text) else text)


def values(hook: Redact | None, given: Sequence[Any] | None, path: str) -> Sequence[Any] | None:
    """The same for each value of a list. What is no list is left to those who say so."""
    if hook is None or not isinstance(given, list | tuple):
        return given
    return [value(hook, one, f"{path}[{index}]") for index, one in enumerate(given)]


def state(hook: Redact | None, given: object) -> object:
    """The same for a state."""
    return given if hook is None or given is UNCHANGED else value(hook, given, "state")


def plain(hook: Redact | None, given: Any, path: str) -> Any:
    """The same for what is stored as a value: a title, tags, metadata. None stays, and what is unchanged."""
    if hook is None or given is None or given is UNCHANGED:
        return given
    if isinstance(given, list | tuple | set | frozenset):
        return [plain(hook, one, f"{path}[{index}]") for index, one in enumerate(given)]
    if not isinstance(given, str | Mapping):
        return given
    return decode(value(hook, given, path).text, path)


def _repeats_names(text: str) -> bool:
    """Whether an object in a JSON text has two members of one name."""
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({name for name, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str)
    return found
