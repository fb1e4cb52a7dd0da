"""The kills: planned purely, and each done only when saves were seen at work in the database."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from turnkeep.demo.client import Client, DemoError
from turnkeep.demo.events import Holding, Target, View
from turnkeep.demo.statements import HOLD, IN_FLIGHT
from turnkeep.embedded import EmbeddedPostgres
from turnkeep.model import conversation_uuid

_TARGETS = [*[Target.WRITER] * 4, *[Target.POSTGRES] * 3, *[Target.BOTH] * 2]
_MOST_HELD = 6
_PATIENCE = 30.0
_STEP = 0.005  # seconds between two looks: Postgres announces to nobody that a lock is waited for

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


@dataclass(frozen=True)
class PlannedKill:
    """A kill to be done once `after` saves are acknowledged, with the next saves of `hold` conversations in flight."""

    target: Target
    after: int
    hold: int


def plan(seed: int, saves: int) -> tuple[PlannedKill, ...]:
    """Plan kills of all kinds in an order of the seed's, spread over the first three quarters of all saves."""
    chance = random.Random(seed)
    targets = chance.sample(_TARGETS, len(_TARGETS))
    step = saves * 3 // 4 // len(targets)
    return tuple(
        PlannedKill(target, step * number + chance.randint(step // 2, step), chance.randint(1, _MOST_HELD))
        for number, target in enumerate(targets)
    )


class Director:
    """Does the kills of a plan."""

    def __init__(self, client: Client, server: EmbeddedPostgres, seed: int, view: View) -> None:
        self._client = client
        self._server = server
        self._chance = random.Random(seed)
        self._view = view

    async def run(self, kills: Sequence[PlannedKill]) -> None:
        """Do one kill after the other, as long as there is something to play."""
        client = self._client
        for planned in kills:
            await client.until(partial(self._is_due, planned), f"{planned.after} acknowledged saves")
            while client.playing and not await self._kill(planned):
                pass  # those that were held had come to their end

    def _is_due(self, planned: PlannedKill) -> bool:
        return len(self._client.ledger.acknowledged) >= planned.after or not self._client.playing

    async def _kill(self, planned: PlannedKill) -> bool:
        """Hold saves in flight, kill, let go, and see it recover. False if nothing was left to be held."""
        client = self._client
        playing = sorted(client.playing)
        names = self._chance.sample(playing, min(planned.hold, len(playing)))
        await asyncio.to_thread(self._server.ensure)
        postmaster = await asyncio.to_thread(self._server.postmaster_pid)
        async with (
            _connection(self._server.conninfo, autocommit=True) as watcher,
            _connection(self._server.conninfo) as holder,
        ):
            await holder.execute(HOLD, ([conversation_uuid(name) for name in names],))
            self._view.tell(Holding(len(client.kills) + 1, tuple(names)))
            backends = await self._in_flight(watcher, holder.info.backend_pid, names)
            if not backends:
                return False
            if planned.target is not Target.POSTGRES:
                client.kill_writer()
            if planned.target is not Target.WRITER:
                _kill_postgres(postmaster, backends)
            kill = client.killed(planned.target, len(backends), names)
        if planned.target is not Target.POSTGRES:
            await client.writer_ended()
            await client.start_writer()
        await client.until(
            lambda: kill.recovery is not None or not client.playing, f"the recovery from kill {kill.number}"
        )
        return True

    async def _in_flight(self, watcher: Connection, holder: int, names: Sequence[str]) -> list[int]:
        """Wait until a save of each of the conversations waits for the holder; give the pids that run them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while held := self._client.playing.intersection(names):
                    self._client.raise_failure()
                    rows = await (await watcher.execute(IN_FLIGHT, (holder,))).fetchall()
                    if len(rows) >= len(held):
                        return [pid for (pid,) in rows]
                    await asyncio.sleep(_STEP)
                return []
        raise DemoError(f"no save came to be in flight within {_PATIENCE:g} s for {', '.join(names)}")


@asynccontextmanager
async def _connection(conninfo: str, *, autocommit: bool = False) -> AsyncIterator[Connection]:
    """A connection that is closed at the end, whatever has become of it; its transaction is gone then."""
    connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=autocommit)
    try:
        yield connection
    finally:
        await connection.close()


def _kill_postgres(postmaster: int, backends: Sequence[int]) -> None:
    """Kill the server as a whole: what is at work in it, and the process that would start it again.

    Were only the postmaster killed, its session that holds the lock might end an instant before the saves that
    wait for it notice, and they might commit after all. Like this they certainly have not.
    """
    for pid in (*backends, postmaster):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
