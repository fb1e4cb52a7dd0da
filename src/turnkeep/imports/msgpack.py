"""MessagePack as LangGraph writes it, read into plain data: nothing that it names is imported, made or called. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

_DEEPEST: Final = 150  # an object within an object takes several calls to read

# LangGraph's kinds of extension: what an object was made of.
_ONE_ARGUMENT, _ARGUMENTS, _KEYWORDS, _METHOD, _PYDANTIC_1, _PYDANTIC_2, _NUMPY = range(7)


@dataclass(frozen=True)
class Object:
    """An object of a class that is not made again: its module and name, and what it was to be made of."""

    module: str
    name: str
    content: Any


def unpack(data: bytes) -> Any:
    """The value. Raises `ValueError` for what is no MessagePack, or too deep."""
    reader = _Reader(data)
    value = reader.value(0)
    if reader.position != len(data):
        raise ValueError("there is more than one value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def value(self, depth: int) -> Any:
        """The next value."""
        if depth > _DEEPEST:
            raise ValueError("nested too deep")
        mark = self._take(1)[0]
        if mark < 0x80:
            return mark
        if mark < 0x90:
            return self._map(mark & 0x0F, depth)
        if mark < 0xA0:
            return self._array(mark & 0x0F, depth)
        if mark < 0xC0:
            return self._text(mark & 0x1F)
        if mark >= 0xE0:
            return mark - 256
        return self._marked(mark, depth)

    def _marked(self, mark: int, depth: int) -> Any:
        match mark:
            case 0xC0:
                return None
            case 0xC2 | 0xC3:
                return mark == 0xC3
            case 0xC4 | 0xC5 | 0xC6:
                return self._take(self._number(">" + "BHI"[mark - 0xC4]))
            case 0xC7 | 0xC8 | 0xC9:
                size = self._number(">" + "BHI"[mark - 0xC7])
                return self._extension(self._number(">b"), size, depth)
            case 0xCA | 0xCB:
                return self._number(">f" if mark == 0xCA else ">d")
            case 0xCC | 0xCD | 0xCE | 0xCF:
                return self._number(">" + "BHIQ"[mark - 0xCC])
            case 0xD0 | 0xD1 | 0xD2 | 0xD3:
                return self._number(">" + "bhiq"[mark - 0xD0])
            case 0xD4 | 0xD5 | 0xD6 | 0xD7 | 0xD8:
                return self._extension(self._number(">b"), 1 << (mark - 0xD4), depth)
            case 0xD9 | 0xDA | 0xDB:
                return self._text(self._number(">" + "BHI"[mark - 0xD9]))
            case 0xDC | 0xDD:
                return self._array(self._number(">" + "HI"[mark - 0xDC]), depth)
            case 0xDE | 0xDF:
                return self._map(self._number(">" + "HI"[mark - 0xDE]), depth)
        raise ValueError(f"byte {mark:#x} begins no value")

    def _extension(self, kind: int, size: int, depth: int) -> Any:
        data = self._take(size)
        if kind not in range(7):
            raise ValueError(f"extension {kind} is unknown")
        inner = _Reader(data)
        made = inner.value(depth + 1)
        if kind == _NUMPY or not isinstance(made, list) or len(made) < 3:
            return Object("", "numpy" if kind == _NUMPY else "?", made)
        return Object(str(made[0]), str(made[1]), made[2])

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        found = {}
        for _ in range(count):
            key = self.value(depth + 1)
            found[key if isinstance(key, str | int | float | bool | bytes | None) else repr(key)] = self.value(
                depth + 1
            )
        return found

    def _array(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(count)]

    def _text(self, size: int) -> str:
        return self._take(size).decode("utf-8", "surrogatepass")

    def _number(self, form: str) -> Any:
        (number,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return number

    def _take(self, size: int) -> bytes:
        taken = self._data[self.position : self.position + size]
        if len(taken) != size:
            raise ValueError("it was cut off")
        self.position += size
        return taken
