"""Reported failures that a worker must not have: with a real model server, and what the database says then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

import turnkeep
from tests.observing import Observer, until
from turnkeep import Agent, AsyncStore, Worker, tool
from turnkeep.runner import Tool
from turnkeep.testing import Exchange, ModelServer, Reply, ToolCall

SECRET = "sk-test-5e1f0c"
LARGE = 64 * 1024 * 1024


@asynccontextmanager
async def working(store: AsyncStore, *agents: Agent) -> AsyncIterator[None]:
    """A worker that runs beside the test, and is stopped at its end."""
    worker = Worker(store, agents, poll_seconds=0.02)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task


def agent(server: ModelServer, *tools: Tool, **settings: Any) -> Agent:
    return Agent("support", model="scripted", base_url=server.base_url, tools=tools, **settings)


async def drain(store: AsyncStore, *agents: Agent) -> None:
    await Worker(store, agents, poll_seconds=0.02).run(drain=True)


def tool_messages(checkpoint: turnkeep.Checkpoint) -> list[tuple[str, Any]]:
    return [(m["metadata"]["outcome"], m["content"]) for m in checkpoint.messages if m["role"] == "tool"]


def tables_with(dsn: str, text: str) -> list[str]:
    """The tables in whose rows a text can be read."""
    found = []
    with psycopg.connect(dsn) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'turnkeep'").fetchall()
        for (table,) in tables:
            query = sql.SQL("SELECT count(*) FROM {} AS t WHERE t::text LIKE {}").format(
                sql.Identifier("turnkeep", table), sql.Literal(f"%{text}%")
            )
            if connection.execute(query).fetchall() != [(0,)]:
                found.append(table)
    return found


async def test_secrets_of_an_agent_are_in_no_table_and_no_error(store: AsyncStore, dsn: str) -> None:
    @tool
    async def fail() -> None:
        raise RuntimeError("broken")

    replies = [Reply(tool_calls=[ToolCall("fail")]), Reply(content="fine", status=401, times=1)]
    with ModelServer([Exchange("*", replies)]) as server:
        mine = agent(server, fail, api_key=SECRET, options={"extra_headers": {"X-Token": SECRET}})
        key = (await store.post("c", "go", agent_id="support")).key
        await drain(store, mine)
        with pytest.raises(turnkeep.TurnFailedError) as caught:
            await store.wait_reply("c", key, seconds=30)
        assert await store.resume("c")
        await drain(store, mine)
        assert (await store.wait_reply("c", key, seconds=30)).content == "fine"
    assert "message" in tables_with(dsn, "broken")
    assert tables_with(dsn, SECRET) == []
    assert SECRET not in f"{caught.value!r} {caught.value.failure} {Agent('support', model='m', api_key=SECRET)!r}"


@pytest.mark.parametrize("size", [LARGE - 10, LARGE + 1, 270_000_000])
async def test_size_huge_message_of_a_tool_counts_as_completed_and_is_not_run_again(
    store: AsyncStore, size: int
) -> None:
    runs = []

    @tool(idempotent=True)
    async def dump() -> str:
        runs.append(size)
        return "x" * size

    with ModelServer([Exchange("*", [Reply(tool_calls=[ToolCall("dump")]), Reply(content="fine")])]) as server:
        key = (await store.post("c", "go", agent_id="support")).key
        await drain(store, agent(server, dump))
        ((outcome, content),) = tool_messages((await store.wait_reply("c", key, seconds=30)).checkpoint)
    assert outcome == "error"
    assert "67,043,328 bytes" in content
    assert len(runs) == 1


async def test_binary_content_of_a_tool_counts_as_completed_and_is_not_run_again(store: AsyncStore) -> None:
    runs = []

    @tool(idempotent=True)
    async def read() -> Any:
        runs.append(1)
        return {"files": [{"data": b"\xff\xfe\x00"}]}

    with ModelServer([Exchange("*", [Reply(tool_calls=[ToolCall("read")]), Reply(content="fine")])]) as server:
        key = (await store.post("c", "go", agent_id="support")).key
        await drain(store, agent(server, read))
        ((outcome, content),) = tool_messages((await store.wait_reply("c", key, seconds=30)).checkpoint)
    assert outcome == "error"
    assert "can't decode byte 0xff" in content
    assert len(runs) == 1


async def test_idle_in_transaction_nothing_is_open_while_model_and_tools_are_waited_for(
    dsn: str, observer: Observer
) -> None:
    in_tool, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        in_tool.set()
        await go_on.wait()
        return "done"

    replies = [Reply(tool_calls=[ToolCall("wait")], token_seconds=3600), Reply(content="fine", token_seconds=3600)]
    strict = psycopg.conninfo.make_conninfo(dsn, options="-c idle_in_transaction_session_timeout=1ms")
    with ModelServer([Exchange("*", replies)]) as server:
        async with turnkeep.open(strict) as store, working(store, agent(server, wait)):
            key = (await store.post("c", "go", agent_id="support")).key
            await until(lambda: server.status()["chunks"] == [1], "the middle of a reply")
            assert observer.in_transaction() == []
            server.pace(token_seconds=0)
            await in_tool.wait()
            assert observer.in_transaction() == []
            go_on.set()
            assert (await store.wait_reply("c", key, seconds=60)).content == "fine"


async def test_connection_dead_during_a_long_inference_loses_no_answer(dsn: str, observer: Observer) -> None:
    with ModelServer([Exchange("*", [Reply(content="a long answer that was paid for", token_seconds=3600)])]) as server:
        async with turnkeep.open(dsn) as store, working(store, agent(server)):
            key = (await store.post("c", "go", agent_id="support")).key
            await until(lambda: server.status()["chunks"] == [1], "the middle of a reply")
            ended = observer.rows(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'turnkeep'"
            )
            assert ended
            server.pace(token_seconds=0)
            assert (await store.wait_reply("c", key, seconds=60)).content == "a long answer that was paid for"
        assert len(server.requests) == 1


async def test_disk_full_stops_a_turn_before_its_next_side_effect_and_it_goes_on_later(
    store: AsyncStore, dsn: str, advance: Callable[[timedelta], None]
) -> None:
    ran = []

    @tool
    async def pay(number: int) -> str:
        ran.append(number)
        return f"paid {number}"

    replies = [
        Reply(tool_calls=[ToolCall("pay", {"number": 1})]),
        Reply(tool_calls=[ToolCall("pay", {"number": 2})]),
        Reply(content="fine"),
    ]
    full = (
        "CREATE FUNCTION public.no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.body::text LIKE '%paid 1%' THEN"
        " RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER no_space BEFORE INSERT ON turnkeep.message FOR EACH ROW EXECUTE FUNCTION public.no_space();"
    )
    with psycopg.connect(dsn, autocommit=True) as connection, ModelServer([Exchange("*", replies)]) as server:
        connection.execute(full)
        key = (await store.post("c", "go", agent_id="support")).key
        worker = Worker(store, [agent(server, pay)], poll_seconds=0.02)
        task = asyncio.create_task(worker.run())
        await until(lambda: ran, "the first side effect")
        worker.stop()
        await asyncio.gather(task, return_exceptions=True)
        assert set(ran) == {1}
        assert len(server.requests) == 1
        (pending,) = (await store.restore("c")).pending
        assert pending.attempts >= 1  # it has been started, and that is known
        connection.execute("DROP TRIGGER no_space ON turnkeep.message")
        advance(timedelta(seconds=20))  # beyond the lease of the worker that could not write any more
        await drain(store, agent(server, pay))
        reply = await store.wait_reply("c", key, seconds=60)
    assert reply.content == "fine"
    assert ran == [1, 2]  # whether the first has paid is not known, and so it is not run again
    assert [outcome for outcome, _ in tool_messages(reply.checkpoint)][-1] == "ok"


async def test_streaming_partial_words_are_in_no_checkpoint_and_what_tools_did_is(store: AsyncStore) -> None:
    ran = []

    @tool
    async def act() -> str:
        ran.append(1)
        return "acted"

    half = [Reply(tool_calls=[ToolCall("act")]), Reply(content=" ".join(map(str, range(200))), token_seconds=3600)]
    with ModelServer([Exchange("*", half)]) as server:
        async with working(store, agent(server, act)):
            key = (await store.post("c", "go", agent_id="support")).key
            await until(lambda: len(server.requests) == 2 and server.status()["chunks"] == [1], "the second reply")
            restored = await store.restore("c")
            assert [m["role"] for m in restored.messages] == ["user", "assistant", "tool"]
            assert tool_messages(restored) == [("ok", "acted")]
            server.kill()
            server.pace(token_seconds=0)
            server.start()
            reply = await store.wait_reply("c", key, seconds=60)
    assert reply.content == " ".join(map(str, range(200)))
    assert len(ran) == 1
