"""What tools do to their worker, and what then stands: errors of every kind, sessions left behind, connections lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import turnkeep
from tests.acceptance.test_runner import (
    Model,
    agent,
    ask,
    calls,
    drain,
    model,
    results,
    working,
)
from tests.observing import Observer
from turnkeep import AsyncStore, ToolContext, tool
from turnkeep.runner import Tool
from turnkeep.testing import Exchange, ModelServer, Reply, ToolCall

__all__ = ["model"]

Body = Callable[[ToolContext], Awaitable[Any]]

INSERT = "INSERT INTO public.ledger VALUES (%s)"


@pytest.fixture
def ledger(dsn: str) -> Iterator[Callable[[], list[str]]]:
    """The keys in a table of somebody else's, where each may stand once."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.ledger (key text PRIMARY KEY)")
        yield lambda: [row[0] for row in connection.execute("SELECT key FROM public.ledger")]


def refunding(body: Body) -> Tool:
    """A transactional tool that writes its key down, then does more."""

    @tool(transactional=True)
    async def refund(ctx: ToolContext) -> Any:
        await ctx.connection.execute(INSERT, (ctx.idempotency_key,))
        return await body(ctx)

    return refund


async def outcomes(store: AsyncStore, model: Model, *tools: Tool, name: str = "c") -> list[tuple[str, Any]]:
    """Run a turn in which all tools are called side by side; what their results say."""
    server = model(Reply(tool_calls=[ToolCall(one.name) for one in tools]), Reply(content="fine"))
    key = await ask(store, name=name)
    await drain(store, agent(server, *tools))
    found = results((await store.wait_reply(name, key, seconds=60)).checkpoint)
    assert len(found) == len(tools)
    return found


# -- errors of every kind


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), Unspeakable(), BaseException("x"),
     BaseExceptionGroup("several", [KeyboardInterrupt()]), StopAsyncIteration()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.parametrize("plain", [False, True])
async def test_whatever_a_tool_raises_is_its_result_and_nobody_elses(
    store: AsyncStore, model: Model, error: BaseException, plain: bool
) -> None:
    @tool
    async def burn() -> None:
        raise error

    @tool(name="burn")
    def burn_plainly() -> None:
        raise error

    @tool
    async def mail() -> str:
        return "sent"

    found = await outcomes(store, model, burn_plainly if plain else burn, mail)
    assert ("ok", "sent") in found
    name = "RuntimeError" if plain and isinstance(error, GeneratorExit) else type(error).__name__
    assert [content.partition(":")[0] for outcome, content in found if outcome == "error"] == [name]


async def test_a_tool_that_takes_no_cancelling_keeps_no_worker_from_ending(store: AsyncStore, model: Model) -> None:
    began, over = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> None:
        began.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    server = model(calls("stubborn"), Reply(content="fine"))
    await ask(store)
    async with working(store, agent(server, stubborn), grace_seconds=0.01) as worker:
        await began.wait()
        worker.stop()
    checkpoint = await store.restore("c")
    over.set()
    assert (checkpoint.status, checkpoint.lease_owner) == ("ready", None)


async def test_plain_tools_that_hang_keep_no_other_from_running(store: AsyncStore, model: Model) -> None:
    import threading

    go_on = threading.Event()
    count = 40  # more than an event loop's own threads
    waiting = threading.Barrier(count + 1)

    @tool
    def hang() -> str:
        waiting.wait(60)
        go_on.wait(60)
        return "over"

    server = model(Reply(tool_calls=[ToolCall("hang")] * count), Reply(content="fine"))
    key = await ask(store)
    async with working(store, agent(server, hang)):
        await asyncio.to_thread(waiting.wait, 60)  # all of them run at once
        go_on.set()
        await store.wait_reply("c", key, seconds=60)


# -- transactional tools


