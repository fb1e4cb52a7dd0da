"""A whole list that is saved and ends its turn in one call is two sub-steps, and all or nothing of it to its caller."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

import turnkeep
from tests.observing import Observer, table_held
from turnkeep import AsyncStore

LIST = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
CALL = {"id": "call_1", "name": "look"}
RESULT = {"tool_call_id": "call_1", "content": "seen"}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"tool_calls": [CALL]}, turnkeep.PendingCallsError),
        ({"tool_results": [RESULT]}, turnkeep.UnknownToolCallError),
        ({"tool_calls": [CALL], "tool_results": [RESULT, RESULT]}, turnkeep.UnknownToolCallError),
    ],
)
async def test_what_can_not_end_its_turn_does_not_begin_it(
    store: AsyncStore, observer: Observer, content: dict[str, Any], error: type[Exception]
) -> None:
    branch = await store.conversation("c")
    before = observer.counts()
    with pytest.raises(error):
        await branch.save_all(LIST, final=True, **content)
    assert observer.counts() == before
    assert (branch.turn_index, branch.messages) == (-1, [])


async def test_a_turn_opened_and_ended_with_its_calls_may_be_saved_again(store: AsyncStore, observer: Observer) -> None:
    write_id = uuid.uuid4()
    content: dict[str, Any] = {"tool_calls": [CALL], "tool_results": [RESULT], "final": True, "write_id": write_id}
    branch = await store.conversation("c")
    saved = await branch.save_all(LIST, **content)
    before = observer.counts()
    later = await store.conversation("c")
    for handle in (branch, later):
        again = await handle.save_all(LIST, **content)
        assert (again.turn_index, again.sub_step, again.repeated) == (saved.turn_index, saved.sub_step, True)
    with pytest.raises(turnkeep.KeyReusedError):
        await later.save_all(LIST, **{**content, "tool_calls": [{**CALL, "name": "listen"}]})
    assert observer.counts() == before


async def test_a_turn_that_was_opened_and_not_ended_is_ended_by_a_retry(
    dsn: str, store: AsyncStore, observer: Observer
) -> None:
    write_id = uuid.uuid4()
    content: dict[str, Any] = {"tool_calls": [CALL], "tool_results": [RESULT], "final": True, "write_id": write_id}
    branch = await store.conversation("c")
    with table_held(dsn, "turnkeep.document"):  # which only the turn's end writes to
        save = asyncio.ensure_future(branch.save_all(LIST, **content))
        await observer.see_waiting(1)
        save.cancel()
        await asyncio.gather(save, return_exceptions=True)
    assert (await store.restore("c")).sub_step == 0
    later = await store.conversation("c")
    for handle in (later, branch):
        saved = await handle.save_all(LIST, **content)
        assert (saved.turn_index, saved.sub_step, saved.final) == (0, 1, True)
    restored = await store.restore("c")
    assert (restored.phase, restored.messages, restored.pending) == ("final", LIST, ())
    assert observer.counts()["message"] == 2


async def test_a_mark_is_repeated_when_its_calls_have_been_answered(store: AsyncStore, observer: Observer) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(LIST[0])
    await branch.save([LIST[1]], tool_calls=[CALL, CALL])
    calls, write_id = branch.pending, uuid.uuid4()
    marked = await branch.mark_started(calls, write_id=write_id)
    await branch.save([], tool_results=[RESULT, RESULT])
    before = observer.counts()
    later = await store.conversation("c")
    again = await later.mark_started(calls, write_id=write_id)
    assert (again.sub_step, again.repeated) == (marked.sub_step, True)
    with pytest.raises(turnkeep.KeyReusedError):
        await later.mark_started(calls[:1], write_id=write_id)
    with pytest.raises(turnkeep.UnknownToolCallError):
        await later.mark_started(calls, write_id=uuid.uuid4())
    assert observer.counts() == before


async def test_a_retry_whose_calls_have_been_answered_has_to_be_the_same_write(
    store: AsyncStore, observer: Observer
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(LIST[0])
    await branch.save([LIST[1]], tool_calls=[CALL])
    write_id = uuid.uuid4()
    saved = await branch.save([{"role": "tool"}], tool_results=[RESULT], write_id=write_id)
    later = await store.conversation("c")
    again = await later.save([{"role": "tool"}], tool_results=[RESULT], write_id=write_id)
    assert (again.sub_step, again.repeated) == (saved.sub_step, True)
    before = observer.counts()
    for messages, result in (([{"role": "other"}], RESULT), ([{"role": "tool"}], {**RESULT, "content": "other"})):
        with pytest.raises(turnkeep.KeyReusedError):
            await later.save(messages, tool_results=[result], write_id=write_id)
    assert observer.counts() == before


async def test_a_handle_that_finds_its_turn_begun_knows_what_came_before_it(store: AsyncStore) -> None:
    """A turn begins after any sub-step of the one before: a handle may have missed some of them."""
    stale = await store.conversation("c")
    await stale.begin_turn(LIST[0])
    other, write_id = await store.conversation("c"), uuid.uuid4()
    await other.save([LIST[1]], final=True)
    await other.begin_turn({"role": "user", "content": "more"}, write_id=write_id)
    assert (await stale.begin_turn({"role": "user", "content": "more"}, write_id=write_id)).repeated
    assert stale.messages == other.messages
    assert (stale.turn_index, stale.sub_step, stale.turn_open) == (1, 0, True)
    await stale.save_all([*stale.messages[1:], {"role": "assistant"}])
    assert (await store.restore("c")).messages == [*other.messages[1:], {"role": "assistant"}]
