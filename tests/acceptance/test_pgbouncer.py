"""Everything works through pgbouncer in transaction mode, and nothing of a session is left behind (G10)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.acceptance.embedded_users import own_postgres
from tests.acceptance.load import Load
from tests.acceptance.pgbouncer import PgBouncer
from tests.observing import Observer, branches_held, end_of, table_held
from tests.store.whole_rows import exported, imported, rich, rows
from turnkeep.embedded import EmbeddedPostgres
from turnkeep.store import status

SERVERS = 3
CLIENTS = 16
# What pgbouncer itself sets on a server for each client that it gives it to.
TRACKED = (
    "application_name",
    "client_encoding",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "standard_conforming_strings",
)


@pytest.fixture
def bouncer(dsn: str) -> Iterator[PgBouncer]:
    with PgBouncer(dsn, pool_size=SERVERS) as running:
        yield running


@asynccontextmanager
async def clients(bouncer: PgBouncer, count: int = CLIENTS) -> AsyncIterator[list[turnkeep.AsyncStore]]:
    """Stores that know nothing of each other."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(turnkeep.open(bouncer.dsn(), pool_size=2, timeout=60)) for _ in range(count)
        ]


def check_no_session_state(bouncer: PgBouncer) -> None:
    """Look into every server connection of the pooler."""
    with ExitStack() as stack:
        pinned = [stack.enter_context(psycopg.connect(bouncer.dsn(), prepare_threshold=None)) for _ in range(SERVERS)]
        backends = set()
        for connection in pinned:  # each is in a transaction now, and so has a server to itself
            backends |= {*connection.execute("SELECT pg_backend_pid()").fetchall()}
            prepared = connection.execute("SELECT name FROM pg_prepared_statements").fetchall()
            changed = connection.execute(
                "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name <> ALL(%s)", (list(TRACKED),)
            ).fetchall()
            locks = connection.execute(
                "SELECT locktype FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
            ).fetchall()
            cursors = connection.execute("SELECT name FROM pg_cursors WHERE is_holdable").fetchall()
            listening = connection.execute("SELECT pg_listening_channels()").fetchall()
            temporary = connection.execute("SELECT FROM pg_class WHERE relpersistence = 't'").fetchall()
            assert (prepared, changed, locks, cursors, listening, temporary) == ([], [], [], [], [], [])
        assert len(backends) == SERVERS


async def test_a_pooler_is_recognised_and_a_server_is_not_taken_for_one(dsn: str, bouncer: PgBouncer) -> None:
    async with turnkeep.open(dsn) as direct, turnkeep.open(bouncer.dsn()) as pooled:
        assert (direct.pooled, pooled.pooled) == (False, True)


async def use_everything(store: turnkeep.AsyncStore, name: str) -> None:
    """Call all that a store can do, and check what it gives."""
    branch = await store.conversation(name, agent_id=name)
    call = {"id": "call_1", "name": "weather"}
    await branch.claim()
    await branch.begin_turn({"role": "user", "content": "weather?"}, key="k")
    assert (await branch.begin_turn({"role": "user", "content": "weather?"}, key="k")).repeated
    await branch.renew()
    await branch.save([{"role": "assistant", "content": None}], tool_calls=[call], state={"n": 1})
    assert await branch.release()
    assert [one.conversation_id for one in await store.restore_interrupted(agent_id=name)] == [branch.conversation_id]
    forked = await store.fork(name, at=(0, 1), name="other")
    assert [call.uncertain for call in forked.pending] == [True]
    result = {"tool_call_id": "call_1", "content": "7 °C\0"}
    for one in (branch, forked):
        await one.save([{"role": "tool", **result}], tool_results=[result])
        await one.save([{"role": "assistant", "content": "7 °C"}], final=True)
    restored = await store.restore(name)
    assert [message["role"] for message in restored.messages] == ["user", "assistant", "tool", "assistant"]
    assert restored.messages[2] == {"role": "tool", **result}
    assert [call.call_id for call in (await store.restore(name, at=(0, 1))).pending] == ["call_1"]
    assert [one.sub_step for one in await store.history(name, branch=1)] == [3, 2, 1, 0]
    assert [one.external_id for one in await store.conversations(agent_id=name)] == [name]
    assert await store.find(str(branch.conversation_id)[:13]) == branch.conversation_id
    await branch.refresh()
    with pytest.raises(turnkeep.TurnNotOpenError):
        await branch.save([{"role": "assistant", "content": "more"}])


async def test_the_whole_store_works_for_many_clients_over_few_servers(bouncer: PgBouncer) -> None:
    async with clients(bouncer) as stores:
        for turn in range(3):  # a statement is prepared, where it is, at its third use
            await asyncio.gather(*(use_everything(store, f"c{turn}-{n}") for n, store in enumerate(stores)))
        check_no_session_state(bouncer)


async def test_writers_over_few_servers_lose_and_double_nothing(dsn: str, bouncer: PgBouncer) -> None:
    async with clients(bouncer) as stores:
        async with Load(stores, 2 * CLIENTS) as load:
            await load.progress(12)
        load.check(dsn)
        check_no_session_state(bouncer)
        with Observer(dsn) as observer:
            assert not observer.in_transaction()


