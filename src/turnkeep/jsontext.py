"""Exact JSON text: what may be stored, what comes back, and when two values are the same (G3).

Everything here has two halves. The fast one is the standard library's C code behind a cheap check, and says
"fine" or "don't know". The other, in Python and without recursion, decides the rest: it knows the path
to a culprit, puts `RawJSON` in place, and works on a stack that is nearly used up. Where both have an
answer, it is the same one.

Limits: `MAX_DEPTH` nested arrays and objects, `MAX_MESSAGE_BYTES` of UTF-8.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import InitVar, dataclass, is_dataclass
from enum import Enum
from hashlib import sha256
from io import StringIO
from itertools import accumulate
from json import JSONDecoder, JSONEncoder
from math import isfinite
from typing import Any, Final, NoReturn, final

from turnkeep._jsonreader import (
    CANONICAL,
    CHECK,
    MAX_DEPTH,
    NAMES,
    SPACE,
    TOO_DEEP,
    VALUES,
    Reader,
    exact,
    finite,
    locate,
    printable,
    quote,
    shorten,
)
from turnkeep.errors import UnreadableError, UnstorableError

__all__ = [
    "MAX_DEPTH",
    "MAX_MESSAGE_BYTES",
    "RawJSON",
    "check_stored",
    "decode",
    "decode_names",
    "digest",
    "digest_list",
    "encode",
]

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024

_NUMBERS: Final = frozenset({int, float, bool, type(None)})
_ARRAYS: Final = frozenset({list, tuple})
_OBJECTS: Final = frozenset({dict, OrderedDict, defaultdict})
_END: Final = object()
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


@final
@dataclass(frozen=True, slots=True, repr=False)
class RawJSON:
    """JSON text that is stored exactly as it is; only white space around it goes (G3).

    Duplicate keys, any spelling of numbers, ``\\u0000`` and escaped lone surrogates are kept. Raises
    `UnstorableError` for what Postgres' `json` type refuses and for what goes beyond the limits.
    """

    text: str
    max_bytes: InitVar[int] = MAX_MESSAGE_BYTES

    def __post_init__(self, max_bytes: int) -> None:
        if not isinstance(self.text, str):
            raise UnstorableError("RawJSON", f"takes JSON text as str, not {type(self.text).__name__}")
        text = str.__str__(self.text).strip(SPACE)
        _check_text(text, max_bytes)
        object.__setattr__(self, "text", text)

    def __repr__(self) -> str:
        return f"RawJSON({shorten(self.text, 80)!r})"


def encode(value: object, path: str, *, max_bytes: int = MAX_MESSAGE_BYTES) -> str:
    """The exact JSON text of a value: key order, number spelling and every character kept (G3).

    Takes dict (with str keys), list, tuple, str, int, float, bool, None and `RawJSON`, at any depth. A
    member of an Enum that is also a str, int or float counts as its plain value. Raises
    `UnstorableError`, with the path of the culprit below `path`, for everything else.
    """
    text = value.text if type(value) is RawJSON else None
    try:
        if text is None and _is_plain(value, path, max_bytes):
            text = _to_text(value)
        if text is not None:
            size = len(text) if text.isascii() else len(text.encode())
            return text if size <= max_bytes else _refuse_size(path, max_bytes)
    except (ValueError, TypeError, RuntimeError):
        pass  # NaN, too long an integer, a lone surrogate, too little stack: the other half tells which
    text = _write(value, path, max_bytes)
    return text if len(text.encode()) <= max_bytes else _refuse_size(path, max_bytes)


def check_stored(text: str, path: str) -> None:
    """Raise `UnstorableError` if a text can't be one that was stored: no JSON, or too deep for a list of values."""
    try:
        _is_json(text)
        fine = not _is_deeper(text, MAX_DEPTH + 1)
    except (ValueError, RecursionError):
        fine = False
    if not fine:
        Reader(text, path, CHECK, UnstorableError).read()


def decode(text: str, path: str) -> Any:
    """The value of stored JSON text as the standard library reads it: of duplicate keys, the last one.

    Raises `UnreadableError` where Python would hold something else or nothing: a number beyond the range
    of a float, an integer of more digits than Python reads, nesting beyond what its stack can take.
    """
    try:
        return _from_text(text)
    except (ValueError, RecursionError):
        return Reader(text, path, VALUES, UnreadableError).read()


def decode_names(text: str) -> Any:
    """The value of stored JSON text with each number as its text: for its strings, which can always be read."""
    try:
        return _names_from_text(text)
    except RecursionError:  # the stack is nearly used up
        return Reader(text, "text", NAMES, UnreadableError).read()


