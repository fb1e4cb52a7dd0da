"""How two JSON values, or two messages, differ. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any, Literal

from turnkeep import jsontext
from turnkeep.cli.jsonview import Number, compact, load, pretty
from turnkeep.cli.transcript import Message, read_message
from turnkeep.errors import UnstorableError

Kind = Literal["added", "removed", "changed"]

_NAME = re.compile(r"[^\W\d]\w*")
_MISSING: Any = object()
_CONTEXT = 3
_MOST_LINES = 2000


@dataclass(frozen=True)
class Change:
    """A place in a JSON value where two of them differ: JSON texts, None where there is nothing."""

    path: str
    before: str | None
    after: str | None

    @property
    def kind(self) -> Kind:
        """What has happened there."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


def changes(before: str | None, after: str | None) -> list[Change]:
    """Where two JSON texts differ by value, by path. Types are told apart: 1, 1.0, true and "1" are four values."""
    if before == after:
        return []
    try:
        values = [_MISSING if text is None else load(text) for text in (before, after)]
        return list(_walk("", *values))
    except (ValueError, RecursionError):  # what has no one value is compared as text
        return [Change("", before, after)]


def _walk(path: str, a: Any, b: Any) -> Iterator[Change]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            yield from _walk(_member(path, key), a.get(key, _MISSING), b.get(key, _MISSING))
    elif isinstance(a, list) and isinstance(b, list):
        yield from _walk_list(path, a, b)
    elif not _same(a, b):
        yield Change(path, _written(a), _written(b))


def _walk_list(path: str, a: list[Any], b: list[Any]) -> Iterator[Change]:
    """What was put in or taken out in one place shows as that, not as a change of all that follows."""
    least = min(len(a), len(b))
    start = next((i for i in range(least) if not _same(a[i], b[i])), least)
    end = next((i for i in range(least - start) if not _same(a[-1 - i], b[-1 - i])), least - start)
    stop_a, stop_b = len(a) - end, len(b) - end
    for index in range(start, max(stop_a, stop_b)):
        one = a[index] if index < stop_a else _MISSING
        other = b[index] if index < stop_b else _MISSING
        yield from _walk(f"{path}[{index}]", one, other)


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Number):
        return str(a) == str(b) or _digest(a) == _digest(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _digest(number: Number) -> object:
    try:
        return jsontext.digest(jsontext.RawJSON(str(number)))
    except UnstorableError:
        return str(number)


def _member(path: str, key: str) -> str:
    if _NAME.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{json.dumps(key)}]"


def _written(value: Any) -> str | None:
    return None if value is _MISSING else compact(value)


# -- messages


def message_lines(before: str, after: str) -> list[str]:
    """Lines of a unified diff of two messages as people read them; of their JSON where that reads the same.

    The heading is among them only where it differs.
    """
    said = [heading(text) for text in (before, after)]
    read = [_lines(read_message(text), heading=said[0] != said[1]) for text in (before, after)]
    if read[0] == read[1]:
        read = [_json_lines(text) for text in (before, after)]
    return unified(*read)


def whole_lines(text: str, mark: str) -> list[str]:
    """A message's lines, each with a mark before it."""
    return [mark + line for line in _lines(read_message(text), heading=False)]


def heading(text: str) -> str:
    """Who says a message, and what stands beside that."""
    message = read_message(text)
    return f"{message.role}  {message.detail}" if message.detail else message.role


def unified(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """A unified diff without its file names; "..." stands between stretches. Very long texts are compared in part."""
    found: list[str] = []
    for line in list(unified_diff(a[:_MOST_LINES], b[:_MOST_LINES], n=_CONTEXT, lineterm=""))[2:]:
        if line.startswith("@@"):
            found += [" ..."] if found else []
        else:
            found.append(line)
    if a[_MOST_LINES:] != b[_MOST_LINES:]:
        found.append(" ... and more")
    return found


def _lines(message: Message, *, heading: bool = True) -> list[str]:
    lines = [f"{message.role}  {message.detail}".rstrip()] if heading else []
    for part in message.parts:
        title = " ".join(word for word in (_TITLES.get(part.kind, ""), part.title) if word)
        after = f"  {part.id}" if part.id else ""
        if part.kind == "call":
            lines += f"{title} {part.text}{after}".split("\n")
        elif part.kind == "result":
            lines += [f"{title}{after}", *part.text.split("\n")]
        else:
            lines += f"{title}: {part.text}".split("\n") if title else part.text.split("\n")
    return lines


_TITLES = {"call": "call", "result": "result of", "thought": "thinking"}


def _json_lines(text: str) -> list[str]:
    try:
        return json_lines(load(text))
    except (ValueError, RecursionError):
        return text.split("\n")


def json_lines(value: Any) -> list[str]:
    """JSON with each member of its outermost object on lines of its own."""
    if not isinstance(value, dict):
        return pretty(value).split("\n")
    return [line for key, item in value.items() for line in f"{json.dumps(key)}: {pretty(item)}".split("\n")]
