"""What is under way at a moment, seen from outside: streams, tools, and writes to the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from turnkeep.demo.outside import OutsideReader, unended
from turnkeep.demo.statements import HOLD, IN_FLIGHT
from turnkeep.embedded import EmbeddedPostgres
from turnkeep.model import conversation_uuid
from turnkeep.runner.effects import Policy
from turnkeep.testing import ModelServer

_STEP = 0.005  # seconds between two looks: nobody announces what is waited for
_PATIENCE = 1.0  # seconds for all that is wanted to be under way
_CHUNKS = 3  # of a reply that has certainly begun
_SAVES = ["%.save\\_v1(%", "%.take\\_v1(%"]
_POSTS = ["%.post\\_v1(%"]

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


@dataclass(frozen=True)
class Seen:
    """What was under way, in words and in those conversations. None of them: all had ended.

    `backends` are the server processes at work for it; `confirmed` counts, after a kill, what it has certainly hit.
    """

    words: str
    conversations: Sequence[str]
    confirmed: Callable[[], int]
    backends: Sequence[int] = ()


class Sightings:
    """Looks until something is under way. Gives up when nothing is `playing` any more."""

    def __init__(
        self,
        server: EmbeddedPostgres,
        model: ModelServer,
        outside: Path,
        names_by_text: Mapping[str, str],
        playing: set[str],
    ) -> None:
        self._server = server
        self._model = model
        self._outside = OutsideReader(outside)
        self._names_by_text = names_by_text
        self._playing = playing

    async def streams(self, count: int) -> Seen:
        """Wait for `count` replies in the middle, or after a while for any."""
        names: list[str] = []
        deadline = time.monotonic() + _PATIENCE
        while self._playing and not (len(names) >= count or (names and time.monotonic() > deadline)):
            await asyncio.sleep(_STEP)
            status = await asyncio.to_thread(self._model.status)
            pairs = zip(status["users"], status["chunks"], strict=True)
            names = [self._names_by_text[user] for user, chunks in pairs if chunks >= _CHUNKS]
        return Seen(_count(len(names), "reply streaming", "replies streaming"), names, lambda: len(names))

    async def tool(self, policy: Policy) -> Seen:
        """Wait until a tool of that policy has just begun."""
        self._outside.look()
        begun = None
        while self._playing and begun is None:
            await asyncio.sleep(_STEP)
            running = unended(self._outside.look())
            begun = next((mark for mark in running if mark.policy is policy), None)
        if begun is None:
            return Seen("no tool", [], lambda: 0)
        running = self._outside.under_way()

        def confirmed() -> int:
            self._outside.look()
            left = [mark for mark in running if mark in self._outside.under_way()]
            return len(left) if begun in left else 0

        words = f"{'transaction of' if policy is Policy.TRANSACTIONAL else 'tool'} {begun.tool}"
        return Seen(words, [mark.conversation for mark in running], confirmed)

    @asynccontextmanager
    async def saves(self, names: Sequence[str]) -> AsyncIterator[Seen]:
        """Hold the next saves of those conversations inside the database."""
        async with self._held(names, _SAVES, lambda: None) as backends:
            words = _count(len(backends), "save in flight", "saves in flight")
            yield Seen(words, names if backends else [], lambda: len(backends), backends)

    @asynccontextmanager
    async def posts(self, names: Sequence[str], let_go: Callable[[], None]) -> AsyncIterator[Seen]:
        """Hold posts to those conversations inside the database; `let_go` lets them come."""
        try:
            async with self._held(names, _POSTS, let_go) as backends:
                words = _count(len(backends), "post in flight", "posts in flight")
                yield Seen(words, names if backends else [], lambda: len(backends), backends)
        finally:
            let_go()

    @asynccontextmanager
    async def _held(
        self, names: Sequence[str], functions: Sequence[str], let_go: Callable[[], None]
    ) -> AsyncIterator[list[int]]:
        """Hold writes in flight for as long as the block lasts; give the pids that are at them."""
        async with (
            _connection(self._server.conninfo, autocommit=True) as watcher,
            _connection(self._server.conninfo) as holder,
        ):
            await holder.execute(HOLD, ([conversation_uuid(name) for name in names],))
            let_go()
            pids: list[int] = []
            deadline = time.monotonic() + _PATIENCE
            while names and self._playing.intersection(names):
                rows = await (await watcher.execute(IN_FLIGHT, (list(functions),))).fetchall()
                pids = [pid for (pid,) in rows]
                if len(pids) >= len(names) or time.monotonic() > deadline:
                    break  # a worker that claims what is held waits too, and all else waits for it
                await asyncio.sleep(_STEP)
            yield pids


@asynccontextmanager
async def _connection(conninfo: str, *, autocommit: bool = False) -> AsyncIterator[Connection]:
    """A connection that is closed at the end, whatever has become of it; its transaction is gone then."""
    connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=autocommit)
    try:
        yield connection
    finally:
        await connection.close()


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
