"""The server is killed, restarted, stopped and slow under load: nothing acknowledged is lost or doubled (G1, G4)."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.acceptance.embedded_users import own_postgres
from tests.acceptance.load import Load
from tests.observing import Observer, branches_held, end_of, table_held, until
from tests.store.conftest import OpenStore
from tests.store.in_threads import open_in_threads
from turnkeep.embedded import EmbeddedPostgres

WRITERS = 14
USER = {"role": "user", "content": "hello"}
STEP = {"role": "assistant", "content": "let me see"}


@pytest.fixture(scope="module")
def victim() -> Iterator[EmbeddedPostgres]:
    """A server of these tests' own."""
    with own_postgres() as running:
        yield running


@pytest.fixture
def dsn(victim: EmbeddedPostgres) -> str:
    """A new database there."""
    victim.ensure()
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(victim.conninfo, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    conninfo = make_conninfo(victim.conninfo, dbname=name)
    turnkeep.migrate(conninfo)
    return conninfo


@asynccontextmanager
async def load_on(dsn: str, open_store: OpenStore = turnkeep.open) -> AsyncIterator[Load]:
    """Writers at work on one store, checked when they have stopped."""
    async with open_store(dsn, pool_size=WRITERS, timeout=120) as store:
        async with Load([store], WRITERS) as load:
            yield load
        load.check(dsn)
        assert len(await store.conversations()) == WRITERS


async def see_writes_waiting(dsn: str, load: Load) -> list[int]:
    """Wait until every writer's save is seen under way in the server."""
    with Observer(dsn) as observer:
        backends = await observer.see_waiting(WRITERS)
    await load.in_flight(WRITERS)
    return backends


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGQUIT, signal.SIGINT], ids=["kill -9", "immediate", "fast"]
)
async def test_writers_go_on_by_themselves_after_the_server_has_gone_and_come_back(
    victim: EmbeddedPostgres, dsn: str, number: signal.Signals
) -> None:
    async with load_on(dsn) as load:
        for _ in range(2):
            with table_held(dsn, "turnkeep.message"):
                await see_writes_waiting(dsn, load)
                pid = victim.postmaster_pid()
                os.kill(pid, number)
                await end_of(pid)
            await asyncio.to_thread(victim.ensure)
            await load.progress()


@pytest.mark.parametrize("open_store", [turnkeep.open, open_in_threads], ids=["loop", "threads"])
async def test_a_server_killed_at_any_time_loses_nothing(
    victim: EmbeddedPostgres, dsn: str, open_store: OpenStore
) -> None:
    async with load_on(dsn, open_store) as load:
        for writes in range(1, 6):
            await load.progress(writes)
            await load.in_flight(WRITERS // 2)
            pid = victim.postmaster_pid()
            os.kill(pid, signal.SIGKILL)
            await end_of(pid)
            await asyncio.to_thread(victim.ensure)
        await load.progress()


async def test_writers_work_on_during_a_smart_shutdown_and_go_on_after_it(victim: EmbeddedPostgres, dsn: str) -> None:
    def refused() -> bool:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            return True
        return False

    async with load_on(dsn) as load:
        await load.progress()
        pid = victim.postmaster_pid()
        os.kill(pid, signal.SIGTERM)
        await until(refused, "new clients refused")
        await load.progress()
        os.kill(pid, signal.SIGINT)
        await end_of(pid)
        await asyncio.to_thread(victim.ensure)
        await load.progress()


async def test_backends_ended_in_mid_save_again_and_again_lose_nothing(dsn: str) -> None:
    async with load_on(dsn) as load:
        for _ in range(10):
            with table_held(dsn, "turnkeep.checkpoint"), Observer(dsn) as observer:
                backends = await see_writes_waiting(dsn, load)
                observer.rows("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", backends)
            await load.progress()


async def test_a_backend_killed_takes_the_server_down_and_writers_go_on(victim: EmbeddedPostgres, dsn: str) -> None:
    async with load_on(dsn) as load:
        for _ in range(3):
            pid = victim.postmaster_pid()
            with table_held(dsn, "turnkeep.message"):
                backends = await see_writes_waiting(dsn, load)
                os.kill(backends[0], signal.SIGKILL)
                for backend in backends:
                    await end_of(backend)
            await load.progress()
            assert victim.postmaster_pid() == pid


@contextmanager
def stopped(victim: EmbeddedPostgres) -> Iterator[None]:
    """Halt every process of the server, as a host that hangs would."""
    with Observer(victim.conninfo) as observer:
        postmaster = victim.postmaster_pid()
        processes = [postmaster, *(pid for (pid,) in observer.rows("SELECT pid FROM pg_stat_activity"))]
        try:
            for process in processes:
                with suppress(ProcessLookupError):  # a client of an earlier test, just gone
                    os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in reversed(processes):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)