async def test_the_schema_can_be_made_and_changed_through_a_pooler(empty_dsn: str) -> None:
    with PgBouncer(empty_dsn, pool_size=SERVERS) as bouncer:
        assert turnkeep.migrate(bouncer.dsn()).current
        check_no_session_state(bouncer)
        with psycopg.connect(empty_dsn, autocommit=True) as administrator:
            administrator.execute("DROP SCHEMA turnkeep CASCADE")
        made = await asyncio.gather(*(asyncio.to_thread(turnkeep.migrate, bouncer.dsn()) for _ in range(6)))
        assert all(one.current for one in made)
        assert status(bouncer.dsn()).vector_in_use
        with psycopg.connect(empty_dsn, autocommit=True) as administrator:
            administrator.execute("UPDATE turnkeep.migration SET digest = 'of another release' WHERE number = 0")
        assert not status(bouncer.dsn()).current
        assert turnkeep.migrate(bouncer.dsn()).current
        check_no_session_state(bouncer)
        async with turnkeep.open(bouncer.dsn()) as store:
            await use_everything(store, "c")


async def test_a_save_cancelled_behind_a_pooler_writes_nothing_later(dsn: str, bouncer: PgBouncer) -> None:
    async with turnkeep.open(bouncer.dsn()) as store:
        branch = await store.conversation("c")
        await branch.begin_turn({"role": "user", "content": "hello"})
        with Observer(dsn) as observer:
            before = observer.counts(), observer.heads()
            with branches_held(dsn, branch.conversation_id):
                save = asyncio.ensure_future(branch.save([{"role": "assistant", "content": "hi"}]))
                await observer.see_waiting(1)
                save.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await save
                assert not observer.waiting()
            assert (observer.counts(), observer.heads()) == before
            assert not observer.in_transaction()
        await branch.save([{"role": "assistant", "content": "hi"}])
        check_no_session_state(bouncer)


async def test_a_lease_is_fenced_behind_a_pooler(bouncer: PgBouncer, advance: Any) -> None:
    async with clients(bouncer, 2) as (first, second):
        zombie = await first.conversation("c")
        await zombie.claim(seconds=15)
        await zombie.begin_turn({"role": "user", "content": "hello"})
        advance(timedelta(seconds=16))
        successor = await second.conversation("c")
        await successor.claim()
        with pytest.raises(turnkeep.LeaseLostError):
            await zombie.save([{"role": "assistant", "content": "hi"}])
        await successor.save([{"role": "assistant", "content": "hi"}], final=True)


async def test_a_pooler_killed_in_the_middle_of_writes_costs_nothing(dsn: str, bouncer: PgBouncer) -> None:
    async with clients(bouncer) as stores:
        async with Load(stores, CLIENTS) as load:
            with Observer(dsn) as observer:
                for _ in range(3):
                    with table_held(dsn, "turnkeep.message"):
                        await observer.see_waiting(SERVERS)
                        await load.in_flight(CLIENTS)
                        bouncer.kill()
                    bouncer.start()
                    await load.progress()
        load.check(dsn)
        check_no_session_state(bouncer)


@pytest.fixture
def own_server() -> Iterator[EmbeddedPostgres]:
    """A server to be killed."""
    with own_postgres() as running:
        yield running


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "restarted"])
async def test_a_server_lost_below_the_pooler_in_the_middle_of_writes_costs_nothing(
    own_server: EmbeddedPostgres, number: signal.Signals
) -> None:
    direct = make_conninfo(own_server.conninfo)
    turnkeep.migrate(direct)
    with PgBouncer(direct, pool_size=SERVERS) as bouncer:
        async with clients(bouncer) as stores:
            async with Load(stores, CLIENTS) as load:
                for _ in range(2):
                    before = own_server.postmaster_pid()
                    with table_held(direct, "turnkeep.message"), Observer(direct) as observer:
                        await observer.see_waiting(SERVERS)
                        await load.in_flight(CLIENTS)
                        os.kill(before, number)
                        await end_of(before)
                    await asyncio.to_thread(own_server.ensure)
                    assert own_server.postmaster_pid() != before
                    await load.progress()
            load.check(direct)


async def test_conversations_are_archived_and_carried_over_behind_a_pooler(dsn: str, bouncer: PgBouncer) -> None:
    async with clients(bouncer, 2) as (one, other):
        for name in ("a", "b"):
            await rich(one, name)
        before = rows(dsn, exact=True)
        await asyncio.gather(one.archive("a"), other.archive("b"))
        await asyncio.gather(one.unarchive("b"), other.unarchive("a"))
        after = rows(dsn, exact=True)
        del before["document"], after["document"]  # asked to be filled again
        assert after == before
        data = await exported(one)
        await one.erase("a")
        done = await imported(other, data)
        assert (done.conversations, done.there) == (1, 1)
        check_no_session_state(bouncer)
