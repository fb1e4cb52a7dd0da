"""What was posted and what was acknowledged, kept outside the database by a process that is never killed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """A message that is about to be posted. `key` is its idempotency key, which no other has."""

    conversation: str
    turn: int
    key: str


@dataclass
class Ledger:
    """Requests by key in the order they came, and the keys of those that were acknowledged, and answered."""

    requests: dict[str, Request] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)

    def take(self, record: Record) -> None:
        """Enter a record: `{"intended": request}`, `{"acknowledged": key}` or `{"answered": key}`."""
        match record:
            case {"intended": request}:
                self.requests[request["key"]] = Request(**request)
            case {"acknowledged": key}:
                self.acknowledged.add(self.requests[key].key)
            case {"answered": key}:
                self.answered.add(self.requests[key].key)
            case _:
                raise ValueError(f"no record of a ledger: {record!r}")


class LedgerFile:
    """A ledger on disk. Nothing is in `ledger` that has not been fsynced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def intend(self, request: Request) -> None:
        """Write down that a request is about to be posted."""
        self._write({"intended": asdict(request)})

    def acknowledge(self, request: Request) -> None:
        """Write down that its post has returned."""
        self._write({"acknowledged": request.key})

    def answer(self, request: Request) -> None:
        """Write down that its reply has come."""
        self._write({"answered": request.key})

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, record: Record) -> None:
        left = memoryview(json.dumps(record).encode() + b"\n")
        while left:
            left = left[os.write(self._file, left) :]
        os.fsync(self._file)
        self.ledger.take(record)


def read_ledger(path: Path) -> Ledger:
    """Read a ledger back from its file."""
    ledger = Ledger()
    for line in path.read_text(encoding="utf-8").splitlines():
        ledger.take(json.loads(line))
    return ledger
