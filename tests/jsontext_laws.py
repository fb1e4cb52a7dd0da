"""What holds of `jsontext` for every text and every value, whoever makes them up. The standard library is the judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from math import isfinite
from typing import Any

from tests.unit.json_values import strict
from turnkeep import _jsonreader, jsontext
from turnkeep.errors import UnreadableError, UnstorableError
from turnkeep.jsontext import MAX_DEPTH, RawJSON, decode, decode_names, digest, encode

LIMIT = 50_000
_SPACE = " \t\n\r"


class _Pairs(list[tuple[str, Any]]):
    """An object with all its keys, also those that come twice."""


@dataclass(frozen=True)
class _Shape:
    """What the standard library sees in a text, its numbers unread."""

    depth: int
    doubled: bool


def check_text(text: str) -> None:
    """Any text is stored as it is or refused, and read as the standard library reads it or refused."""
    shape = _shape(text)
    try:
        raw = RawJSON(text, LIMIT)
    except UnstorableError as error:
        _check_error(error, "RawJSON")
        assert shape is None or shape.depth > MAX_DEPTH or len(text.strip(_SPACE).encode()) > LIMIT
        _check_reading(text)
        return
    assert shape is not None
    assert shape.depth <= MAX_DEPTH
    assert raw.text == text.strip(_SPACE) == RawJSON(raw.text, LIMIT).text == encode(raw, "m", max_bytes=LIMIT)
    assert len(raw.text.encode()) <= LIMIT
    assert len(repr(raw)) < 1000
    assert _reader(raw.text, _jsonreader.CHECK) is None
    assert strict(decode_names(raw.text)) == strict(_reader(raw.text, _jsonreader.NAMES))
    try:
        assert encode({"a": [raw, 1]}, "m", max_bytes=2 * LIMIT) == f'{{"a":[{raw.text},1]}}'
        assert shape.depth <= MAX_DEPTH - 2
    except UnstorableError as error:
        _check_error(error, "m")
        assert shape.depth > MAX_DEPTH - 2
    readable, value = _check_reading(raw.text)
    own = digest(raw, max_bytes=LIMIT)
    assert own == sha256(str(_reader(raw.text, _jsonreader.CANONICAL)).encode()).digest()
    if readable:
        assert (own == digest(value, max_bytes=4 * LIMIT)) is not (shape.doubled or _holds_what_no_float_is(raw.text))
        assert strict(decode(encode(value, "m", max_bytes=4 * LIMIT), "m")) == strict(value)


def _holds_what_no_float_is(text: str) -> bool:
    """Whether a number of a text is another one as a float."""
    found: list[bool] = []

    def judge(token: str) -> float:
        number = float(token)
        try:
            found.append(Decimal(token) != Decimal(repr(number)))
        except ArithmeticError:
            found.append(True)
        return number

    json.loads(text, parse_float=judge)
    return any(found)


def check_value(value: object) -> None:
    """Any Python value becomes a text that gives it back, or is refused by its path, by both halves alike."""
    text = _outcome(lambda: encode(value, "m", max_bytes=LIMIT))
    slow = _outcome(lambda: jsontext._write(value, "m", LIMIT))
    if isinstance(text, str):
        assert text == slow
        assert digest(value, max_bytes=LIMIT) == digest(RawJSON(text), max_bytes=LIMIT)
        check_text(text)
        return
    _check_error(text, "m")
    if isinstance(slow, str):
        assert len(slow.encode()) > LIMIT
    else:  # what is too large is found in another order
        assert (slow.path, slow.reason) == (text.path, text.reason) or "larger than" in text.reason


def _outcome(make: Callable[[], str]) -> str | UnstorableError:
    try:
        return make()
    except UnstorableError as error:
        return error


def _shape(text: str) -> _Shape | None:
    """What the standard library sees; nothing where it sees no JSON, or text that is no UTF-8."""
    try:
        text.encode()
        root = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return None
    depth, doubled, level = 0, False, [root]
    while level := [value for value in level if isinstance(value, list)]:
        depth += 1
        doubled = doubled or any(isinstance(value, _Pairs) and len(dict(value)) < len(value) for value in level)
        level = [
            child
            for value in level
            for child in ([child for _, child in value] if isinstance(value, _Pairs) else value)
        ]
    return _Shape(depth, doubled)


def _check_reading(text: str) -> tuple[bool, Any]:
    """Whether Python can hold the value of a text, and the value."""
    try:
        value = decode(text, "m")
    except UnreadableError as error:
        _check_error(error, "m")
        value = error
    try:
        expected = json.loads(text, parse_float=_finite, parse_constant=_refuse)
    except RecursionError:  # so deep that a frame more or less decides
        return False, None
    except ValueError:
        assert isinstance(value, UnreadableError)
        return False, None
    assert strict(value) == strict(expected)
    return True, value


def _reader(text: str, build: _jsonreader.Build) -> Any:
    return _jsonreader.Reader(text, "m", build, UnstorableError).read()


def _check_error(error: UnstorableError | UnreadableError, path: str) -> None:
    assert error.path.startswith(path)
    assert len(str(error)) < 1000
    assert str(error).isprintable()


def _finite(token: str) -> float:
    number = float(token)
    return number if isfinite(number) else _refuse(token)


def _refuse(token: str) -> Any:
    raise ValueError(token)
