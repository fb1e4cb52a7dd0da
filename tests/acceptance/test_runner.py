"""A worker on one event loop, with a real model server and a real Postgres: what goes wrong, and what then stands."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

import turnkeep
from tests.acceptance.embedded_users import own_postgres
from tests.observing import Observer, until
from turnkeep import Agent, AsyncStore, ToolContext, Worker, tool
from turnkeep.runner import Tool
from turnkeep.runner.transcript import UNKNOWN_OUTCOME
from turnkeep.testing import Exchange, ModelServer, Reply, ToolCall

Json = dict[str, Any]
Model = Callable[..., ModelServer]


@pytest.fixture
def model() -> Iterator[Model]:
    """Starts scripted model servers: replies to whatever is said, one after the other."""
    servers: list[ModelServer] = []

    def serve(*replies: Reply) -> ModelServer:
        servers.append(ModelServer([Exchange("*", replies)]))
        servers[-1].start()
        return servers[-1]

    yield serve
    for server in servers:
        server.stop()


def agent(server: ModelServer, *tools: Tool, **settings: Any) -> Agent:
    return Agent("support", model="scripted", base_url=server.base_url, tools=tools, **settings)


@asynccontextmanager
async def working(store: AsyncStore, *agents: Agent, **settings: Any) -> AsyncIterator[Worker]:
    """A worker that runs beside the test, and is stopped at its end."""
    worker = Worker(store, agents, poll_seconds=0.02, **settings)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


async def drain(store: AsyncStore, *agents: Agent, **settings: Any) -> None:
    await Worker(store, agents, poll_seconds=0.02, **settings).run(drain=True)


async def ask(store: AsyncStore, words: str = "go", name: str = "c") -> str:
    return (await store.post(name, words, agent_id="support")).key


def results(checkpoint: turnkeep.Checkpoint) -> list[tuple[str, Any]]:
    """What tool messages say: outcome and content."""
    return [(m["metadata"]["outcome"], m["content"]) for m in checkpoint.messages if m["role"] == "tool"]


def calls(*names: str, **arguments: Any) -> Reply:
    return Reply(tool_calls=[ToolCall(name, arguments) for name in names])


# -- the model


async def test_a_model_server_killed_in_the_middle_of_a_reply_is_waited_for(store: AsyncStore, model: Model) -> None:
    server = model(Reply(content="one two three four", token_seconds=3600))
    async with working(store, agent(server)):
        key = await ask(store)
        await until(lambda: server.status()["chunks"] == [1], "the middle of a reply")
        server.kill()
        assert [m["role"] for m in (await store.restore("c")).messages] == ["user"]
        server.pace(token_seconds=0)
        server.start()
        reply = await store.wait_reply("c", key, seconds=60)
    assert reply.content == "one two three four"
    assert len(server.requests) == 2
    assert [m["role"] for m in reply.checkpoint.messages] == ["user", "assistant"]


@pytest.mark.parametrize(
    "fault", [Reply(content="a b c d e", status=503, times=3), Reply(content="a b c d e", break_after=2, times=3)]
)
async def test_a_server_that_fails_for_a_while_is_asked_again(store: AsyncStore, model: Model, fault: Reply) -> None:
    server = model(fault)
    key = await ask(store)
    await drain(store, agent(server))
    assert (await store.wait_reply("c", key, seconds=60)).content == "a b c d e"
    assert len(server.requests) == 4
    assert len(await store.history("c")) == 2


async def test_what_a_server_never_answers_fails_the_turn_once_and_can_be_resumed(
    store: AsyncStore, model: Model
) -> None:
    server = model(calls("echo", text="x"), Reply(content="fine", status=400, times=1))
    key = await ask(store)
    await drain(store, agent(server, echo))
    with pytest.raises(turnkeep.TurnFailedError) as caught:
        await store.wait_reply("c", key, seconds=60)
    assert (caught.value.failure["type"], caught.value.failure["status"]) == ("model_refused", 400)
    assert results(await store.restore("c")) == [("ok", "x")]
    assert await store.resume("c")
    await drain(store, agent(server, echo))
    assert (await store.wait_reply("c", key, seconds=60)).content == "fine"


async def test_the_most_steps_stop_a_turn_and_more_let_it_go_on(store: AsyncStore, model: Model) -> None:
    server = model(*[calls("echo", text=str(n)) for n in range(3)], Reply(content="fine"))
    key = await ask(store)
    await drain(store, agent(server, echo, max_steps=2))
    with pytest.raises(turnkeep.TurnFailedError) as caught:
        await store.wait_reply("c", key, seconds=60)
    assert caught.value.failure["type"] == "max_steps"
    assert await store.resume("c")
    await drain(store, agent(server, echo, max_steps=4))
    assert (await store.wait_reply("c", key, seconds=60)).content == "fine"
    assert results(await store.restore("c")) == [("ok", str(n)) for n in range(3)]


async def test_arguments_that_are_none_are_told_and_the_third_time_fails(store: AsyncStore, model: Model) -> None:
    cut = Reply(tool_calls=[ToolCall("echo", '{"text": "x')])
    server = model(cut, calls("echo", number=1), cut, calls("echo", text="x"), Reply(content="fine"))
    key = await ask(store)
    await drain(store, agent(server, echo))
    with pytest.raises(turnkeep.TurnFailedError) as caught:
        await store.wait_reply("c", key, seconds=60)
    assert caught.value.failure["type"] == "invalid_arguments"
    assert await store.resume("c")
    await drain(store, agent(server, echo))
    reply = await store.wait_reply("c", key, seconds=60)
    assert [outcome for outcome, _ in results(reply.checkpoint)] == ["invalid", "invalid", "invalid", "ok"]
    assert '{"text": "x' in results(reply.checkpoint)[0][1]
    provider = reply.checkpoint.messages[1]["metadata"]["provider"]
    assert provider["tool_calls"][0]["function"]["arguments"] == '{"text": "x'


# -- tools


@tool(idempotent=True)
async def echo(text: str) -> str:
    """Say it again."""
    return text


async def test_what_a_tool_raises_or_gives_that_is_no_json_is_its_result(store: AsyncStore, model: Model) -> None:
    @tool
    async def burn() -> None:
        raise RuntimeError("on fire \ud800")

    @tool
    async def give_nan() -> Json:
        return {"depth": float("nan")}

    @tool
    def give_deep() -> Any:
        value: Any = 1
        for _ in range(500):
            value = [value]
        return value

    server = model(
        Reply(tool_calls=[ToolCall(name) for name in ("burn", "give_nan", "give_deep", "invented")]),
        Reply(content="fine"),
    )
    key = await ask(store)
    await drain(store, agent(server, burn, give_nan, give_deep))
    found = results((await store.wait_reply("c", key, seconds=60)).checkpoint)
    assert [outcome for outcome, _ in found] == ["error"] * 4
    said = {content.partition(":")[0] for _, content in found}
    assert "RuntimeError" in said
    assert sum("can't be stored" in content for _, content in found) == 2
    assert any("There is no tool 'invented'" in content for _, content in found)


async def test_each_of_parallel_results_is_durable_while_others_still_run(store: AsyncStore, model: Model) -> None:
    go_on = asyncio.Event()

    @tool
    async def slow() -> str:
        await go_on.wait()
        return "slow"

    server = model(Reply(tool_calls=[ToolCall("slow"), ToolCall("echo", {"text": "quick"})]), Reply(content="fine"))
    async with working(store, agent(server, slow, echo)):
        key = await ask(store)
        checkpoint = await store.restore("c")
        while not results(checkpoint):
            checkpoint = await store.restore("c")
            await asyncio.sleep(0)
        assert results(checkpoint) == [("ok", "quick")]
        assert [call.attempts for call in checkpoint.pending] == [1]
        go_on.set()
        await store.wait_reply("c", key, seconds=60)
    wire = [(m["role"], m["content"]) for m in server.requests[-1]["messages"]]
    assert wire[-2:] == [("tool", "slow"), ("tool", "quick")]


async def test_a_call_of_on_crash_ask_waits_for_a_person(store: AsyncStore, model: Model, dsn: str) -> None:
    started = asyncio.Event()

    @tool(on_crash="ask")
    async def launch() -> str:
        started.set()
        await asyncio.sleep(3600)
        return "launched"

    server = model(calls("launch"), Reply(content="fine"))
    key = await ask(store)
    one = agent(server, launch)
    task = asyncio.create_task(drain(store, one))
    await started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await drain(store, one)
    with pytest.raises(turnkeep.TurnFailedError, match="launch") as caught:
        await store.wait_reply("c", key, seconds=60)
    assert caught.value.failure["type"] == "waiting"
    assert (await store.restore("c")).status == "waiting"
    branch = await store.conversation("c")
    answer = {"role": "tool", "content": "it was launched", "metadata": {"tool_call_id": branch.pending[0].call_id}}
    await branch.save([answer], tool_results=[{"outcome": "ok"}], answers=branch.pending)
    assert await store.resume("c")
    await drain(store, one)
    assert (await store.wait_reply("c", key, seconds=60)).content == "fine"
    assert server.requests[-1]["messages"][-1]["content"] == "it was launched"


async def test_durability_order_what_was_done_before_a_person_was_asked_is_not_done_again(
    store: AsyncStore, model: Model
) -> None:
    runs: list[str] = []
    started = asyncio.Event()

    @tool
    async def first() -> str:
        runs.append("first")
        return "first"

    @tool(on_crash="ask")
    async def approve() -> str:
        runs.append("approve")
        started.set()
        await asyncio.sleep(3600)
        return "approved"

    server = model(calls("first"), calls("approve"), Reply(content="fine"))
    key = await ask(store)
    one = agent(server, first, approve)
    task = asyncio.create_task(drain(store, one))
    await started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await drain(store, one)  # asks
    branch = await store.conversation("c")
    message = {"role": "tool", "content": "yes", "metadata": {"tool_call_id": branch.pending[0].call_id}}
    await branch.save([message], tool_results=[{"outcome": "ok"}], answers=branch.pending)
    await store.resume("c")
    await drain(store, one)
    assert (await store.wait_reply("c", key, seconds=60)).content == "fine"
    assert runs == ["first", "approve"]


async def test_a_branch_whose_tools_are_elsewhere_is_handed_back(store: AsyncStore, model: Model, dsn: str) -> None:
    began = asyncio.Event()

    @tool(idempotent=True)
    async def rare() -> str:
        began.set()
        await asyncio.sleep(3600)
        return "rare"

    server = model(calls("rare"), Reply(content="fine"))
    await ask(store)
    async with working(store, agent(server, rare), grace_seconds=0.01) as worker:
        await began.wait()
        worker.stop()
    assert (await store.restore("c")).status == "ready"
    async with working(store, agent(server)):
        with Observer(dsn) as observer:
            await until(
                lambda: observer.rows("SELECT 1 FROM turnkeep.branch WHERE not_before IS NOT NULL"), "a hand-back"
            )
    checkpoint = await store.restore("c")
    assert (checkpoint.status, len(checkpoint.pending)) == ("ready", 1)


# -- transactional tools


@pytest.fixture
def ledger(dsn: str) -> Iterator[Callable[[], list[str]]]:
    """The keys in a table of somebody else's."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.ledger (key text)")
        yield lambda: [row[0] for row in connection.execute("SELECT key FROM public.ledger")]


