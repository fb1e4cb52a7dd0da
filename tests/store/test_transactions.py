"""Transactions of a caller's own (G6): effects commit together with the save, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

import turnkeep
from tests.observing import Observer
from tests.store.conftest import OpenStore
from tests.wire import Wire
from turnkeep import AsyncBranch, AsyncStore, AsyncTransaction

TOOL = {"role": "tool", "content": "refunded"}
RESULT = [{"tool_call_id": "1"}]


@pytest.fixture
def ledger(dsn: str) -> Iterator[psycopg.Connection[tuple[int]]]:
    """A table of somebody else's in the same database, and a connection to read it by."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.ledger (cents int)")
        yield connection


def cents(ledger: psycopg.Connection[tuple[int]]) -> list[int]:
    return [row[0] for row in ledger.execute("SELECT cents FROM public.ledger")]


async def pending(store: AsyncStore) -> AsyncBranch:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user"})
    await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1"}])
    return branch


INSERT = "INSERT INTO public.ledger VALUES (7)"


async def refund(branch: AsyncBranch, *statements: str) -> AsyncTransaction:
    """Run statements in a transaction, then save."""
    async with branch.transaction() as transaction:
        for statement in statements:
            await transaction.connection.execute(statement.encode())
        await transaction.save([TOOL], tool_results=RESULT)
    return transaction


async def test_effects_and_save_stand_together(store: AsyncStore, ledger: psycopg.Connection[tuple[int]]) -> None:
    branch = await pending(store)
    async with branch.transaction() as transaction:
        await transaction.connection.execute(INSERT)
        saved = await transaction.save([TOOL], tool_results=RESULT, state={"n": 1})
        assert cents(ledger) == [7]
    assert (saved.sub_step, branch.sub_step, branch.pending, branch.state) == (2, 2, (), {"n": 1})
    assert (await store.restore("c")).messages[-1] == TOOL
    await branch.save([], final=True)


async def test_without_a_save_nothing_stands(store: AsyncStore, ledger: psycopg.Connection[tuple[int]]) -> None:
    branch = await pending(store)
    async with branch.transaction() as transaction:
        await transaction.connection.execute(INSERT)
    with pytest.raises(turnkeep.UsageError):
        _ = transaction.connection
    with pytest.raises(psycopg.errors.DivisionByZero):
        await refund(branch, INSERT, "SELECT 1/0")
    assert cents(ledger) == []
    assert branch.pending == (await store.restore("c")).pending


async def test_a_refused_save_takes_its_effects_along(
    store: AsyncStore, ledger: psycopg.Connection[tuple[int]]
) -> None:
    branch = await pending(store)
    other = await store.conversation("c")
    await other.save([{"role": "note"}])
    with pytest.raises(turnkeep.ConflictError):
        await refund(branch, INSERT)
    await branch.refresh()
    await branch.claim(seconds=30)
    with pytest.raises(turnkeep.LeaseHeldError):
        await refund(other, INSERT)
    assert cents(ledger) == []


@pytest.mark.parametrize("call", ["commit", "rollback"])
async def test_commit_and_rollback_are_refused(
    store: AsyncStore, ledger: psycopg.Connection[tuple[int]], call: str
) -> None:
    branch = await pending(store)
    async with branch.transaction() as transaction:
        await transaction.connection.execute(INSERT)
        with pytest.raises(psycopg.ProgrammingError):
            await getattr(transaction.connection, call)()
        await transaction.save([TOOL], tool_results=RESULT)
    assert cents(ledger) == [7]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "COMMIT AND CHAIN"])
async def test_an_sql_commit_is_noticed(
    store: AsyncStore, ledger: psycopg.Connection[tuple[int]], statement: str
) -> None:
    branch = await pending(store)
    with pytest.raises(turnkeep.UncertainOutcomeError):
        await refund(branch, INSERT, statement)
    assert cents(ledger) == ([7] if statement.startswith("COMMIT") else [])
    assert branch.pending == (await store.restore("c")).pending
    await refund(branch)  # the connection serves on


async def test_it_is_read_committed_whatever_the_databases_default(
    dsn: str, open_store: OpenStore, ledger: psycopg.Connection[tuple[int]]
) -> None:
    ledger.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = "
        "''repeatable read''', current_database()); END $$"
    )
    async with open_store(dsn) as store:
        branch = await pending(store)
        await branch.claim()
        async with branch.transaction() as transaction:
            await transaction.connection.execute(INSERT)
            await branch.renew()
            await transaction.save([TOOL], tool_results=RESULT)
    assert cents(ledger) == [7]


async def test_other_saves_of_the_handle_wait_for_the_commit(
    store: AsyncStore, dsn: str, ledger: psycopg.Connection[tuple[int]]
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user"})
    await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1"}, {"id": "2"}])
    async with branch.transaction() as transaction:
        await transaction.connection.execute(INSERT)
        await asyncio.gather(
            transaction.save([TOOL], tool_results=RESULT),
            branch.save([TOOL], tool_results=[{"tool_call_id": "2"}]),
        )
    assert branch.pending == ()
    assert (await store.restore("c")).sub_step == 3


async def test_a_backend_killed_before_the_commit_leaves_nothing(
    store: AsyncStore, ledger: psycopg.Connection[tuple[int]]
) -> None:
    branch = await pending(store)
    async with branch.transaction() as transaction:
        await transaction.connection.execute(INSERT)
        pid = await (await transaction.connection.execute("SELECT pg_backend_pid()")).fetchone()
        assert pid is not None
        ledger.execute("SELECT pg_terminate_backend(%s, 5000)", pid)
        with pytest.raises(turnkeep.UnavailableError):
            await transaction.save([TOOL], tool_results=RESULT)
    await refund(branch, INSERT)
    assert cents(ledger) == [7]


async def test_no_transaction_stays_open(store: AsyncStore, dsn: str, ledger: psycopg.Connection[tuple[int]]) -> None:
    branch = await pending(store)
    with Observer(dsn) as observer:
        async with branch.transaction() as transaction:
            await transaction.connection.execute(INSERT)
            assert len(observer.in_transaction()) == 1
        assert observer.in_transaction() == []
        for _ in range(30):  # more than the pool has
            async with branch.transaction():
                pass


async def test_a_commit_whose_answer_is_lost_is_found_to_stand(
    dsn: str, ledger: psycopg.Connection[tuple[int]]
) -> None:
    wire = Wire(dsn)
    async with wire as conninfo, turnkeep.open(conninfo) as store:
        branch = await pending(store)
        wire.cut_next = True
        transaction = await refund(branch, INSERT)
        assert wire.cuts == 1
        assert await transaction.committed()
        assert (cents(ledger), branch.pending, branch.sub_step) == ([7], (), 2)
        await branch.save([], final=True)