async def test_transactions_leave_a_connection_for_what_they_wait_for(
    dsn: str, model: Model, ledger: Callable[[], list[str]]
) -> None:
    @tool
    async def mail() -> str:
        await asyncio.sleep(0)
        return "sent"

    async def body(ctx: ToolContext) -> str:
        await asyncio.sleep(0.02)
        return "done"

    server = model(Reply(tool_calls=[ToolCall("mail"), ToolCall("refund")]), Reply(content="fine"))
    async with turnkeep.open(dsn, pool_size=3, timeout=60) as store:
        keys = {f"c{number}": await ask(store, name=f"c{number}") for number in range(12)}
        await drain(store, agent(server, mail, refunding(body)))
        for name, key in keys.items():
            found = results((await store.wait_reply(name, key, seconds=60)).checkpoint)
            assert sorted(found) == [("ok", "done"), ("ok", "sent")]
    assert len(ledger()) == 12


async def test_a_worker_with_transactional_tools_needs_two_connections(dsn: str, model: Model) -> None:
    server = model(Reply(content="fine"))
    async with turnkeep.open(dsn, pool_size=1) as store:
        with pytest.raises(turnkeep.ConfigurationError, match="pool_size"):
            await drain(store, agent(server, refunding(_done)))


async def _done(ctx: ToolContext) -> str:
    return "done"