INSERT = "INSERT INTO public.ledger VALUES (%s)"


async def run_refund(
    store: AsyncStore, model: Model, body: Callable[[ToolContext], Awaitable[str]]
) -> turnkeep.Checkpoint:
    """Run a turn with one call of a transactional tool."""

    @tool(transactional=True)
    async def refund(ctx: ToolContext) -> str:
        await ctx.connection.execute(INSERT, (ctx.idempotency_key,))
        return await body(ctx)

    server = model(calls("refund"), Reply(content="fine"))
    key = await ask(store)
    await drain(store, agent(server, refund))
    return (await store.wait_reply("c", key, seconds=60)).checkpoint


async def test_a_transactional_tool_that_raises_has_done_nothing(
    store: AsyncStore, model: Model, ledger: Callable[[], list[str]]
) -> None:
    async def body(ctx: ToolContext) -> str:
        raise ValueError("no")

    assert results(await run_refund(store, model, body)) == [("error", "ValueError: no")]
    assert ledger() == []


async def test_an_sql_commit_in_a_tool_makes_its_outcome_unknown(
    store: AsyncStore, model: Model, ledger: Callable[[], list[str]]
) -> None:
    async def body(ctx: ToolContext) -> str:
        with pytest.raises(psycopg.ProgrammingError):
            await ctx.connection.commit()
        await ctx.connection.execute("COMMIT")
        return "done"

    assert results(await run_refund(store, model, body)) == [("unknown", UNKNOWN_OUTCOME)]
    assert len(ledger()) == 1


