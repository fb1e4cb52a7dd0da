"""The process that is never killed: it keeps the ledger, starts the writers, and knows how far they are."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnkeep.demo.events import Acknowledged, Ended, Killed, Recovered, Restored, Target, View, WriterStarted
from turnkeep.demo.ledger import Intent, LedgerFile
from turnkeep.errors import TurnkeepError

SECONDS_A_CONVERSATION = 6.0
_PATIENCE = 60.0  # seconds without what is waited for, after which the demo gives up
_CHUNK = 65536


class DemoError(TurnkeepError):
    """The demo could not go on, for a reason that is not among those it is there to show."""


@dataclass
class Kill:
    """A kill, and after how many seconds the first acknowledgement came that was produced after it.

    Such a one is of a write in `held`, which was at work in the database when it was killed; or of an intent
    after the first `intents`; or it came from a later writer than the killed one, `writer`.
    """

    number: int
    target: Target
    in_flight: int
    at: float
    writer: int
    intents: int
    held: frozenset[str]
    recovery: float | None = None

    def comes_after(self, write_id: str, number: int, writer: int) -> bool:
        """Whether an acknowledgement was certainly produced after the kill."""
        return write_id in self.held or number >= self.intents or writer > self.writer


class Client:
    """Keeps the ledger beside the database, and one writer at a time at work."""

    def __init__(self, database: str, directory: Path, names: Sequence[str], view: View, *, sabotage: bool) -> None:
        self.file = LedgerFile(directory / "ledger.jsonl")
        self.ledger = self.file.ledger
        self.playing = set(names)
        self.kills: list[Kill] = []
        self.sent_again = 0
        self.repeated = 0
        self._database = database
        self._errors = directory / "writer.log"
        self._view = view
        self._sabotage = sabotage
        self._writers = 0
        self._numbers: dict[str, int] = {}  # of the intents, in the order they came
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._killed = False
        self._news = asyncio.Event()

    # -- writers

    async def start_writer(self) -> None:
        """Start a writer on what is left to play."""
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "turnkeep.demo.writer"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the client, which ends it
            )
        self._writers += 1
        self._killed = False
        again = [intent for intent in self.ledger.open() if intent.conversation in self.playing]
        self.sent_again += len(again)
        self._view.tell(WriterStarted(self._writers, self._process.pid))
        self._say(
            {
                "database": self._database,
                "conversations": sorted(self.playing),
                "open": [asdict(intent) for intent in again],
                "seconds": SECONDS_A_CONVERSATION,
                "sabotage": self._sabotage,
                "acknowledged": self.ledger.last_acknowledged(),
            }
        )
        self._reading = asyncio.create_task(self._read(self._process, self._writers))
        self._reading.add_done_callback(lambda _: self._news.set())

    def kill_writer(self) -> None:
        """Kill the writer. `writer_ended` waits for its end."""
        self._killed = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def writer_ended(self) -> None:
        """Wait until the writer has ended, and all that it said is in the ledger."""
        if self._reading is not None and self._process is not None:
            await self._reading
            await self._process.wait()

    async def close(self) -> None:
        """Leave nothing running."""
        try:
            self.kill_writer()
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.wait([self._reading])
            if self._process is not None:
                await self._process.wait()
        finally:
            self.file.close()

    # -- kills

    def killed(self, target: Target, in_flight: int, conversations: Sequence[str]) -> Kill:
        """Note a kill that has just been done, while the next saves of those conversations were held in flight."""
        kill = Kill(
            number=len(self.kills) + 1,
            target=target,
            in_flight=in_flight,
            at=time.monotonic(),
            writer=self._writers if self._killed else sys.maxsize,
            intents=len(self.ledger.intents),
            held=frozenset(i.write_id for i in self.ledger.open() if i.conversation in conversations),
        )
        self.kills.append(kill)
        self._view.tell(Killed(kill.number, target, in_flight))
        return kill

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something is so. Raises `DemoError` if the writer fails, or it takes too long."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while not condition():
                    self.raise_failure()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise DemoError(f"waited {_PATIENCE:g} s in vain for {what}") from None

    def raise_failure(self) -> None:
        """Raise what keeps the writer from going on: its end that nobody asked for, or an error of our own."""
        if self._reading is not None and self._reading.done() and self.playing and not self._killed:
            self._reading.result()
            raise DemoError(f"the writer ended by itself. Its last words: {self._last_words()}")

    # -- what the writer says

    def _say(self, record: Mapping[str, Any]) -> None:
        pipe = self._process.stdin if self._process is not None else None
        if pipe is not None and not pipe.is_closing() and not self._killed:
            pipe.write(json.dumps(record).encode() + b"\n")

    async def _read(self, process: Process, writer: int) -> None:
        """Take in what a writer says until its end: all that is there at once, with one fsync."""
        rest = b""
        while process.stdout is not None and (chunk := await process.stdout.read(_CHUNK)):
            *lines, rest = (rest + chunk).split(b"\n")
            self._take([json.loads(line) for line in lines], writer)
            self._news.set()

    def _take(self, said: Sequence[Mapping[str, Any]], writer: int) -> None:
        self.file.write(
            one["intent"] if "intent" in one else {"acknowledged": one["acknowledged"]}
            for one in said
            if "intent" in one or "acknowledged" in one
        )
        for one in said:
            match one:
                case {"intent": {"write_id": write_id}}:
                    self._numbers[write_id] = len(self._numbers)
                    self._say({"go": write_id})
                case {"acknowledged": write_id, "repeated": repeated}:
                    self._acknowledged(self.ledger.intents[write_id], repeated, writer)
                case {"restored": count, "messages": messages, "pending": pending, "seconds": seconds}:
                    self._view.tell(Restored(writer, count, messages, pending, seconds))
                case {"ended": name} | {"stuck": name}:
                    self.playing.discard(name)
                    self._view.tell(Ended(name, one.get("why")))

    def _acknowledged(self, intent: Intent, repeated: bool, writer: int) -> None:
        self.repeated += repeated
        self._view.tell(Acknowledged(intent.conversation, intent.place, repeated, len(self.ledger.acknowledged)))
        number = self._numbers[intent.write_id]
        for kill in self.kills:
            if kill.recovery is None and kill.comes_after(intent.write_id, number, writer):
                kill.recovery = time.monotonic() - kill.at
                self._view.tell(Recovered(kill.number, kill.recovery))

    def _last_words(self) -> str:
        lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "none"
