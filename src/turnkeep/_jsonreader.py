"""JSON's grammar on a stack of its own: the reader for all that the standard library's can't do.

It knows the path to what it refuses, keeps duplicate keys and every spelling of a number, and does not
care how much of Python's stack is left. `turnkeep.jsontext` asks it only when the fast reader gave up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from json import JSONDecodeError, JSONDecoder, JSONEncoder
from math import isfinite
from re import compile as regex
from typing import Any, Final, NamedTuple, NoReturn

from turnkeep.errors import UnreadableError, UnstorableError

MAX_DEPTH: Final = 500
TOO_DEEP: Final = f"is nested deeper than {MAX_DEPTH} levels"
SPACE: Final = " \t\n\r"

_to_text: Final = JSONEncoder(ensure_ascii=False).encode
_to_ascii: Final = JSONEncoder().encode
_decoder: Final = JSONDecoder()
_TOKEN: Final = regex(r'[ \t\n\r]*([][{},:"]|true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)')
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


def quote(text: str) -> str:
    """A str as JSON writes it, always good as UTF-8."""
    quoted = _to_text(text)
    try:
        quoted.encode()
    except UnicodeEncodeError:
        # Two halves that meet are one character to every reader of JSON; a lone one becomes an escape.
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        quoted = _to_text(joined).encode(errors="backslashreplace").decode()
    return quoted


def locate(path: str, keys: Sequence[object]) -> str:
    """`path` and subscripts: `messages[0]["content"]`. Never long, always printable."""
    if len(keys) > 12:
        first, last = locate(path, keys[:6]), locate("", keys[-3:])
        return f"{first}…{len(keys) - 9} more…{last}"
    return path + "".join([f"[{printable(key)}]" if isinstance(key, str) else f"[{key}]" for key in keys])


def printable(text: str) -> str:
    """A str as JSON writes it, for people to read: short, and nothing in it can control a terminal."""
    for length in (40, 8):
        part = shorten(text, length)
        quoted = quote(part)
        if not quoted.isprintable():
            quoted = _to_ascii(part).replace("\x7f", r"\u007f")
        if len(quoted) <= 64:
            break
    return quoted


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def finite(token: str) -> float:
    """The float a token spells. Raises ValueError where that would be infinity."""
    number = float(token)
    if not isfinite(number):
        raise ValueError("is a number beyond the range of a float")
    return number


def exact(token: str) -> float:
    """The float a token spells. Raises ValueError where that is another number, as others' tokens may spell too."""
    number = finite(token)
    # Up to 15 digits tell floats apart by themselves.
    if (len(token) > 16 or "e" in token or "E" in token) and Decimal(token) != Decimal(repr(number)):
        raise ValueError("is a number that no float is")
    return number


class Build(NamedTuple):
    """What a reader makes of each thing it reads. A ValueError of `number` is refused with its path."""

    string: Callable[[str], Any]
    number: Callable[[str], Any]
    constant: Callable[[str], Any]
    array: Callable[[list[Any]], Any]
    object: Callable[[list[tuple[str, Any]]], Any]


def _number(token: str) -> int | float:
    if not token.lstrip("-").isdigit():
        return finite(token)
    try:
        return int(token)
    except ValueError:
        raise ValueError(f"is an integer of {len(token):,} digits, more than Python reads") from None


def _canonical_number(token: str) -> str:
    """For a number that Python can hold, what the encoder writes; for any other, its own spelling."""
    if token.lstrip("-").isdigit():
        return "0" if token == "-0" else token
    try:
        return repr(exact(token))
    except (ValueError, ArithmeticError):
        return token.lower().replace("e+", "e")


def _canonical_object(pairs: list[tuple[str, str]]) -> str:
    """Keys in order; of equal keys, as they stood."""
    return "{" + ",".join([f"{quote(key)}:{text}" for key, text in sorted(pairs, key=lambda p: p[0])]) + "}"


def _nothing(_: object) -> None:
    return None


VALUES: Final = Build(str, _number, _CONSTANTS.__getitem__, list, dict)
NAMES: Final = Build(str, str, _CONSTANTS.__getitem__, list, dict)
CANONICAL: Final = Build(quote, _canonical_number, str, lambda items: f"[{','.join(items)}]", _canonical_object)
CHECK: Final = Build(_nothing, _nothing, _nothing, _nothing, _nothing)


@dataclass(slots=True)
class _Frame:
    """An array or object that is open. `key` is None until an object's key has been read."""

    closer: str
    items: list[Any]
    key: str | None = None


class Reader:
    """Reads one JSON text. Raises `error`, with the path below `path`, for what it refuses."""

    def __init__(
        self, text: str, path: str, build: Build, error: type[UnstorableError] | type[UnreadableError]
    ) -> None:
        self._text = text
        self._path = path
        self._build = build
        self._error = error
        self._position = 0
        self._frames: list[_Frame] = []

    def read(self) -> Any:
        frames = self._frames
        while True:
            complete, value = self._begin(self._next())
            while complete:
                if not frames:
                    if self._text[self._position :].strip(SPACE):
                        self._refuse("is not JSON: something follows it")
                    return value
                frame = frames[-1]
                frame.items.append(value if frame.closer == "]" else (frame.key, value))
                token = self._next()
                if token == frame.closer:
                    value = self._close()
                elif token == ",":
                    if frame.closer == "}":
                        self._read_key(self._next())
                    complete = False
                else:
                    self._refuse()

    def _begin(self, token: str) -> tuple[bool, Any]:
        """Read a scalar or an empty container, or enter another: whether it is complete, and the value."""
        if token == '"':
            return True, self._build.string(self._read_string())
        if token in ("[", "{"):
            return self._open("]" if token == "[" else "}")
        if token in _CONSTANTS:
            return True, self._build.constant(token)
        if token in ("]", "}", ",", ":"):
            self._refuse()
        try:
            return True, self._build.number(token)
        except ValueError as error:
            self._refuse(str(error))

    def _open(self, closer: str) -> tuple[bool, Any]:
        if len(self._frames) >= MAX_DEPTH:
            self._refuse(TOO_DEEP)
        self._frames.append(_Frame(closer, []))
        start = self._position
        token = self._next()
        if token == closer:
            return True, self._close()
        if closer == "}":
            self._read_key(token)
        else:
            self._position = start
        return False, None

    def _close(self) -> Any:
        frame = self._frames.pop()
        return self._build.array(frame.items) if frame.closer == "]" else self._build.object(frame.items)

    def _read_key(self, token: str) -> None:
        frame = self._frames[-1]
        frame.key = None
        if token != '"':
            self._refuse()
        frame.key = self._read_string()
        if self._next() != ":":
            self._refuse()

    def _read_string(self) -> str:
        try:
            value, self._position = _decoder.raw_decode(self._text, self._position - 1)
        except JSONDecodeError as error:
            self._position = error.pos
            self._refuse(f"is not JSON: {error.msg[:1].lower()}{error.msg[1:]}")
        return str(value)

    def _next(self) -> str:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            rest = self._text[self._position : self._position + 80].lstrip(SPACE + "-")
            self._refuse("NaN and Infinity are not JSON" if rest.startswith(("NaN", "Inf")) else "is not JSON")
        self._position = match.end()
        return match[1]

    def _refuse(self, reason: str = "is not JSON") -> NoReturn:
        keys = [len(frame.items) if frame.closer == "]" else frame.key for frame in self._frames]
        path = locate(self._path, [key for key in keys if key is not None])
        raise self._error(path, f"{reason} (character {self._position:,})") from None