async def test_an_sql_commit_before_an_error_is_no_plain_error(
    store: AsyncStore, model: Model, ledger: Callable[[], list[str]]
) -> None:
    async def body(ctx: ToolContext) -> str:
        await ctx.connection.execute("COMMIT")
        raise ValueError("after the commit")

    assert results(await run_refund(store, model, body)) == [("unknown", UNKNOWN_OUTCOME)]
    assert len(ledger()) == 1


@pytest.mark.parametrize("when", ["in the tool", "before the save"])
async def test_a_lost_connection_runs_a_transactional_tool_again(
    store: AsyncStore, model: Model, observer: Observer, ledger: Callable[[], list[str]], when: str
) -> None:
    tries = 0

    async def body(ctx: ToolContext) -> str:
        nonlocal tries
        tries += 1
        row = await (await ctx.connection.execute("SELECT pg_backend_pid()")).fetchone()
        if tries == 1 and row is not None:
            observer.rows("SELECT pg_terminate_backend(%s, 5000)", row[0])
        if when == "in the tool":
            await ctx.connection.execute("SELECT 1")
        return "done"

    assert results(await run_refund(store, model, body)) == [("ok", "done")]
    assert (tries, len(ledger())) == (2, 1)


async def test_a_deadlock_runs_a_transactional_tool_again(
    store: AsyncStore, model: Model, ledger: Callable[[], list[str]]
) -> None:
    tries = 0

    async def body(ctx: ToolContext) -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            await ctx.connection.execute("DO $$ BEGIN RAISE 'unlucky' USING ERRCODE = 'deadlock_detected'; END $$")
        return "done"

    assert results(await run_refund(store, model, body)) == [("ok", "done")]
    assert (tries, len(ledger())) == (2, 1)


