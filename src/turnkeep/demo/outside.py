"""The world outside the database, where tools leave their marks: a file that is only appended to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from turnkeep.demo.calls import CallPlace, policy_of
from turnkeep.runner.effects import Policy


@dataclass(frozen=True)
class Mark:
    """A tool has begun a call, or has come to its end. `key` is the call's idempotency key."""

    conversation: str
    turn: int
    call_id: str
    tool: str
    key: str
    attempt: int
    ended: bool

    @property
    def place(self) -> CallPlace:
        """Which call it is."""
        return self.conversation, self.turn, self.call_id

    @property
    def policy(self) -> Policy:
        """How its tool is declared."""
        return policy_of(self.tool)


class OutsideFile:
    """The file as tools see it: a mark is on disk when `leave` has returned."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def leave(self, mark: Mark) -> None:
        """Append a mark."""
        os.write(self._file, json.dumps(asdict(mark)).encode() + b"\n")
        os.fsync(self._file)


class OutsideReader:
    """The file as the client sees it, which reads only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.marks: list[Mark] = []

    def look(self) -> list[Mark]:
        """Read what is new, and give it."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            *lines, _ = file.read().split(b"\n")
        self._read += sum(len(line) + 1 for line in lines)
        new = [Mark(**json.loads(line)) for line in lines]
        self.marks += new
        return new

    def under_way(self) -> list[Mark]:
        """The calls of which the last mark is a beginning, as far as has been read."""
        return unended(self.marks)


def unended(marks: Iterable[Mark]) -> list[Mark]:
    """The calls of which the last mark is a beginning."""
    last = {mark.place: mark for mark in marks}
    return [mark for mark in last.values() if not mark.ended]
