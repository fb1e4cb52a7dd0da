"""Tool calls and their results: each occurrence has exactly one, whatever its provider calls it (G6, G7)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import turnkeep
from turnkeep import AsyncBranch, AsyncStore, RawJSON

USER = {"role": "user", "content": "go"}


def assistant(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def call(call_id: str, name: str = "f") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


async def issue(store: AsyncStore, *calls: dict[str, Any]) -> AsyncBranch:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save([assistant(*calls)], tool_calls=calls)
    return branch


async def test_dangling_tool_call_is_listed_and_must_be_answered_before_anything_else(
    store: AsyncStore, dsn: str
) -> None:
    await issue(store, call("call_a", "write_file"))
    async with turnkeep.open(dsn) as restarted:  # whoever issued it is dead
        (pending,) = (await restarted.restore("c")).pending
        assert (pending.call_id, pending.attempts, pending.call) == ("call_a", 0, call("call_a", "write_file"))
        branch = await restarted.conversation("c")
        with pytest.raises(turnkeep.TurnOpenError, match=r"write_file \(call_a\)"):
            await branch.begin_turn({"role": "user", "content": "go on"})
        with pytest.raises(turnkeep.PendingCallsError, match=r"write_file \(call_a\)"):
            await branch.save([], final=True)
        unknown = result("call_a", "interrupted: whether the file was written is not known")
        await branch.save([unknown], tool_results=[unknown], final=True)
        await branch.begin_turn({"role": "user", "content": "go on"})
    messages = (await store.restore("c")).messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]


async def test_dangling_tool_call_that_was_started_says_so_and_is_not_dropped(store: AsyncStore, dsn: str) -> None:
    branch = await issue(store, call("call_a", "write_file"))
    await branch.mark_started(branch.pending)
    async with turnkeep.open(dsn) as restarted:
        (pending,) = (await restarted.restore("c")).pending
        assert (pending.call_id, pending.attempts) == ("call_a", 1)
        assert (await restarted.restore("c")).messages[-1] == assistant(call("call_a", "write_file"))


async def test_dangling_tool_call_of_a_batch_tells_done_from_started_from_never_started(
    store: AsyncStore, dsn: str
) -> None:
    branch = await issue(store, call("1"), call("2"), call("3"))
    await branch.mark_started(branch.pending[:2])
    await branch.save([result("1", "kept")], tool_results=[result("1", "kept")])
    async with turnkeep.open(dsn) as restarted:
        restored = await restarted.restore("c")
    assert restored.messages[-1] == result("1", "kept")
    assert [(pending.call_id, pending.attempts) for pending in restored.pending] == [("2", 1), ("3", 0)]


async def test_dangling_tool_call_is_in_no_checkpoint_that_ends_a_turn(store: AsyncStore) -> None:
    branch = await issue(store, call("1"), call("2"))
    await branch.save([result("1", "r")], tool_results=[result("1", "r")])
    for at in ((0, 1), (0, 2)):
        between = await store.restore("c", at=at)
        assert between.turn_open
        assert between.pending
    await branch.save([result("2", "r")], tool_results=[result("2", "r")], final=True)
    ended = await store.restore("c")
    assert (ended.phase, ended.pending) == ("final", ())


async def test_duplicate_tool_result_is_not_made_by_three_resumes(store: AsyncStore, dsn: str) -> None:
    branch = await issue(store, call("X"))
    await branch.save([result("X", "r")], tool_results=[result("X", "r")])
    for number in range(3):
        async with turnkeep.open(dsn) as restarted:
            resumed = await restarted.conversation("c")
            assert resumed.pending == ()
            with pytest.raises(turnkeep.UnknownToolCallError):
                await resumed.save([result("X", "again")], tool_results=[result("X", "again")])
            await resumed.save([{"role": "assistant", "content": str(number)}])
    messages = (await store.restore("c")).messages
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["r"]


async def test_duplicate_tool_result_that_is_late_is_refused_after_the_one_made_up_for_it(
    store: AsyncStore, other: AsyncStore
) -> None:
    surviving = await issue(store, call("X"))
    repairing = await other.conversation("c")
    made_up = result("X", "interrupted, outcome unknown")
    await repairing.save([made_up], tool_results=[made_up])
    late = result("X", "the real one")
    with pytest.raises(turnkeep.ConflictError):
        await surviving.save([late], tool_results=[late])
    await surviving.refresh()
    with pytest.raises(turnkeep.UnknownToolCallError, match="pending: none"):
        await surviving.save([late], tool_results=[late])
    assert [m["content"] for m in (await store.restore("c")).messages[2:]] == ["interrupted, outcome unknown"]


async def test_tool_id_reuse_in_four_rounds_keeps_all_four_results_in_their_places(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    for number in range(1, 5):
        await branch.save([assistant(call("X"))], tool_calls=[call("X")])
        await branch.save([result("X", f"r{number}")], tool_results=[result("X", f"r{number}")])
    async with turnkeep.open(dsn) as restarted:
        restored = await restarted.restore("c")
    expected = [m for n in range(1, 5) for m in (assistant(call("X")), result("X", f"r{n}"))]
    assert restored.messages[1:] == expected
    assert restored.pending == ()


TWO_CALLS = (
    '{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"x",'
    '"arguments":"{}"}},{"id":"b","type":"function","function":{"name":"y","arguments":"{}"}}]}'
)


async def test_parallel_tools_partial_is_one_message_and_each_result_has_its_call(store: AsyncStore) -> None:
    calls = json.loads(TWO_CALLS)["tool_calls"]
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save([RawJSON(TWO_CALLS)], tool_calls=calls)
    for call_id in ("b", "a"):
        await branch.save([result(call_id, call_id)], tool_results=[result(call_id, call_id)])
    restored = await store.restore("c")
    assert restored.message_texts[1] == TWO_CALLS
    assert [message["tool_call_id"] for message in restored.messages[2:]] == ["b", "a"]
    assert restored.pending == ()


async def test_parallel_tools_partial_keeps_two_results_and_leaves_only_the_third(store: AsyncStore, dsn: str) -> None:
    names = ("send_email", "update_db", "notify")
    branch = await issue(store, *(call(name, name) for name in names))
    done = [result(name, f"{name} done") for name in names[:2]]
    await asyncio.gather(*(branch.save([one], tool_results=[one]) for one in done))  # each as it lands
    async with turnkeep.open(dsn) as restarted:
        restored = await restarted.restore("c")
    assert sorted(m["content"] for m in restored.messages[2:]) == ["send_email done", "update_db done"]
    assert [pending.call_id for pending in restored.pending] == ["notify"]


async def test_orphan_tool_message_a_caption_between_call_and_result_parts_no_pair(store: AsyncStore) -> None:
    branch = await issue(store, call("A"), call("B"))
    await branch.save([result("B", "rB")], tool_results=[result("B", "rB")])
    await branch.save([{"role": "assistant", "content": "a caption"}])
    assert [pending.call_id for pending in branch.pending] == ["A"]
    await branch.save([result("A", "rA")], tool_results=[result("A", "rA")])
    restored = await store.restore("c")
    assert restored.pending == ()
    assert [m["content"] for m in restored.messages[2:]] == ["rB", "a caption", "rA"]
