"""Whole lists saved again and again, and answers of the server that never arrive: nothing doubles (G4, G8)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

import turnkeep
from tests.observing import Observer
from tests.wire import Wire
from turnkeep import AsyncStore

USER = {"role": "user", "content": "go"}
Message = dict[str, Any]


async def test_reasoning_replay_blocks_stay_one_each_however_often_the_list_is_saved(
    store: AsyncStore, dsn: str
) -> None:
    for turn in range(20):
        async with turnkeep.open(dsn) as restarted:
            branch = await restarted.conversation("c")
            block = {"type": "thinking", "thinking": f"step {turn}", "signature": f"sig{turn}"}
            history = [*branch.messages, USER, {"role": "assistant", "content": [block]}]
            await branch.save_all(history)
            await branch.save_all(history, final=True)
    messages = (await store.restore("c")).messages
    blocks = [message["content"][0] for message in messages if message["role"] == "assistant"]
    assert [block["signature"] for block in blocks] == [f"sig{turn}" for turn in range(20)]
    with Observer(dsn) as observer:
        assert observer.counts()["message"] == 40


async def test_duplicate_tool_result_is_not_made_by_saving_the_list_once_more(store: AsyncStore, dsn: str) -> None:
    call = {"id": "X", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "X", "content": "r"}
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save([{"role": "assistant", "content": None, "tool_calls": [call]}], tool_calls=[call])
    await branch.save_all([*branch.messages, result], tool_results=[result])
    for _ in range(3):
        async with turnkeep.open(dsn) as restarted:
            resumed = await restarted.conversation("c")
            assert (await resumed.save_all(resumed.messages)).repeated
            with pytest.raises(turnkeep.UnknownToolCallError):
                await resumed.save_all([*resumed.messages, result], tool_results=[result])
    restored = await store.restore("c")
    assert [m["content"] for m in restored.messages if m["role"] == "tool"] == ["r"]
    assert restored.pending == ()


async def test_orphan_tool_message_of_a_shortened_list_is_the_callers_and_the_history_stays(store: AsyncStore) -> None:
    def exchange(number: int) -> list[Message]:
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return [
            {"role": "user", "content": number},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": "r"},
            {"role": "assistant", "content": "done"},
        ]

    whole = [*exchange(0), *exchange(1)]
    branch = await store.conversation("c")
    await branch.save_all(whole, final=True)
    assert (await store.restore("c")).messages == whole
    await branch.save_all(whole[4:], final=True)  # cut where an exchange begins: nothing is parted from its call
    assert (await store.restore("c")).messages == whole[4:]
    assert (await store.restore("c", at=(0, 0))).messages == whole


async def test_deadlock_append_and_whole_list_meet_none_on_one_conversation(
    store: AsyncStore, other: AsyncStore
) -> None:
    first = await store.conversation("c")
    await first.begin_turn(USER)
    second = await other.conversation("c")
    written = []

    async def write(branch: turnkeep.AsyncBranch, name: str, *, whole: bool) -> None:
        for number in range(40):
            message = {"role": "tool", "content": f"{name}{number}"}
            while True:
                try:
                    await (branch.save_all([*branch.messages, message]) if whole else branch.save([message]))
                    break
                except turnkeep.ConflictError:
                    await branch.refresh()
            written.append(message)

    await asyncio.gather(write(first, "a", whole=False), write(second, "b", whole=True))
    messages = (await store.restore("c")).messages
    assert messages[0] == USER
    assert sorted(m["content"] for m in messages[1:]) == sorted(m["content"] for m in written)
    for name in "ab":
        assert [m["content"] for m in messages[1:] if m["content"][0] == name] == [f"{name}{n}" for n in range(40)]


@pytest.mark.parametrize("write_id", [None, uuid.uuid4()], ids=["own", "given"])
async def test_commit_unknown_a_save_whose_answer_is_lost_is_one_row_and_a_success(
    dsn: str, write_id: uuid.UUID | None
) -> None:
    wire = Wire(dsn, words=b"paid for once")
    message = {"role": "assistant", "content": "paid for once"}
    async with wire as conninfo, turnkeep.open(conninfo) as store:
        branch = await store.conversation("c")
        await branch.begin_turn(USER)
        for number in range(1, 4):
            wire.cut_next = True
            saved = await branch.save([message], write_id=write_id and uuid.uuid5(write_id, str(number)))
            assert (saved.sub_step, wire.cuts) == (number, number)
        wire.cut_next = True
        await branch.save([message], final=True)
        wire.cut_next = True
        await branch.begin_turn(message, key="K")
        wire.cut_next = True
        await branch.save_all([*branch.messages, message])
        assert wire.cuts == 6
    with Observer(dsn) as observer:
        assert observer.counts()["message"] == 7
        assert observer.counts()["checkpoint"] == 7


async def test_commit_unknown_a_post_whose_answer_is_lost_is_one_request(dsn: str) -> None:
    wire = Wire(dsn, words=b"asked only once")
    async with wire as conninfo, turnkeep.open(conninfo) as store:
        await store.conversation("c")
        wire.cut_next = True
        await store.post("c", "asked only once", key="K")
        assert wire.cuts == 1
    with Observer(dsn) as observer:
        assert observer.counts()["request"] == 1
