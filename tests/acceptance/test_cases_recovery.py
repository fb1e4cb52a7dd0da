"""A worker dies with everything it runs, and Postgres restarts while another takes over: nothing is stranded."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.acceptance.embedded_users import own_postgres
from tests.observing import Observer, until
from turnkeep import AsyncBranch, AsyncStore
from turnkeep.embedded import EmbeddedPostgres

RUNS = 250
USER = {"role": "user", "content": "go"}


@pytest.fixture
def victim() -> Iterator[EmbeddedPostgres]:
    """A server of this test's own."""
    with own_postgres() as running:
        yield running


@pytest.fixture
def dsn(victim: EmbeddedPostgres) -> str:
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(victim.conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    conninfo = make_conninfo(victim.conninfo, dbname=name)
    turnkeep.migrate(conninfo)
    return conninfo


async def test_concurrent_resume_of_250_runs_of_a_dead_worker_survives_a_restart_of_postgres(
    victim: EmbeddedPostgres, dsn: str, advance: Callable[[timedelta], None]
) -> None:
    async with turnkeep.open(dsn) as dead:
        for number in range(RUNS):
            branch = await dead.conversation(f"c{number}", agent_id="support")
            await branch.claim(owner="dead", seconds=15)
            await branch.begin_turn(USER)
    with Observer(dsn) as observer:
        advance(timedelta(seconds=3600))
        assert observer.counts()["branch"] == RUNS
    ended: set[str] = set()

    async def recover(store: AsyncStore) -> None:
        while len(ended) < RUNS:
            claimed: list[AsyncBranch] = []
            try:
                claimed = await store.claim_waiting(["support"], limit=20, owner="alive")
                for branch in claimed:
                    assert branch.turn_open
                    await branch.save([{"role": "assistant", "content": "recovered"}], final=True)
                    await branch.release()
                    ended.add(branch.external_id)
            except turnkeep.UnavailableError:
                continue
            await asyncio.sleep(0)

    async with turnkeep.open(dsn, timeout=60) as store:
        recovering = asyncio.ensure_future(recover(store))
        await until(lambda: len(ended) >= 10, "the beginning of the recovery")
        await asyncio.to_thread(_restart, victim)
        await asyncio.wait_for(recovering, 300)
        assert await store.interrupted() == []
        for summary in await store.conversations(limit=1000):
            assert (summary.status, summary.sub_step) == ("idle", 1)


def _restart(victim: EmbeddedPostgres) -> None:
    with psycopg.connect(victim.conninfo) as connection:
        ((pid,),) = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchall()
    os.kill(int(pid.splitlines()[0]), signal.SIGKILL)
    victim.ensure()
