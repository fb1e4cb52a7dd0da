"""The kills: planned purely, and each done only when what it is to interrupt was seen under way."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from turnkeep.demo.client import Client
from turnkeep.demo.events import ModelStarted, Target, View, Waiting
from turnkeep.demo.progress import Kill, Progress
from turnkeep.demo.sightings import Seen, Sightings
from turnkeep.demo.workers import Workers
from turnkeep.embedded import EmbeddedPostgres
from turnkeep.runner.effects import Policy
from turnkeep.testing import ModelServer

_STEP = 0.02
_MOST = 4


class Moment(StrEnum):
    """What has to be under way when a kill comes."""

    STREAM = "replies streaming"
    REPORT_TOOL = "a tool that must not run twice"
    TRANSACTION = "a transactional tool"
    SAVE = "saves in flight"
    POST = "posts in flight"


_KINDS = [
    (Target.MODEL, Moment.STREAM),
    (Target.MODEL, Moment.STREAM),
    (Target.WORKER, Moment.REPORT_TOOL),
    (Target.WORKER, Moment.TRANSACTION),
    (Target.WORKER, Moment.STREAM),
    (Target.POSTGRES, Moment.SAVE),
    (Target.POSTGRES, Moment.SAVE),
    (Target.POSTGRES, Moment.POST),
    (Target.BOTH, Moment.SAVE),
]
_RARE, _RARE_BEFORE = (Target.WORKER, Moment.TRANSACTION), 5  # late, there may be none any more
_FIRST, _LAST = 0.04, 0.6  # of all messages: between these the kills are due


@dataclass(frozen=True)
class PlannedKill:
    """A kill to be done once `after` messages are stored, with `count` of what it is to interrupt under way."""

    target: Target
    moment: Moment
    after: int
    count: int


def plan(seed: int, messages: int) -> tuple[PlannedKill, ...]:
    """Plan kills of all kinds in an order of the seed's."""
    chance = random.Random(seed)
    kinds = chance.sample(_KINDS, len(_KINDS))
    rare = kinds.index(_RARE)
    kinds.insert(min(rare, _RARE_BEFORE), kinds.pop(rare))
    step = (_LAST - _FIRST) * messages / len(kinds)
    return tuple(
        PlannedKill(
            target, moment, int(_FIRST * messages + step * (number + chance.random())), chance.randint(1, _MOST)
        )
        for number, (target, moment) in enumerate(kinds)
    )


@dataclass(frozen=True)
class Stage:
    """All that can be killed, and how it is started again."""

    server: EmbeddedPostgres
    model: ModelServer
    workers: Workers
    start_worker: Callable[[], None]


class Director:
    """Does the kills of a plan."""

    def __init__(
        self, stage: Stage, client: Client, progress: Progress, sightings: Sightings, view: View, seed: int
    ) -> None:
        self._stage = stage
        self._client = client
        self._progress = progress
        self._sightings = sightings
        self._view = view
        self._chance = random.Random(seed)

    async def run(self, kills: Sequence[PlannedKill]) -> None:
        """Do one kill after the other, as long as there is something to play."""
        for planned in kills:
            await self._until(partial(self._is_due, planned))
            self._view.tell(Waiting(len(self._progress.kills) + 1, planned.moment))
            done = False
            while self._client.playing and not done:
                done = await self._kill(planned)

    def _is_due(self, planned: PlannedKill) -> bool:
        return self._progress.messages >= planned.after

    async def _kill(self, planned: PlannedKill) -> bool:
        """Kill in the right moment, start again, and see that all goes on. False if it was not the right moment."""
        await asyncio.to_thread(self._stage.server.ensure)
        postmaster = await asyncio.to_thread(self._stage.server.postmaster_pid)
        async with self._under_way(planned) as seen:
            if not seen.conversations:
                await asyncio.sleep(_STEP)
                return False
            at = time.time()
            worker = self._stage.workers.name
            self._strike(planned.target, postmaster, seen)
        await self._start_again(planned.target)
        hit = seen.conversations
        if planned.target in (Target.WORKER, Target.BOTH):
            await self._progress.sessions_gone(worker)
            await self._progress.look()
            hit = self._progress.running()
        else:
            await self._progress.look()
        count = seen.confirmed()
        kill = Kill(len(self._progress.kills) + 1, planned.target, seen.words, count, at)
        self._progress.interrupted(kill, hit)
        await self._until(partial(self._progress.is_over, kill))
        return count > 0

    @asynccontextmanager
    async def _under_way(self, planned: PlannedKill) -> AsyncIterator[Seen]:
        sightings = self._sightings
        match planned.moment:
            case Moment.STREAM:
                yield await sightings.streams(planned.count)
            case Moment.REPORT_TOOL:
                yield await sightings.tool(Policy.REPORT)
            case Moment.TRANSACTION:
                yield await sightings.tool(Policy.TRANSACTIONAL)
            case Moment.SAVE:
                running = self._progress.running()
                names = self._chance.sample(running, min(planned.count, len(running)))
                async with sightings.saves(names) as seen:
                    yield seen
            case Moment.POST:
                names = await self._client.hold_posts(planned.count, patience=2.0)
                async with sightings.posts(names, self._client.let_post) as seen:
                    yield seen

    def _strike(self, target: Target, postmaster: int, seen: Seen) -> None:
        """Send SIGKILL.

        Postgres is killed as a whole: what was seen at work in it, and the process that would start it again. Were
        only that one killed, a session that holds a lock might end an instant before those that wait for it notice,
        and they might commit after all.
        """
        if target is Target.MODEL:
            self._stage.model.kill()
        if target in (Target.WORKER, Target.BOTH):
            self._stage.workers.kill()
        if target in (Target.POSTGRES, Target.BOTH):
            for pid in (*seen.backends, postmaster):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._client.postgres_is_killed()

    async def _start_again(self, target: Target) -> None:
        if target is Target.MODEL:
            await asyncio.to_thread(self._stage.model.start)
            self._view.tell(ModelStarted(self._stage.model.pid))
        if target in (Target.WORKER, Target.BOTH):
            self._stage.start_worker()
        if target in (Target.POSTGRES, Target.BOTH):
            await asyncio.to_thread(self._stage.server.ensure)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self._client.playing:
            if condition():
                return
            await asyncio.sleep(_STEP)