async def test_transactional_tools_side_by_side_all_commit(
    store: AsyncStore, model: Model, ledger: Callable[[], list[str]]
) -> None:
    @tool(transactional=True)
    async def refund(ctx: ToolContext) -> str:
        await ctx.connection.execute(INSERT, (ctx.idempotency_key,))
        return ctx.idempotency_key

    server = model(Reply(tool_calls=[ToolCall("refund")] * 25), Reply(content="fine"))
    key = await ask(store)
    await drain(store, agent(server, refund))
    found = results((await store.wait_reply("c", key, seconds=60)).checkpoint)
    assert sorted(content for _, content in found) == sorted(ledger())
    assert len(set(ledger())) == 25


# -- leases, stopping


async def test_a_worker_whose_lease_is_lost_breaks_off_and_writes_nothing(
    store: AsyncStore, model: Model, dsn: str, observer: Observer
) -> None:
    began, broken_off = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            broken_off.set()
        return "slow"

    server = model(calls("slow"), Reply(content="fine"))
    key = await ask(store)
    async with working(store, agent(server, slow), lease_seconds=3):
        await began.wait()
        with psycopg.connect(dsn, autocommit=True) as thief:
            thief.execute("UPDATE turnkeep.branch SET lease_token = 1, lease_until = now() + interval '1 second'")
        await asyncio.wait_for(broken_off.wait(), 60)
        reply = await store.wait_reply("c", key, seconds=60)
    assert results(reply.checkpoint) == [("unknown", UNKNOWN_OUTCOME)]


