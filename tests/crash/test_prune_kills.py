"""Kill -9 around and inside every statement of pruning and expiry: what stays is whole, the next run does the rest."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, gate, until
from turnkeep import AsyncStore

DAY = timedelta(days=1)
SPAWN = multiprocessing.get_context("spawn")


def life(dsn: str, what: str, kill_at: int, moment: str) -> None:
    """A process that prunes, or expires, in small steps, and kills itself at a statement."""
    from turnkeep.store import _async_database, _async_prune

    for name in ("_FIRST_ROWS", "_LEAST_ROWS", "_MOST_ROWS"):
        setattr(_async_prune, name, 4)
    fetch = _async_database.AsyncDatabase.fetch
    count = 0

    async def killed(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += name != "revision"
        if count == kill_at and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        rows = await fetch(self, name, *args, **kwargs)
        if count == kill_at and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    _async_database.AsyncDatabase.fetch = killed  # type: ignore[method-assign]

    async def run() -> None:
        async with turnkeep.open(dsn) as store:
            await do(store, what)

    asyncio.run(run())


async def do(store: AsyncStore, what: str) -> None:
    """Prune or expire all there is."""
    if what == "prune":
        await store.prune_all(keep="heads", older_than=30 * DAY)
    else:
        await store.expire()


def lived(dsn: str, what: str, kill_at: int = 0, moment: str = "") -> int | None:
    process = SPAWN.Process(target=life, args=(dsn, what, kill_at, moment))
    process.start()
    process.join()
    return process.exitcode


async def make(store: AsyncStore, dsn: str, advance: Callable[[timedelta], None], start: timedelta) -> None:
    """Two conversations with forks, a compaction, a copy and open calls, all old."""
    advance(start)
    for name in ("a", "b"):
        branch = await store.conversation(name, ttl=50 * DAY)
        for number in range(4):
            await branch.begin_turn({"role": "user", "n": number})
            await branch.save([{"n": number}], tool_calls=[{"id": "1"}], state={"n": number})
            if number == 2:
                side = await store.fork(name)
                await side.save([{"side": 1}])
            await branch.save([{"r": number}], tool_results=[{"tool_call_id": "1"}], final=True)
        await branch.begin_turn({"role": "user"})
        await branch.save_all([{"summary": 1}, *branch.messages[-2:]], final=True)
    await store.conversation("child", parent="a")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.document SET text = 't', next_try_at = NULL")
    advance(start + 60 * DAY)


async def contents(store: AsyncStore) -> dict[Any, Any]:
    found = {}
    for one in await store.conversations():
        for branch in await store.branches(one.conversation_id):
            for place in await store.history(one.conversation_id, branch=branch.branch):
                at = (place.turn_index, place.sub_step)
                restored = await store.restore(one.conversation_id, branch=branch.branch, at=at)
                found[one.external_id, branch.branch, *at] = (
                    restored.message_texts,
                    restored.state_text,
                    restored.pending,
                )
    return found


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("what", ["prune", "expire"])
async def test_killed_around_any_statement_the_next_run_does_the_rest(
    dsn: str, store: AsyncStore, observer: Observer, advance: Any, what: str, moment: str
) -> None:
    kill_at, finished, start = 0, False, timedelta(0)
    while not finished:
        kill_at += 1
        await make(store, dsn, advance, start)
        start += 100 * DAY
        before = await contents(store)
        code = lived(dsn, what, kill_at, moment)
        finished = code == 0  # it has fewer statements than that
        assert code in (0, -signal.SIGKILL)
        between = await contents(store)
        assert between == {place: before[place] for place in between}
        await do(store, what)
        after = await contents(store)
        assert after == {place: before[place] for place in after}
        counts = {name: count for name, count in observer.counts().items() if count and name != "migration"}
        if what == "expire":
            assert counts == {}
            continue
        # Heads, the open turns of the forks with where they were forked.
        assert sorted(after) == sorted(
            (name, *place)
            for name in ("a", "b")
            for place in ((0, 2, 0), (0, 2, 1), (0, 4, 1), (1, 2, 0), (1, 2, 1), (1, 2, 2))
        )
        assert (counts["checkpoint"], counts["message"]) == (8, 2 * (8 + 1 + 3))
        for name in ("a", "b"):
            await store.erase(name)
    assert kill_at > (10 if what == "prune" else 3)


@pytest.mark.parametrize("table", ["checkpoint", "message"])
@pytest.mark.parametrize("what", ["prune", "expire"])
async def test_killed_in_the_middle_of_a_statement_nothing_of_it_stands(
    dsn: str, store: AsyncStore, observer: Observer, advance: Any, what: str, table: str
) -> None:
    await make(store, dsn, advance, timedelta(0))
    before, rows = await contents(store), observer.counts()
    with gate(dsn, f"turnkeep.{table}", "DELETE"):
        process = SPAWN.Process(target=life, args=(dsn, what, 0, ""))
        process.start()
        await observer.see_waiting(1)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        # Whoever goes on in the server does so for nobody.
        for (pid,) in observer.rows(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ):
            observer.rows("SELECT pg_terminate_backend(%s)", pid)
        await until(lambda: not observer.waiting(), "its end in the server")
    if table == "checkpoint" or what == "expire":
        assert observer.counts() == rows
        assert await contents(store) == before
    between = await contents(store)
    assert between == {place: before[place] for place in between}
    await do(store, what)
    after = await contents(store)
    assert after == {place: before[place] for place in after}
    assert len(after) == (0 if what == "expire" else 12)
