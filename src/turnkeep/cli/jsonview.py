"""JSON as people read it: every number as it was spelled, and nothing that Python can't hold.

`load` keeps numbers as text, so that 1e400 and integers of any length can be shown. What has no one
value, such as an object with duplicate keys, it refuses: its exact text is shown then.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any

_LINE = 100
_SPACE = " \t\n\r"


class Number(str):
    """A number as it was spelled."""

    __slots__ = ()


def load(text: str) -> Any:
    """The value of JSON text. Raises ValueError or RecursionError for what can't be shown as a value."""
    return json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=_unique)


def compact(value: Any) -> str:
    """JSON on one line."""
    return _write(value, None)


def pretty(value: Any) -> str:
    """JSON for people: on one line where it is short, else indented."""
    line = compact(value)
    return line if len(line) <= _LINE else _write(value, 0)


def readable(text: str) -> str:
    """JSON text for people; as it is where it has no one value."""
    try:
        return pretty(load(text))
    except (ValueError, RecursionError):
        return text


def elements(array: str) -> list[str]:
    """The exact texts of a JSON array's elements."""
    decoder = json.JSONDecoder(parse_int=str, parse_float=str)
    found: list[str] = []
    at = _skip(array, 1)
    while array[at] != "]":
        _, end = decoder.raw_decode(array, at)
        found.append(array[at:end])
        at = _skip(array, end)
        if array[at] == ",":
            at = _skip(array, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate keys")
    return found


def _write(value: Any, indent: int | None) -> str:
    match value:
        case Number():
            return str(value)
        case str():
            return encode_basestring(value)
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case dict():
            inner = [f"{encode_basestring(key)}: {_write(item, _deeper(indent))}" for key, item in value.items()]
            return _enclose("{", inner, "}", indent)
        case _:
            return _enclose("[", [_write(item, _deeper(indent)) for item in value], "]", indent)


def _deeper(indent: int | None) -> int | None:
    return None if indent is None else indent + 2


def _enclose(start: str, inner: list[str], end: str, indent: int | None) -> str:
    if indent is None or not inner:
        return start + ", ".join(inner) + end
    margin = "\n" + " " * (indent + 2)
    return start + margin + f",{margin}".join(inner) + "\n" + " " * indent + end