@contextmanager
def unreachable(dsn: str) -> Iterator[None]:
    """End all sessions of a database, and take the way to its server away for new ones."""
    named = psycopg.conninfo.conninfo_to_dict(dsn)
    socket = Path(str(named["host"])) / f".s.PGSQL.{named['port']}"
    with Observer(dsn) as observer:
        socket.rename(socket.with_name("away"))
        try:
            observer.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            yield
        finally:
            socket.with_name("away").rename(socket)


async def test_a_server_that_does_not_answer_is_an_error_in_time_and_a_retry_is_harmless(
    victim: EmbeddedPostgres, dsn: str
) -> None:
    async with turnkeep.open(dsn, pool_size=3, timeout=4) as store:
        branches = [await store.conversation(f"c{n}") for n in range(6)]
        for branch in branches:
            await branch.begin_turn(USER)
        ids = [uuid.uuid4() for _ in branches]
        with stopped(victim):
            calls = (b.save([STEP], write_id=i) for b, i in zip(branches, ids, strict=True))
            outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        assert all(isinstance(one, turnkeep.DatabaseError) for one in outcomes), outcomes
        assert any(isinstance(one, turnkeep.UnavailableError) for one in outcomes)
        for branch, write_id in zip(branches, ids, strict=True):
            assert (await branch.save([STEP], write_id=write_id)).sub_step == 1
        assert [len((await store.restore(f"c{n}")).messages) for n in range(6)] == [2] * 6


async def test_a_store_waits_for_a_server_that_comes_back_before_the_deadline(
    victim: EmbeddedPostgres, dsn: str
) -> None:
    async with turnkeep.open(dsn, timeout=60) as store:
        branch = await store.conversation("c")
        await branch.begin_turn(USER)
        with stopped(victim):
            save = asyncio.ensure_future(branch.save([STEP]))
            await asyncio.wait({save}, timeout=0.5)
            assert not save.done()
        assert (await save).sub_step == 1


async def test_a_server_that_hangs_while_a_store_opens_is_an_error_in_time(victim: EmbeddedPostgres, dsn: str) -> None:
    with stopped(victim):
        store = turnkeep.open(dsn, timeout=3)
        with pytest.raises(turnkeep.UnavailableError):
            await asyncio.wait_for(store.open(), 60)
    async with store:
        assert not await store.conversations()


async def test_nobody_listening_is_an_error_that_says_so(tmp_path: Path) -> None:
    nobody = make_conninfo(host=str(tmp_path), user="postgres", dbname="postgres")
    with pytest.raises(turnkeep.UnavailableError, match=r"connection|answer"):
        await turnkeep.open(nobody, timeout=1).open()
    with pytest.raises(turnkeep.UnavailableError, match="connection"):
        turnkeep.migrate(nobody)


async def test_a_pool_in_use_up_to_the_deadline_is_an_error_that_names_the_remedy(dsn: str) -> None:
    async with turnkeep.open(dsn, pool_size=1, timeout=3) as store:
        branch = await store.conversation("c")
        await branch.begin_turn(USER)
        with branches_held(dsn, branch.conversation_id), Observer(dsn) as observer:
            save = asyncio.ensure_future(branch.save([STEP]))
            await observer.see_waiting(1)
            calls = await asyncio.gather(*(store.fork("c") for _ in range(3)), return_exceptions=True)
            with pytest.raises(turnkeep.UnavailableError, match="write_id"):
                await save
        exhausted = [call for call in calls if isinstance(call, turnkeep.PoolExhaustedError)]
        assert len(exhausted) >= 2, calls  # one may have got the connection just before its deadline
        assert "pool_size" in str(exhausted[0])
        await branch.save([STEP])


async def test_a_pool_that_lost_its_server_once_still_tells_a_busy_pool_from_a_lost_server(dsn: str) -> None:
    async with turnkeep.open(dsn, pool_size=1, timeout=3) as store:
        branch = await store.conversation("c")
        with unreachable(dsn), pytest.raises(turnkeep.UnavailableError):
            await branch.begin_turn(USER)
        await branch.begin_turn(USER)
        with branches_held(dsn, branch.conversation_id), Observer(dsn) as observer:
            save = asyncio.ensure_future(branch.save([STEP]))
            await observer.see_waiting(1)
            calls = await asyncio.gather(*(store.fork("c") for _ in range(3)), return_exceptions=True)
            await asyncio.gather(save, return_exceptions=True)
        assert sum(isinstance(call, turnkeep.PoolExhaustedError) for call in calls) >= 2, calls