async def test_a_worker_that_stood_still_longer_than_its_lease_goes_on_where_it_was(
    store: AsyncStore, model: Model, advance: Callable[[timedelta], None]
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    runs = 0

    @tool
    async def slow() -> str:
        nonlocal runs
        runs += 1
        began.set()
        await go_on.wait()
        return "slow"

    server = model(calls("slow"), Reply(content="fine"))
    key = await ask(store)
    async with working(store, agent(server, slow), lease_seconds=20):
        await began.wait()
        advance(timedelta(seconds=30))  # as if it had been stopped for so long
        assert (await store.restore("c")).status == "running"
        go_on.set()
        reply = await store.wait_reply("c", key, seconds=60)
    assert (results(reply.checkpoint), runs) == ([("ok", "slow")], 1)


def stop_clock(dsn: str, at: datetime) -> None:
    """Let the database's clock stand at a time, whatever time this machine takes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "CREATE OR REPLACE FUNCTION turnkeep.clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
                " AS $$ SELECT timestamptz {} $$"
            ).format(sql.Literal(at.isoformat()))
        )


async def test_a_tool_that_runs_longer_than_its_lease_keeps_it(
    store: AsyncStore, model: Model, dsn: str, observer: Observer
) -> None:
    began, renewed = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        began.set()
        await renewed.wait()
        return "slow"

    server = model(calls("slow"), Reply(content="fine"))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    stop_clock(dsn, now)
    key = await ask(store)
    async with working(store, agent(server, slow), lease_seconds=0.6), turnkeep.open(dsn) as other:
        await began.wait()
        for _ in range(4):  # twice as long as the lease
            now += timedelta(seconds=0.3)
            stop_clock(dsn, now)
            assert await other.claim_waiting(["support"], limit=1) == []
            end = now + timedelta(seconds=0.6)
            await until(partial(observer.rows, "SELECT FROM turnkeep.branch WHERE lease_until = %s", end), "a renewal")
        renewed.set()
        assert results((await store.wait_reply("c", key, seconds=60)).checkpoint) == [("ok", "slow")]


async def test_a_worker_told_to_stop_hands_back_and_lets_tools_end(store: AsyncStore, model: Model) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        began.set()
        await go_on.wait()
        return "slow"

    server = model(calls("slow"), Reply(content="fine"))
    await ask(store)
    async with working(store, agent(server, slow)) as worker:
        await began.wait()
        worker.stop()
        go_on.set()
    checkpoint = await store.restore("c")
    assert (checkpoint.status, checkpoint.lease_owner, results(checkpoint)) == ("ready", None, [("ok", "slow")])
    assert len(server.requests) == 1


async def test_options_that_cannot_be_sent_fail_the_turn_and_say_so(store: AsyncStore, model: Model) -> None:
    server = model(Reply(content="fine"))
    key = await ask(store)
    await drain(store, agent(server, options={"temperature": object()}))
    with pytest.raises(turnkeep.TurnFailedError) as caught:
        await store.wait_reply("c", key, seconds=60)
    assert caught.value.failure["type"] == "model_refused"
    assert await store.resume("c")
    await drain(store, agent(server))
    assert (await store.wait_reply("c", key, seconds=60)).content == "fine"


async def test_a_worker_outlives_its_postgres(model: Model) -> None:
    server = model(calls("echo", text="x"), Reply(content="fine", first_token_seconds=3600))
    with own_postgres() as postgres:
        turnkeep.migrate(postgres.conninfo)
        async with turnkeep.open(postgres.conninfo) as store, working(store, agent(server, echo), lease_seconds=20):
            key = await ask(store)
            await until(lambda: len(server.requests) == 2, "the second inference")
            os.kill(postgres.postmaster_pid(), signal.SIGKILL)
            server.pace(first_token_seconds=0)
            await asyncio.to_thread(postgres.ensure)
            reply = await store.wait_reply("c", key, seconds=60)
    assert results(reply.checkpoint) == [("ok", "x")]
    assert reply.content == "fine"
