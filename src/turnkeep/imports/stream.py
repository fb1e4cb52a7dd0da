"""Foreign conversations as a file that the store imports. What is made of them is never all in memory."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from turnkeep.imports.turns import Foreign
from turnkeep.transfer import Writer


class Stream(io.RawIOBase):
    """The lines of an export that is made as it is read."""

    def __init__(self, conversations: Iterable[Foreign]) -> None:
        self._lines = _lines(conversations)
        self._rest = b""

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readline(self, size: int | None = -1) -> bytes:
        """The next line, or a part of it."""
        line = self._rest or next(self._lines, b"")
        most = len(line) if size is None or size < 0 else size
        self._rest = line[most:]
        return line[:most]


def _lines(conversations: Iterable[Foreign]) -> Iterator[bytes]:
    writer = Writer()
    for conversation in conversations:
        yield from conversation.lines(writer)
    yield writer.end_of_file()
