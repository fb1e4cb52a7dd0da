"""What was intended and what was acknowledged, kept outside the database by a process that is never killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnkeep.demo.saves import Place

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Intent:
    """A save that is about to be made: where it belongs, and the id that makes repeating it harmless."""

    conversation: str
    turn: int
    sub_step: int
    write_id: str

    @property
    def place(self) -> Place:
        """(turn, sub_step)."""
        return self.turn, self.sub_step


@dataclass
class Ledger:
    """Intents by write id in the order they came, and the write ids that were acknowledged."""

    intents: dict[str, Intent] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)

    def take(self, record: Record) -> None:
        """Enter a record: an intent with all its fields, or `{"acknowledged": write_id}`."""
        if "acknowledged" in record:
            self.acknowledged.add(self.intents[record["acknowledged"]].write_id)
        else:
            intent = Intent(**record)
            self.intents[intent.write_id] = intent

    def open(self) -> list[Intent]:
        """The intents that nobody has acknowledged."""
        return [intent for key, intent in self.intents.items() if key not in self.acknowledged]

    def last_acknowledged(self) -> dict[str, Place]:
        """The newest acknowledged place of each conversation that has one."""
        newest: dict[str, Place] = {}
        for key in self.acknowledged:
            intent = self.intents[key]
            newest[intent.conversation] = max(intent.place, newest.get(intent.conversation, intent.place))
        return newest


class LedgerFile:
    """A ledger on disk. Nothing is in `ledger` that has not been fsynced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger()
        self.syncs = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def write(self, records: Iterable[Record]) -> None:
        """Write records, and return when they are on disk: one fsync for all of them."""
        records = list(records)
        if not records:
            return
        left = memoryview("".join(json.dumps(record) + "\n" for record in records).encode())
        while left:
            left = left[os.write(self._file, left) :]
        os.fsync(self._file)
        self.syncs += 1
        for record in records:
            self.ledger.take(record)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_ledger(path: Path) -> Ledger:
    """Read a ledger back from its file."""
    ledger = Ledger()
    for line in path.read_text(encoding="utf-8").splitlines():
        ledger.take(json.loads(line))
    return ledger
