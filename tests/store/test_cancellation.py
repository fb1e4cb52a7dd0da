"""Calls that are cancelled, run out of time, or come from the wrong place."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

import turnkeep
from tests.observing import Observer, branches_held, table_held
from tests.store.conftest import OpenStore

USER = {"role": "user", "content": "weather?"}
STEP = {"role": "assistant", "content": "let me see"}


async def open_turn(store: turnkeep.AsyncStore, name: str = "c") -> turnkeep.AsyncBranch:
    """A conversation in the middle of a turn."""
    branch = await store.conversation(name)
    await branch.begin_turn(USER)
    return branch


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a call and wait, within reason, until it has returned."""
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done, "a cancelled call does not return"
    assert task.cancelled()


@pytest.mark.parametrize("table", ["branch", "message", "checkpoint"])
async def test_a_cancelled_save_writes_nothing_after_it_has_returned(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer, table: str
) -> None:
    branch = await open_turn(store)
    before = observer.counts(), observer.heads()
    with table_held(dsn, f"turnkeep.{table}"):
        save = asyncio.ensure_future(branch.save([STEP]))
        await observer.see_waiting(1)
        await cancel(save)
        assert not observer.waiting()  # it has ended in the server, not only here
    assert (observer.counts(), observer.heads()) == before
    assert not observer.in_transaction()
    assert (await branch.save([STEP])).sub_step == 1