async def test_a_commit_that_can_never_be_made_is_the_tools_error(
    store: AsyncStore, model: Model, ledger: Callable[[], list[str]], dsn: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.part (of text REFERENCES public.ledger DEFERRABLE INITIALLY DEFERRED)")
    runs = 0

    async def body(ctx: ToolContext) -> str:
        nonlocal runs
        runs += 1
        await ctx.connection.execute("INSERT INTO public.part VALUES ('nothing')")
        return "done"

    ((outcome, content),) = await outcomes(store, model, refunding(body))
    assert (outcome, runs, ledger()) == ("error", 1, [])
    assert "foreign key" in content


async def test_a_transaction_that_fails_each_time_is_given_up(
    store: AsyncStore, model: Model, ledger: Callable[[], list[str]]
) -> None:
    runs = 0

    async def body(ctx: ToolContext) -> str:
        nonlocal runs
        runs += 1
        await ctx.connection.execute("DO $$ BEGIN RAISE 'unlucky' USING ERRCODE = 'serialization_failure'; END $$")
        return "done"

    ((outcome, content),) = await outcomes(store, model, refunding(body))
    assert (outcome, runs, ledger()) == ("error", 5, [])
    assert "unlucky" in content


async def test_an_error_that_the_tool_has_caught_undoes_its_transaction_and_says_so(
    store: AsyncStore, model: Model, ledger: Callable[[], list[str]]
) -> None:
    async def body(ctx: ToolContext) -> str:
        try:
            await ctx.connection.execute(INSERT, (ctx.idempotency_key,))
        except psycopg.errors.UniqueViolation:
            return "was there"
        return "done"

    ((outcome, content),) = await outcomes(store, model, refunding(body))
    assert (outcome, ledger()) == ("error", [])
    assert "has failed" in content


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_lost_connection_runs_it_again_with_its_arguments_as_they_came(
    store: AsyncStore, model: Model, observer: Observer, ledger: Callable[[], list[str]], wrapped: bool
) -> None:
    seen: list[list[int]] = []

    @tool(transactional=True)
    async def refund(ctx: ToolContext, orders: list[int]) -> int:
        seen.append([*orders])
        row = await (await ctx.connection.execute("SELECT pg_backend_pid()")).fetchone()
        done = 0
        while orders:
            orders.pop()
            done += 1
        await ctx.connection.execute(INSERT, (ctx.idempotency_key,))
        if len(seen) == 1 and row is not None:
            observer.rows("SELECT pg_terminate_backend(%s, 5000)", row[0])
            try:
                await ctx.connection.execute("SELECT 1")
            except psycopg.OperationalError as error:
                raise (RuntimeError("wrapped") if wrapped else error) from error
        return done

    server = model(calls("refund", orders=[1, 2, 3]), Reply(content="fine"))
    key = await ask(store)
    await drain(store, agent(server, refund))
    assert results((await store.wait_reply("c", key, seconds=60)).checkpoint) == [("ok", 3)]
    assert seen == [[1, 2, 3], [1, 2, 3]]
    assert len(ledger()) == 1


LEFT_BEHIND: dict[str, str] = {
    "a timeout": "SET statement_timeout = '1ms'",
    "read only": "SET default_transaction_read_only = on",
    "a search path": "SET search_path = nowhere",
    "a lock": "SELECT pg_advisory_lock(7)",
    "a table": "CREATE TEMP TABLE left_behind (x int)",
    "a cursor": "DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1",
    "a listener": "LISTEN left_behind",
    "a role": "SET ROLE pg_read_all_data",
}


@pytest.mark.parametrize("statement", LEFT_BEHIND.values(), ids=LEFT_BEHIND.keys())
async def test_nothing_that_a_tool_leaves_in_its_session_meets_the_next_one(
    dsn: str, model: Model, ledger: Callable[[], list[str]], statement: str
) -> None:
    async def body(ctx: ToolContext) -> str:
        ctx.connection.row_factory = dict_row
        if ctx.external_id == "first":
            try:
                await ctx.connection.execute(statement.encode())
            except psycopg.Error:
                return "failed"
        return "done"

    server = ModelServer([Exchange("*", [calls("refund"), Reply(content="fine")])])
    with server:
        async with turnkeep.open(dsn, pool_size=2, timeout=60) as store:  # one connection for all transactions
            one = agent(server, refunding(body))
            for name in ("first", "second", "third"):
                key = await ask(store, name=name)
                await drain(store, one)
                found = results((await store.wait_reply(name, key, seconds=60)).checkpoint)
                assert [outcome for outcome, _ in found] == ["ok"] or name == "first"
                cursor = psycopg.connect(dsn, autocommit=True)
                with cursor as watcher:
                    assert watcher.execute("SELECT pg_try_advisory_lock(7)").fetchone() == (True,)
    assert len(ledger()) in (2, 3)


async def test_a_connection_is_of_no_use_after_its_tool(
    store: AsyncStore, model: Model, ledger: Callable[[], list[str]]
) -> None:
    kept: list[ToolContext] = []

    async def body(ctx: ToolContext) -> str:
        kept.append(ctx)
        return "done"

    await outcomes(store, model, refunding(body))
    with pytest.raises(turnkeep.UsageError, match="ended"):
        _ = kept[0].connection


# -- what one conversation does to others


async def test_a_conversation_that_cannot_be_restored_fails_alone(store: AsyncStore, model: Model, dsn: str) -> None:
    keys = {name: await ask(store, name=name) for name in ("a", "b", "c")}
    branch = await store.conversation("b")
    await branch.claim()
    await branch.take_request()
    await branch.release()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM turnkeep.message WHERE conversation_id = %s", (branch.conversation_id,))
    await drain(store, agent(model(Reply(content="fine"))))
    for name in ("a", "c"):
        assert (await store.wait_reply(name, keys[name], seconds=60)).content == "fine"
    with pytest.raises(turnkeep.TurnFailedError) as caught:
        await store.wait_reply("b", keys["b"], seconds=60)
    assert caught.value.failure["type"] == "corruption"


async def test_of_those_whose_worker_died_one_at_a_time_is_taken_up(
    store: AsyncStore, advance: Callable[[Any], None]
) -> None:
    from datetime import timedelta

    for number in range(3):
        await ask(store, name=f"c{number}")
    assert len(await store.claim_waiting(["support"], limit=9)) == 3
    advance(timedelta(seconds=20))  # their worker has died, once: it may have been the host
    assert len(await store.claim_waiting(["support"], limit=9)) == 3
    advance(timedelta(seconds=40))
    (suspect,) = await store.claim_waiting(["support"], limit=9)
    assert suspect.suspect
    await suspect.take_request()
    assert not suspect.suspect  # it has got further
    assert await store.claim_waiting(["support"], limit=9, suspects=False) == []
    await ask(store, name="innocent")
    assert [one.external_id for one in await store.claim_waiting(["support"], limit=9, suspects=False)] == ["innocent"]
