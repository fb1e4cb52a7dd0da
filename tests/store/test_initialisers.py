"""The schema made and changed by several processes at once, with one of them killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.observing import Observer, table_held, transaction, until
from turnkeep.store import status

MIGRATE = "import sys, turnkeep; assert turnkeep.migrate(sys.argv[1]).current"


@pytest.fixture
def observer(empty_dsn: str) -> Iterator[Observer]:
    with Observer(empty_dsn) as opened:
        yield opened


async def initialisers(dsn: str, count: int) -> list[Process]:
    """Start processes that all make the schema."""
    return [await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, dsn, stderr=PIPE) for _ in range(count)]


async def check_all_succeeded(processes: list[Process]) -> None:
    said = [(await process.communicate())[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said


async def check_usable(dsn: str) -> None:
    """The schema is whole: a turn goes through it, and the view shows it."""
    assert status(dsn).current
    async with turnkeep.open(dsn) as store:
        branch = await store.conversation("c")
        await branch.begin_turn({"role": "user", "content": "hello"}, key="k")
        await branch.save([{"role": "assistant", "content": "hi"}], final=True)
        await store.fork("c")
    with Observer(dsn) as observer:
        assert len(observer.rows("SELECT messages, embedding FROM turnkeep.agent_checkpoints")) == 2


async def test_eight_initialisers_at_once_make_one_schema(empty_dsn: str, observer: Observer) -> None:
    with transaction(empty_dsn) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('turnkeep turnkeep', 0))")
        processes = await initialisers(empty_dsn, 8)
        await observer.see_waiting(8)
        assert not status(empty_dsn).exists
    await check_all_succeeded(processes)
    await check_usable(empty_dsn)


@pytest.mark.pgvector
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_eight_initialisers_that_all_create_the_extension_do_not_fail(
    empty_dsn: str, observer: Observer, end: str
) -> None:
    with transaction(empty_dsn) as holder:
        holder.execute("CREATE EXTENSION vector")
        processes = await initialisers(empty_dsn, 8)
        await observer.see_waiting(8)
        getattr(holder, end)()
    await check_all_succeeded(processes)
    assert status(empty_dsn).vector_in_use
    await check_usable(empty_dsn)


async def test_an_initialiser_killed_halfway_leaves_nothing_and_the_others_go_on(
    empty_dsn: str, observer: Observer
) -> None:
    # The views come last: tables and functions are there when an initialiser waits for this catalog.
    with table_held(empty_dsn, "pg_catalog.pg_rewrite"):
        (victim,) = await initialisers(empty_dsn, 1)
        (backend,) = await observer.see_waiting(1)
        others = await initialisers(empty_dsn, 7)
        await observer.see_waiting(8)
        assert (
            observer.rows("SELECT count(*) FROM pg_locks WHERE pid = %s AND locktype = 'relation'", backend)[0][0] > 20
        )
        assert not observer.rows("SELECT FROM pg_namespace WHERE nspname = 'turnkeep'")  # nothing is committed
        victim.send_signal(signal.SIGKILL)
        await victim.communicate()
    await check_all_succeeded(others)
    await check_usable(empty_dsn)


async def test_an_initialiser_whose_backend_ends_halfway_leaves_nothing(empty_dsn: str, observer: Observer) -> None:
    with table_held(empty_dsn, "pg_catalog.pg_rewrite"):
        task = asyncio.ensure_future(asyncio.to_thread(turnkeep.migrate, empty_dsn))
        (backend,) = await observer.see_waiting(1)
        observer.rows("SELECT pg_terminate_backend(%s)", backend)
        with pytest.raises(turnkeep.UnavailableError):
            await task
    assert not observer.rows("SELECT FROM pg_namespace WHERE nspname = 'turnkeep'")
    turnkeep.migrate(empty_dsn)
    await check_usable(empty_dsn)


@pytest.mark.pgvector
async def test_without_the_right_to_pgvector_the_schema_is_whole_and_it_can_come_later(
    empty_dsn: str, observer: Observer
) -> None:
    role = make_conninfo(empty_dsn, user="plain")
    plain = sql.Identifier("plain")
    with psycopg.connect(empty_dsn, autocommit=True) as administrator:
        administrator.execute(sql.SQL("CREATE ROLE {} LOGIN").format(plain))
        try:
            administrator.execute(sql.SQL("CREATE SCHEMA turnkeep AUTHORIZATION {}").format(plain))
            without = turnkeep.migrate(role)
            assert without.current
            assert (without.vector_in_use, without.vector_version) == (False, None)
            assert without.vector_hint
            assert "CREATE EXTENSION" in without.vector_hint
            await check_usable(role)
            administrator.execute("CREATE EXTENSION vector")
            assert not status(role).current
            with_vector = turnkeep.migrate(role)
            assert with_vector.current
            assert with_vector.vector_in_use
            ((kind,),) = observer.rows(
                "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = 'turnkeep.agent_checkpoints'::regclass AND attname = 'embedding'"
            )
            assert kind == "vector(768)"
        finally:
            administrator.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(plain))
            administrator.execute(sql.SQL("DROP ROLE {}").format(plain))


@pytest.mark.pgvector
async def test_writers_do_not_notice_that_pgvector_comes_and_the_schema_changes(empty_dsn: str) -> None:
    turnkeep.migrate(empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as administrator:
        administrator.execute("DROP EXTENSION vector CASCADE")
    assert not status(empty_dsn).current
    async with turnkeep.open(empty_dsn) as store:
        stop = asyncio.Event()
        turns = [0] * 6

        async def write(number: int) -> None:
            branch = await store.conversation(f"c{number}")
            while not stop.is_set():
                await branch.begin_turn({"role": "user", "content": "hello"}, key=f"k{turns[number]}")
                await branch.save([{"role": "assistant", "content": "hi"}], final=True)
                turns[number] += 1

        writers = [asyncio.ensure_future(write(number)) for number in range(6)]
        await until(lambda: min(turns) >= 2, "writers at work")
        await asyncio.to_thread(turnkeep.migrate, empty_dsn)
        seen = min(turns)
        await until(lambda: min(turns) >= seen + 2, "writers at work after the change")
        stop.set()
        await asyncio.gather(*writers)
        for number in range(6):
            assert len((await store.restore(f"c{number}")).messages) == 2 * turns[number]
    assert status(empty_dsn).vector_in_use