async def test_a_save_that_waits_for_another_of_its_handle_can_be_cancelled_alone(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await open_turn(store)
    with branches_held(dsn, branch.conversation_id):
        saves = [asyncio.ensure_future(branch.save([{**STEP, "n": n}])) for n in range(3)]
        await observer.see_waiting(1)
        await cancel(saves[1])
    await asyncio.gather(saves[0], saves[2])
    assert [message.get("n") for message in (await store.restore("c")).messages] == [None, 0, 2]


async def test_a_cancelled_save_with_a_write_id_can_be_sent_again_from_anywhere(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await open_turn(store)
    write_id = uuid.uuid4()
    with branches_held(dsn, branch.conversation_id):
        save = asyncio.ensure_future(branch.save([STEP], write_id=write_id))
        await observer.see_waiting(1)
        await cancel(save)
    fresh = await store.conversation("c")
    assert not (await fresh.save([STEP], write_id=write_id)).repeated
    assert (await branch.save([STEP], write_id=write_id)).repeated
    assert len((await store.restore("c")).messages) == 2


@pytest.mark.parametrize("call", ["claim", "renew", "release", "fork", "refresh"])
async def test_any_cancelled_call_leaves_no_transaction_and_a_store_that_works(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer, call: str
) -> None:
    branch = await open_turn(store)
    if call in ("renew", "release"):
        await branch.claim()
    before = observer.counts(), observer.heads()
    calls: dict[str, Any] = {
        "claim": branch.claim,
        "renew": branch.renew,
        "release": branch.release,
        "fork": lambda: store.fork("c"),
        "refresh": branch.refresh,
    }
    with table_held(dsn, "turnkeep.branch", "ACCESS EXCLUSIVE"):
        task = asyncio.ensure_future(calls[call]())
        await observer.see_waiting(1)
        await cancel(task)
    assert (observer.counts(), observer.heads()) == before
    assert not observer.in_transaction()
    await asyncio.wait_for(calls[call](), 60)


async def test_one_cancelled_among_two_hundred_savers_harms_none_of_the_others(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branches = [await open_turn(store, f"c{n}") for n in range(200)]
    with branches_held(dsn, branches[0].conversation_id):
        saves = [asyncio.ensure_future(branch.save([STEP])) for branch in branches]
        await observer.see_waiting(1)
        saves[0].cancel()
        outcomes = await asyncio.gather(*saves, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert {(saved.turn_index, saved.sub_step) for saved in outcomes[1:]} == {(0, 1)}  # type: ignore[union-attr]
    assert observer.counts()["checkpoint"] == 399
    assert not observer.in_transaction()


async def test_savers_cancelled_while_they_wait_for_a_connection_leave_the_pool_whole(
    dsn: str, observer: Observer
) -> None:
    async with turnkeep.open(dsn, pool_size=2) as store:
        branches = [await open_turn(store, f"c{n}") for n in range(20)]
        with table_held(dsn, "turnkeep.message"):
            saves = [asyncio.ensure_future(branch.save([STEP])) for branch in branches]
            await observer.see_waiting(2)
            for save in saves:
                save.cancel()
            outcomes = await asyncio.gather(*saves, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}
        assert observer.counts()["checkpoint"] == 20
        await asyncio.gather(*(branch.save([STEP]) for branch in branches))
    assert observer.counts()["checkpoint"] == 40


async def test_a_save_cancelled_again_and_again_costs_the_store_no_connection(dsn: str, observer: Observer) -> None:
    async with turnkeep.open(dsn, pool_size=2, timeout=60) as store:
        for number in range(6):  # more than there are connections
            branch = await open_turn(store, f"c{number}")
            write_id = uuid.uuid4()
            with branches_held(dsn, branch.conversation_id):
                save = asyncio.ensure_future(branch.save([STEP], write_id=write_id))
                await observer.see_waiting(1)
                while not save.done():
                    save.cancel()
                    await asyncio.sleep(0)
            await branch.save([STEP], write_id=write_id)  # it may have been done: nobody waited for an answer
            assert len((await store.restore(f"c{number}")).messages) == 2
    assert not observer.in_transaction()


async def test_a_save_given_up_by_wait_for_writes_nothing_later(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await open_turn(store)
    before = observer.counts(), observer.heads()
    with branches_held(dsn, branch.conversation_id):
        for _ in range(15):  # more than there are connections
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(branch.save([STEP]), 0.02)
    assert (observer.counts(), observer.heads()) == before
    assert not observer.in_transaction()
    await branch.save([STEP])


async def test_a_save_that_meets_the_stores_own_deadline_writes_nothing_later(
    dsn: str, observer: Observer, open_store: OpenStore
) -> None:
    async with open_store(dsn, timeout=2) as store:
        branch = await open_turn(store)
        before = observer.counts(), observer.heads()
        with branches_held(dsn, branch.conversation_id):
            with pytest.raises(turnkeep.UnavailableError, match="write_id"):
                await branch.save([STEP])
            assert not observer.waiting()
        assert (observer.counts(), observer.heads()) == before
        await branch.save([STEP])


async def test_callers_beyond_the_pool_are_told_so(dsn: str, observer: Observer, open_store: OpenStore) -> None:
    async with open_store(dsn, pool_size=1, timeout=3) as store:
        branch = await open_turn(store)
        with branches_held(dsn, branch.conversation_id):
            save = asyncio.ensure_future(branch.save([STEP]))
            await observer.see_waiting(1)
            calls = await asyncio.gather(*(store.fork("c") for _ in range(5)), return_exceptions=True)
            with pytest.raises(turnkeep.UnavailableError):
                await save
        # The connection may have come free for one of them just before its deadline.
        exhausted = [error for error in calls if isinstance(error, turnkeep.PoolExhaustedError)]
        assert len(exhausted) >= 4, calls
        assert "pool_size" in str(exhausted[0])
        assert await branch.save([STEP])


async def test_what_a_caller_changes_while_a_save_waits_is_not_stored(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await open_turn(store)
    calls = [{"id": "a", "name": "x"}, {"id": "b", "name": "y"}]
    await branch.save([STEP], tool_calls=calls)
    message: dict[str, Any] = {"role": "tool", "content": "as it was"}
    result: dict[str, Any] = {"tool_call_id": "b", "content": "as it was"}
    state: dict[str, Any] = {"said": "as it was"}
    messages, results = [message], [result]
    with branches_held(dsn, branch.conversation_id):
        first = asyncio.ensure_future(branch.save([STEP]))
        second = asyncio.ensure_future(branch.save(messages, tool_results=results, state=state))
        await observer.see_waiting(1)
        message["content"] = result["content"] = state["said"] = "changed"
        result["tool_call_id"] = "a"
        messages.append(message)
    await asyncio.gather(first, second)
    restored = await store.restore("c")
    assert restored.messages[-1] == {"role": "tool", "content": "as it was"}
    assert len(restored.messages) == 4
    assert restored.state == {"said": "as it was"}
    assert restored.tool_results == [{"tool_call_id": "b", "content": "as it was"}]
    assert [call.call_id for call in restored.pending] == ["a"]
    assert branch.pending == restored.pending


async def test_a_store_used_from_another_event_loop_says_so(store: turnkeep.AsyncStore) -> None:
    branch = await open_turn(store)

    async def misuse() -> None:
        with pytest.raises(turnkeep.UsageError):
            await store.restore("c")
        with pytest.raises(turnkeep.UsageError):
            await branch.save([STEP])

    await asyncio.to_thread(asyncio.run, misuse())
    await branch.save([STEP])


async def test_a_branch_used_from_another_event_loop_while_it_is_busy_says_so(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await open_turn(store)

    async def misuse() -> None:
        with pytest.raises(turnkeep.UsageError):
            await branch.save([STEP])

    with branches_held(dsn, branch.conversation_id):
        saves = [asyncio.ensure_future(branch.save([STEP])) for _ in range(2)]
        await observer.see_waiting(1)
        await asyncio.to_thread(asyncio.run, misuse())
    await asyncio.gather(*saves)


async def test_a_store_used_before_open_or_after_close_says_so(dsn: str) -> None:
    store = turnkeep.open(dsn)
    with pytest.raises(turnkeep.UsageError):
        await store.restore("c")
    async with store:
        branch = await open_turn(store)
    for call in (branch.save([STEP]), branch.refresh(), branch.claim(), store.restore("c"), store.fork("c")):
        with pytest.raises(turnkeep.UsageError):
            await call


async def test_a_store_closed_under_a_waiting_call_ends_it_with_an_error_of_ours(dsn: str, observer: Observer) -> None:
    store = turnkeep.open(dsn, pool_size=1)
    await store.open()
    branch = await open_turn(store)
    with branches_held(dsn, branch.conversation_id):
        save = asyncio.ensure_future(branch.save([STEP]))
        await observer.see_waiting(1)
        queued = asyncio.ensure_future(store.restore("c"))
        await asyncio.sleep(0)  # let it ask for a connection
        closing = asyncio.ensure_future(store.close())
        with pytest.raises(turnkeep.UsageError):
            await queued
    await asyncio.gather(save, closing, return_exceptions=True)
    assert save.exception() is None or isinstance(save.exception(), turnkeep.TurnkeepError)
