"""A worker beside people who erase and end what it runs: it drops that, and goes on with the rest."""

from __future__ import annotations

import asyncio
import logging

import pytest

import turnkeep
from tests.acceptance.test_runner import Model, agent, ask, calls, drain, model, working
from tests.observing import Observer, until
from turnkeep import AsyncStore, ToolContext, tool
from turnkeep.testing import Reply

__all__ = [
    "model",
]  # fixtures


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as an error, or with a traceback."""
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR or one.exc_info]


async def test_what_is_erased_in_the_middle_of_a_reply_is_dropped(
    store: AsyncStore, model: Model, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    server = model(Reply(content="one two three four", token_seconds=3600))
    async with working(store, agent(server)) as worker:
        await ask(store)
        await until(lambda: server.status()["chunks"] == [1], "the middle of a reply")
        erased = await store.erase("c")
        server.kill()
        server.pace(token_seconds=0)
        server.start()  # asked again, it gives the whole reply, which has no place any more
        await until(lambda: not worker._driven, "the worker's letting go")
        assert observer.traces([turnkeep.conversation_uuid("c")], "one two") == {}
        key = await ask(store, name="other")
        assert (await store.wait_reply("other", key, seconds=60)).content == "one two three four"
    assert (erased.conversations, erased.checkpoints, erased.requests) == (1, 1, 1)
    assert len(server.requests) == 3
    assert complaints(caplog) == []


async def test_what_is_erased_during_an_inference_without_end_is_dropped_when_its_lease_is_renewed(
    store: AsyncStore, model: Model, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    server = model(Reply(content="one two", token_seconds=3600))
    async with working(store, agent(server), lease_seconds=1.0) as worker:
        await ask(store)
        await until(lambda: server.status()["chunks"] == [1], "the middle of a reply")
        await store.erase("c")
        await until(lambda: not worker._driven, "the worker's letting go")
    assert observer.traces([turnkeep.conversation_uuid("c")], "one two") == {}
    assert len(server.requests) == 1
    assert complaints(caplog) == []


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_tool_may_erase_the_conversation_it_is_called_in(
    store: AsyncStore, model: Model, observer: Observer, caplog: pytest.LogCaptureFixture, transactional: bool
) -> None:
    forgotten: list[turnkeep.Erased] = []

    @tool(transactional=transactional)
    async def forget_me(ctx: ToolContext) -> str:
        forgotten.append(await store.erase(ctx.conversation_id))
        return "forgotten"

    @tool(idempotent=True)
    async def beside() -> str:
        await until(lambda: forgotten, "the erasure")
        return "beside"

    server = model(calls("forget_me", "beside"), Reply(content="fine"))
    await ask(store)
    await drain(store, agent(server, forget_me, beside))
    assert [one.conversations for one in forgotten] == [1]
    assert observer.traces([turnkeep.conversation_uuid("c")], "forgotten") == {}
    assert len(server.requests) == 1
    assert complaints(caplog) == []


async def test_what_runs_is_not_ended_and_what_has_ended_does_not_run(store: AsyncStore, model: Model) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @tool(idempotent=True)
    async def slow() -> str:
        began.set()
        await go_on.wait()
        return "slow"

    server = model(calls("slow"), Reply(content="fine"))
    async with working(store, agent(server, slow)):
        key = await ask(store)
        await began.wait()
        with pytest.raises(turnkeep.LeaseHeldError, match="is running it"):
            await store.end("c")
        go_on.set()
        assert (await store.wait_reply("c", key, seconds=60)).content == "fine"
    next_key = await ask(store, "more")
    await store.end("c")
    await drain(store, agent(server, slow))
    assert len(server.requests) == 2
    with pytest.raises(turnkeep.ConversationEndedError):
        await store.wait_reply("c", next_key, seconds=60)
    await store.reopen("c")
    await drain(store, agent(server, slow))
    assert (await store.wait_reply("c", next_key, seconds=60)).content == "fine"


async def test_a_turn_handed_back_before_an_end_goes_on_after_it_is_reopened(store: AsyncStore, model: Model) -> None:
    began = asyncio.Event()

    @tool(idempotent=True)
    async def slow() -> str:
        began.set()
        return "slow"

    server = model(calls("slow"), Reply(content="fine", first_token_seconds=3600))
    key = await ask(store)
    async with working(store, agent(server, slow)) as worker:
        await began.wait()
        await until(lambda: len(server.requests) == 2, "the second inference")
        worker.stop()
    assert (await store.restore("c")).status == "ready"
    await store.end("c")
    assert (await store.reopen("c")).ended_at is None
    server.pace(first_token_seconds=0)
    await drain(store, agent(server, slow))
    assert (await store.wait_reply("c", key, seconds=60)).content == "fine"