def digest(value: object, path: str = "value", *, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """32 bytes, equal for equal JSON values and for no others.

    Key order and white space make no difference; 1, 1.0, true and "1" are four values, 0.0 and -0.0 are
    two, 1e2 and 100.0 are one. A `RawJSON` has the digest of its value; where Python can't hold that, or
    keys are duplicate, it has one of its own. Raises `UnstorableError` for what `encode` refuses.
    """
    return sha256(_canonical(value, path, max_bytes)).digest()


def digest_list(values: Sequence[object], path: str, *, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """The `digest` of a list whose elements keep the limits each by itself: messages are stored one by one."""
    hashed = sha256(b"[")
    for index, value in enumerate(values):
        hashed.update(b"," if index else b"")
        hashed.update(_canonical(value, f"{path}[{index}]", max_bytes))
    hashed.update(b"]")
    return hashed.digest()


# -- the fast halves ------------------------------------------------------------------------------------


def _writer(*, sort_keys: bool) -> Callable[[object], str]:
    # No look-out for cycles: `_is_plain` has measured the depth before.
    return JSONEncoder(
        ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=sort_keys
    ).encode


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("duplicate keys")
    return value


def _no_constant(token: str) -> NoReturn:
    raise ValueError(f"{token} is not JSON")


_to_text: Final = _writer(sort_keys=False)
_to_sorted_text: Final = _writer(sort_keys=True)
_is_json: Final = JSONDecoder(parse_constant=_no_constant).decode
_names_from_text: Final = JSONDecoder(parse_int=str, parse_float=str).decode
_from_text: Final = JSONDecoder(parse_constant=_no_constant, parse_float=finite).decode
# Only for text known to be JSON.
_from_text_unique: Final = JSONDecoder(object_pairs_hook=_unique, parse_float=exact).decode


def _is_plain(value: object, path: str, max_bytes: int) -> bool:
    """Whether the standard encoder is right about the whole value: exact types, str keys, not too deep.

    Each element and character costs at least a byte. What can't fit is refused here, before a value that
    contains one part many times over has become gigabytes of text.
    """
    kind = type(value)
    if kind is str or kind in _NUMBERS:
        return True
    if kind is not dict and kind not in _ARRAYS:
        return False
    room = max_bytes
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        container, depth = stack.pop()
        room -= len(container)
        if type(container) is dict:
            for key in container:
                if type(key) is not str:
                    return False
                room -= len(key)
            container = container.values()
        elif len(container) > 8 and _NUMBERS.issuperset(map(type, container)):
            container = ()
        for child in container:
            kind = type(child)
            if kind is str:
                room -= len(child)
            elif kind is dict or kind is list or kind is tuple:
                if depth >= MAX_DEPTH:
                    return False
                stack.append((child, depth + 1))
            elif kind not in _NUMBERS:
                return False
        if room < 0:
            _refuse_size(path, max_bytes)
    return True


def _canonical(value: object, path: str, max_bytes: int) -> bytes:
    """One text for all that are the same value: keys sorted, no white space, each number in one spelling."""
    text = value.text if type(value) is RawJSON else None
    try:
        if text is None and _is_plain(value, path, max_bytes):
            plain = value
        else:
            text = encode(value, path, max_bytes=max_bytes) if text is None else text
            plain = _from_text_unique(text)
        return _to_sorted_text(plain).encode()
    except (ValueError, TypeError, ArithmeticError, RuntimeError):
        # A lone surrogate, duplicate keys, a number that Python can't hold exactly, or too little stack.
        text = encode(value, path, max_bytes=max_bytes) if text is None else text
        canonical: str = Reader(text, path, CANONICAL, UnstorableError).read()
        return canonical.encode()


def _check_text(text: str, max_bytes: int) -> None:
    """Refuse what Postgres' `json` type refuses, and what is too large or too deep."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        reason = f"has a lone surrogate as character {error.start:,}, which is no UTF-8: write it as an escape"
        raise UnstorableError("RawJSON", reason) from None
    if size > max_bytes:
        _refuse_size("RawJSON", max_bytes)
    try:
        _is_json(text)
        fine = not _is_deeper(text, MAX_DEPTH)
    except (ValueError, RecursionError):
        fine = False
    if not fine:
        Reader(text, "RawJSON", CHECK, UnstorableError).read()


def _is_deeper(text: str, depth: int) -> bool:
    """Whether JSON text that is known to be valid nests deeper than that."""
    if text.count("[") + text.count("{") <= depth:
        return False
    # Without its escapes, a quote begins or ends a string, and every second piece is outside of strings.
    pieces = text.encode().replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    skeleton = b"".join(pieces).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, skeleton)), default=0) > depth


# -- the slow half of writing ---------------------------------------------------------------------------


def _write(root: object, path: str, max_bytes: int) -> str:
    """One element after the other, with the way to it at hand."""
    out = StringIO(newline="")
    size = 0
    keys: list[object] = [None]
    opened: list[int] = []
    frames: list[Iterator[tuple[str, object, object]]] = [iter([("", None, root)])]

    def refuse(reason: str, up: int = 0) -> NoReturn:
        raise UnstorableError(locate(path, keys[1 : len(keys) - up]), reason)

    while frames:
        lead, keys[-1], child = next(frames[-1], ("", None, _END))
        size += out.write(lead)
        if child is _END:
            frames.pop()
            keys.pop()
            del opened[-1:]
        elif type(child) in _OBJECTS or type(child) in _ARRAYS:
            if id(child) in opened:
                refuse("contains itself")
            if len(frames) > MAX_DEPTH:
                refuse(TOO_DEEP)
            opened.append(id(child))
            keys.append(None)
            frames.append(_members(child, refuse))
        elif type(child) is RawJSON:
            if _is_deeper(child.text, MAX_DEPTH - len(opened)):
                refuse(TOO_DEEP)
            size += out.write(child.text)
        else:
            size += out.write(_scalar(child, refuse))
        if size > max_bytes:
            _refuse_size(path, max_bytes)
    return out.getvalue()


def _members(container: Any, refuse: Callable[..., NoReturn]) -> Iterator[tuple[str, object, object]]:
    """What a container consists of: the text before an element, its key, the element; then its end."""
    if type(container) in _ARRAYS:
        lead = "["
        for index, child in enumerate(container):
            yield lead, index, child
            lead = ","
        yield ("]" if lead == "," else "[]"), None, _END
        return
    lead, seen = "{", set()
    for key, child in list(container.items()):
        if not isinstance(key, str):
            refuse(f"has a key of type {type(key).__name__}: keys must be str", 1)
        quoted = _scalar(key, refuse, 1)
        if quoted in seen:
            refuse(f"has two keys that are the same in JSON: {printable(key)}", 1)
        seen.add(quoted)
        yield f"{lead}{quoted}:", key, child
        lead = ","
    yield ("}" if lead == "," else "{}"), None, _END


def _scalar(value: Any, refuse: Callable[..., NoReturn], up: int = 0) -> str:
    """The text of what contains nothing. `up` tells that it is a key, not a value."""
    kind = type(value)
    if kind is str:
        return quote(value)
    if value is None or kind is bool:
        return _to_text(value)
    if kind is int:
        try:
            return int.__repr__(value)
        except ValueError:
            return refuse("is an integer of more digits than Python writes (sys.set_int_max_str_digits)")
    if kind is float:
        return float.__repr__(value) if isfinite(value) else refuse(f"is {value}: use None or a str instead")
    if isinstance(value, Enum):
        for plain, content in ((str, str.__str__), (int, int.__index__), (float, float.__float__)):
            # An Enum can carry another value than what it is. Which one is meant is not ours to say.
            if isinstance(value, plain) and type(value.value) is plain and value.value == content(value):
                return _scalar(value.value, refuse)
    return refuse(f"{kind.__name__} is no JSON type: {_remedy(value)}", up)


def _remedy(value: object) -> str:
    for applies, remedy in (
        (isinstance(value, bytes | bytearray | memoryview), "encode it first, e.g. base64"),
        (isinstance(value, Enum), "use its .value"),
        (hasattr(type(value), "model_dump"), "call .model_dump(mode='json')"),
        (is_dataclass(value), "call dataclasses.asdict()"),
        (hasattr(type(value), "isoformat"), "call .isoformat()"),
        (hasattr(type(value), "_asdict"), "call ._asdict()"),
        (hasattr(type(value), "tolist"), "call .tolist()"),
        (isinstance(value, str), "make it a plain str"),
        (isinstance(value, int), "make it a plain int"),
        (isinstance(value, float), "make it a plain float"),
        (type(value).__name__ in ("Decimal", "UUID"), "call str()"),
        (hasattr(type(value), "__fspath__"), "call str()"),
        (isinstance(value, Mapping), "call dict()"),
        (isinstance(value, Set), "make it a list, in an order you choose"),
        (isinstance(value, Iterable), "call list()"),
    ):
        if applies:
            return remedy
    return "make it of dict, list, str, int, float, bool and None"


def _refuse_size(path: str, max_bytes: int) -> NoReturn:
    raise UnstorableError(path, f"is larger than {max_bytes:,} bytes of JSON, the limit")
