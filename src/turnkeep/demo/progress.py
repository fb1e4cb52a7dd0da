"""How far the conversations are in the database, and how long kills kept them from going on."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg

from turnkeep.demo.events import Killed, Moved, Recovered, Target, View
from turnkeep.demo.statements import HEADS, SESSIONS
from turnkeep.demo.workers import DemoError

_STEP = 0.04  # seconds between two looks
_SOON = 0.005  # the same, where the end is near
_BUSY = {"ready", "running"}
_PATIENCE = 60.0  # seconds without progress, after which the demo gives up

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


@dataclass(frozen=True)
class Head:
    """Where a conversation is, by what Postgres has committed."""

    turn: int
    sub_step: int
    messages: int
    status: str


@dataclass
class Kill:
    """A kill, what was seen under way when it came, and where it found the conversations that it interrupted.

    `in_flight` counts what was seen; 0 is a kill that came a moment too late, and does not count. It came after `at`
    and before `until`, by the wall clock. `recovery` are the seconds until all of those conversations had more messages
    in the database.
    """

    number: int
    target: Target
    seen: str
    in_flight: int
    at: float
    until: float = math.inf
    found_at: dict[str, int] = field(default_factory=dict)
    recovery: float | None = None


class Progress:
    """Looks at the database by plain SQL again and again, and tells the view what has moved."""

    def __init__(self, conninfo: str, view: View, playing: set[str]) -> None:
        self.heads: dict[str, Head] = {}
        self.kills: list[Kill] = []
        self._conninfo = conninfo
        self._view = view
        self._playing = playing
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    @property
    def messages(self) -> int:
        """How many messages all conversations have."""
        return sum(head.messages for head in self.heads.values())

    def running(self) -> list[str]:
        """The conversations that a worker held when last looked at."""
        return sorted(name for name, head in self.heads.items() if head.status == "running")

    async def watch(self, check: Callable[[], None]) -> None:
        """Go on looking for ever. Raises `DemoError` once nothing moves any more, and what `check` raises."""
        messages, since = -1, time.monotonic()
        while True:
            check()
            await self.look()
            if self.messages != messages:
                messages, since = self.messages, time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                raise DemoError(f"nothing has moved for {_PATIENCE:g} s, at {messages} messages")
            await asyncio.sleep(_STEP)

    async def look(self) -> None:
        """See how far all are, once Postgres answers."""
        for name, turn, sub_step, messages, status in await self._fetch(HEADS):
            before, head = self.heads.get(name), Head(turn, sub_step, messages, status)
            self.heads[name] = head
            if before is None or messages != before.messages:
                self._view.tell(Moved(name, messages, turn, sub_step))
        for kill in self.kills:
            if kill.recovery is None and kill.found_at and not any(self._stopped_by(kill)):
                kill.recovery = time.time() - kill.at
                self._view.tell(Recovered(kill.number, kill.recovery))

    def interrupted(self, kill: Kill, names: Iterable[str]) -> None:
        """Note where a kill found the conversations that it interrupted: where they are now."""
        kill.until = time.time()
        kill.found_at = {name: self.heads[name].messages for name in names if name in self.heads}
        self.kills.append(kill)
        self._view.tell(Killed(kill.number, kill.target, kill.seen, tuple(kill.found_at)))

    def is_over(self, kill: Kill) -> bool:
        """Whether all that a kill interrupted has gone on, or ended."""
        return not any(self._stopped_by(kill))

    async def sessions_gone(self, application: str) -> None:
        """Wait until Postgres has noticed the end of a killed process: nothing it sent can commit any more."""
        while True:
            ((sessions,),) = await self._fetch(SESSIONS, [application])
            if not sessions:
                return
            await asyncio.sleep(_SOON)

    async def settled(self) -> None:
        """Wait until no worker holds anything, or has something to do."""
        while True:
            if not any(head.status in _BUSY for head in self.heads.values()):
                return
            await asyncio.sleep(_STEP)

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()

    def _stopped_by(self, kill: Kill) -> Iterable[bool]:
        return (
            self.heads[name].messages <= messages and name in self._playing for name, messages in kill.found_at.items()
        )

    async def _fetch(self, statement: LiteralString, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Ask until there is an answer: Postgres may be away."""
        async with self._lock:
            while True:
                try:
                    if self._connection is None or self._connection.closed:
                        self._connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
                    return await (await self._connection.execute(statement, parameters)).fetchall()
                except psycopg.OperationalError:
                    if self._connection is not None:
                        await self._connection.close()
                    await asyncio.sleep(_STEP)
