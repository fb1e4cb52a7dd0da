"""The parent's side of the kill tests: it starts writers, and keeps a ledger outside the database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.crash.writer import SCRIPTS
from tests.observing import Observer

Event = dict[str, Any]

_ROOT = Path(__file__).parents[2]
_WRITER = Path(__file__).with_name("writer.py")


class Nursery:
    """A warm process that forks writers. It is never killed, and neither is the one that holds this."""

    def __init__(self, *program: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *(program or (str(_WRITER),))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT
        )
        assert self._process.stdin
        assert self._process.stdout
        self._words, self._events = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._words.close()
        self._process.wait()
        self._events.close()

    def start(self, job: Event) -> Iterator[Event]:
        """Start a writer and give its events, the last of which is its exit."""
        self._words.write(json.dumps(job).encode() + b"\n")
        self._words.flush()
        while True:
            event: Event = json.loads(self._events.readline())
            yield event
            if "exit" in event:
                return

    def go_on(self) -> None:
        """Let a writer go on that waits for a word."""
        self._words.write(b"\n")
        self._words.flush()


@dataclass(frozen=True)
class Entry:
    """A step of the script that was acknowledged."""

    number: int
    kind: str
    keyed: bool
    write_id: str
    place: list[int] | None


class Ledger:
    """What the writers of one conversation meant to do and what was acknowledged, in a file of its own."""

    def __init__(self, directory: Path, script: str) -> None:
        self.script = script
        self.conversation = uuid.uuid4()
        self._path = directory / f"{self.conversation}.ledger"
        self._path.touch()

    def keep(self, event: Event) -> None:
        """Write down an event, durably."""
        if "intent" in event or "acknowledged" in event:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def _events(self) -> list[Event]:
        return [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]

    def acknowledged(self) -> list[Entry]:
        """The acknowledged steps in order, each once. A step acknowledged twice had the same outcome."""
        entries: dict[int, Entry] = {}
        for event in self._events():
            if "acknowledged" in event:
                number = event["acknowledged"]
                kind, arguments = SCRIPTS[self.script][number]
                keyed = arguments.get("key") is not None
                entries[number] = Entry(number, kind, keyed, event["write_id"], event["place"])
        assert list(entries) == list(range(len(entries))), "a step was acknowledged before the one before it"
        return list(entries.values())

    def job(self, dsn: str, *, kill_at: int = 0, moment: str = "", acknowledge_early: bool = False) -> Event:
        """What the next writer is told: go on after the last acknowledged step, with its intent if there is one."""
        done = self.acknowledged()
        events = self._events()
        branches = [event["branch"] for event in events if "acknowledged" in event]
        intents = [event["write_id"] for event in events if event.get("intent") == len(done)]
        assert len(set(intents)) <= 1, "an intent was sent under two ids"
        return {
            "dsn": dsn,
            "script": self.script,
            "conversation": str(self.conversation),
            "next": len(done),
            "intent": intents[-1] if intents else None,
            "branch": branches[-1] if branches else None,
            "kill_at": kill_at,
            "moment": moment,
            "acknowledge_early": acknowledge_early,
        }

    def check_acknowledged(self, observer: Observer) -> None:
        """Every acknowledged write is in the database, once and where it was said to be (G1, G4)."""
        for entry in self.acknowledged():
            found = observer.rows(
                "SELECT branch, turn_index, sub_step FROM turnkeep.checkpoint"
                " WHERE conversation_id = %s AND (write_id = %s OR %s)",
                self.conversation,
                entry.write_id,
                entry.keyed,
            )
            places = [list(place) for place in found]
            match entry.kind:
                case "begin" if entry.keyed:
                    assert entry.place in places, f"acknowledged and lost: {entry}"
                case "begin" | "save":
                    assert len(places) == 1, f"acknowledged and there {len(places)} times: {entry}"
                    assert entry.place in (places[0], None), f"acknowledged elsewhere than at {places[0]}: {entry}"
                case "fork":
                    forks = observer.rows("SELECT FROM turnkeep.branch WHERE fork_id = %s", entry.write_id)
                    assert len(forks) == 1, f"acknowledged, and there are {len(forks)} branches: {entry}"

    def check_consistent(self, observer: Observer) -> None:
        """Positions have no gap, no write id is there twice, and the heads are the newest checkpoints."""
        broken = observer.rows(
            "SELECT b.branch, b.next_position, m.count, m.last FROM turnkeep.branch AS b CROSS JOIN LATERAL ("
            "  SELECT count(*), coalesce(max(m.position), -1) AS last FROM turnkeep.message AS m"
            "  WHERE m.conversation_id = b.conversation_id AND m.branch = b.branch) AS m"
            " WHERE b.conversation_id = %s AND (m.count <> b.next_position OR m.last <> b.next_position - 1)",
            self.conversation,
        )
        assert not broken, f"(branch, next position, messages, last position): {broken}"
        doubled = observer.rows(
            "SELECT write_id, count(*) FROM turnkeep.checkpoint WHERE conversation_id = %s"
            " GROUP BY write_id HAVING count(*) > 1",
            self.conversation,
        )
        assert not doubled, f"write ids there more than once: {doubled}"
        ahead = observer.rows(
            "SELECT c.branch, c.turn_index, c.sub_step FROM turnkeep.checkpoint AS c"
            " JOIN turnkeep.branch AS b USING (conversation_id, branch)"
            " WHERE conversation_id = %s AND (c.turn_index, c.sub_step) > (b.turn_index, b.sub_step)",
            self.conversation,
        )
        assert not ahead, f"checkpoints beyond their branch's head: {ahead}"
