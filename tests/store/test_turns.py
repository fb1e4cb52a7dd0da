"""Turns and sub-steps: what is saved is restored, in order, and a save means what it says."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

import turnkeep
from turnkeep import AsyncStore

USER = {"role": "user", "content": "weather in Oslo and Bergen?"}
CALLS = [{"id": "call_0", "name": "weather", "arguments": {"city": city}} for city in ("Oslo", "Bergen", "Tromsø")]


def assistant(text: str | None = None, calls: Sequence[object] = ()) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "metadata": {"tool_calls": list(calls)}}


async def test_a_conversation_is_created_once_and_found_again(store: AsyncStore) -> None:
    first = await store.conversation("ticket-42", agent_id="support")
    await first.begin_turn(USER)
    again = await store.conversation("ticket-42")
    assert (again.conversation_id, again.agent_id) == (first.conversation_id, "support")
    assert (again.turn_index, again.sub_step, again.turn_open) == (0, 0, True)
    assert again.messages == [USER]


async def test_saves_are_restored_in_order_with_state_calls_and_results(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER, state={"step_count": 0})
    await branch.save([assistant(calls=CALLS[:1])], tool_calls=CALLS[:1], state={"step_count": 1})
    tool = {"role": "tool", "content": "-3 °C"}
    await branch.save([tool], tool_results=[{"tool_call_id": "call_0", "content": "-3 °C"}])
    ended = await branch.save([assistant("-3 °C")], state={"step_count": 2}, final=True)
    assert (ended.turn_index, ended.sub_step, ended.final, ended.repeated) == (0, 3, True, False)

    restored = await store.restore("c")
    assert restored.messages == [USER, assistant(calls=CALLS[:1]), tool, assistant("-3 °C")]
    assert (restored.state, restored.phase, restored.turn_open) == ({"step_count": 2}, "final", False)
    middle = await store.restore("c", at=(0, 2))
    assert middle.messages == [USER, assistant(calls=CALLS[:1]), tool]
    assert (middle.state, middle.phase, middle.pending) == ({"step_count": 1}, "tool_results", ())
    assert middle.tool_results == [{"tool_call_id": "call_0", "content": "-3 °C"}]
    assert middle.parent == (0, 1, 0)


async def test_a_state_that_is_not_passed_goes_on_and_null_is_a_state(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER, state={"a": 1})
    await branch.save([])
    assert (await store.restore("c")).state == {"a": 1}
    await branch.save([], state=None)
    assert (await store.restore("c")).state_text == "null"


async def test_equal_messages_are_two_messages(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    for _ in range(2):
        await branch.begin_turn({"role": "user", "content": "yes"})
        await branch.save([assistant("done")], final=True)
    assert (await store.restore("c")).messages == [{"role": "user", "content": "yes"}, assistant("done")] * 2


@pytest.mark.parametrize("given", [USER, [USER], [{"role": "system", "content": "be brief"}, USER]])
async def test_a_turn_begins_with_one_message_or_several(store: AsyncStore, given: Any) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(given)
    assert (await store.restore("c")).messages == (given if isinstance(given, list) else [given])


async def test_a_second_turn_needs_the_first_to_end(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    with pytest.raises(turnkeep.TurnNotOpenError):
        await branch.save([assistant("too early")])
    await branch.begin_turn(USER)
    await branch.save([assistant(calls=CALLS)], tool_calls=CALLS)
    with pytest.raises(turnkeep.TurnOpenError, match=r"weather \(call_0\) of turn 0\.1") as raised:
        await branch.begin_turn(USER)
    assert [call.index for call in raised.value.pending] == [0, 1, 2]
    with pytest.raises(turnkeep.PendingCallsError):
        await branch.save([assistant("done")], final=True)
    assert (await store.restore("c")).sub_step == 1


async def test_calls_with_one_id_are_answered_one_by_one_in_order(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save([assistant(calls=CALLS)], tool_calls=CALLS)
    for left in (2, 1, 0):
        await branch.save([{"role": "tool"}], tool_results=[{"tool_call_id": "call_0"}])
        restored = await store.restore("c")
        assert [call.index for call in restored.pending] == [2, 1, 0][:left][::-1]
        assert restored.pending == branch.pending
    with pytest.raises(turnkeep.UnknownToolCallError, match="pending: none"):
        await branch.save([{"role": "tool"}], tool_results=[{"tool_call_id": "call_0"}])


async def test_answers_name_the_calls_that_results_settle_in_any_order(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save([assistant(calls=CALLS)], tool_calls=CALLS)
    third, first = branch.pending[2], branch.pending[0]
    await branch.save([{"role": "tool"}] * 2, tool_results=["late", "early"], answers=[third, first])
    (left,) = (await store.restore("c")).pending
    assert (left.place, left.call, left.uncertain) == ((0, 1, 1), CALLS[1], False)
    with pytest.raises(turnkeep.UnknownToolCallError):
        await branch.save([], tool_results=["again"], answers=[third])
    with pytest.raises(turnkeep.InvalidInputError, match="0 calls for 1"):
        await branch.save([], tool_results=["again"], answers=[])


async def test_calls_issued_in_two_sub_steps_stay_pending_side_by_side(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    for _ in range(2):
        await branch.save([assistant(calls=CALLS[:1])], tool_calls=CALLS[:1])
    assert [call.place for call in (await store.restore("c")).pending] == [(0, 1, 0), (0, 2, 0)]


async def test_a_key_begins_one_turn_from_any_handle(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    begun = await branch.begin_turn(USER, key="message-1")
    await branch.save([assistant("…")])
    other = await store.conversation("c")
    again = await other.begin_turn(dict(reversed(USER.items())), key="message-1")
    assert (again.turn_index, again.sub_step, again.repeated, again.final) == (begun.turn_index, 1, True, False)
    await other.save([assistant("done")], final=True)
    with pytest.raises(turnkeep.KeyReusedError, match="message-1"):
        await other.begin_turn({"role": "user", "content": "something else"}, key="message-1")
    await other.begin_turn(USER, key="message-2")
    await other.save([assistant("done")], final=True)
    ended = await (await store.conversation("c")).begin_turn(USER, key="message-1")
    assert (ended.turn_index, ended.sub_step, ended.final) == (0, 2, True)
    assert len((await store.restore("c")).messages) == 5


async def test_a_write_id_gives_its_first_outcome_from_any_handle_at_any_time(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    begin, call, result, end = (uuid.uuid4() for _ in range(4))

    async def steps(handle: turnkeep.AsyncBranch) -> list[turnkeep.Saved]:
        return [
            await handle.begin_turn(USER, write_id=begin),
            await handle.save([assistant(calls=CALLS[:1])], tool_calls=CALLS[:1], write_id=call),
            await handle.save([{"role": "tool"}], tool_results=[{"tool_call_id": "call_0"}], write_id=result),
            await handle.save([assistant("done")], final=True, write_id=end),
        ]

    first = await steps(branch)
    for handle in (branch, await store.conversation("c")):
        again = await steps(handle)
        assert [(s.turn_index, s.sub_step, s.final) for s in again] == [
            (s.turn_index, s.sub_step, s.final) for s in first
        ]
        assert all(s.repeated for s in again)
    assert len((await store.restore("c")).messages) == 4


async def test_a_stale_handle_conflicts_until_it_is_refreshed(store: AsyncStore) -> None:
    mine, theirs = await store.conversation("c"), await store.conversation("c")
    await theirs.begin_turn(USER)
    with pytest.raises(turnkeep.ConflictError, match=r"its head is 0\.0 now, not -1\.0"):
        await mine.begin_turn(USER)
    refreshed = await mine.refresh()
    assert refreshed.messages == [USER]
    await mine.save([assistant("mine")], final=True)
    assert len((await store.restore("c")).messages) == 2


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"messages": [{"a": [1, {"b": float("nan")}]}]}, r'messages\[0\]\["a"\]\[1\]\["b"\]'),
        ({"messages": [{}], "state": {"x": b"raw"}}, r'state\["x"\]'),
        ({"messages": [{}], "tool_calls": [{"f": {1, 2}}]}, r'tool_calls\[0\]\["f"\]'),
        ({"messages": [{}], "tool_results": [{1: "key"}]}, r"tool_results\[0\]"),
        ({"messages": ["text"]}, r"messages\[0\]"),
        ({"messages": "text"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": [turnkeep.RawJSON("[1]")]}, r"messages\[0\]"),
        ({"messages": [{}], "write_id": "x"}, "write_id"),
    ],
)
async def test_what_cannot_be_stored_is_refused_by_its_path_and_nothing_is_written(
    store: AsyncStore, arguments: dict[str, Any], path: str
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    with pytest.raises(turnkeep.InvalidInputError, match=path):
        await branch.save(**arguments)
    assert (await store.restore("c")).sub_step == 0
    await branch.save([assistant("still works")], final=True)


@pytest.mark.parametrize("name", ["", "\0", "\ud800", "x" * 1001, 7, None, b"x"])
async def test_an_id_that_no_column_holds_is_refused(store: AsyncStore, name: Any) -> None:
    with pytest.raises(turnkeep.InvalidInputError, match="conversation"):
        await store.conversation(name)


@pytest.mark.parametrize("key", ["", "a\0b", "\udc00", "k" * 501])
async def test_a_key_that_no_index_holds_is_refused(store: AsyncStore, key: str) -> None:
    branch = await store.conversation("c")
    with pytest.raises(turnkeep.InvalidInputError, match="key"):
        await branch.begin_turn(USER, key=key)


async def test_a_long_incompressible_key_works(store: AsyncStore) -> None:
    key = "".join(chr(0x4E00 + (i * 7919) % 20000) for i in range(500))
    branch = await store.conversation("c", agent_id=key[:255])
    assert not (await branch.begin_turn(USER, key=key)).repeated
    assert (await branch.begin_turn(USER, key=key)).repeated


@pytest.mark.parametrize("text", ["thread_abc", "-100212", "ÄÖ/ü x", "6F0F0C5E-6C0B-5D5B-9E0A-7A6B2F1C8D4E", "a@b.c"])
async def test_any_text_names_one_conversation_verbatim(store: AsyncStore, text: str) -> None:
    branch = await store.conversation(text)
    assert branch.external_id == text
    assert (await store.restore(text)).conversation_id == branch.conversation_id == turnkeep.conversation_uuid(text)
    assert turnkeep.conversation_uuid(text) != turnkeep.conversation_uuid(text.swapcase() + "x")


async def test_only_a_canonical_uuid_names_itself(store: AsyncStore) -> None:
    own = uuid.uuid4()
    branch = await store.conversation(str(own))
    assert branch.conversation_id == own
    assert (await store.conversation(own)).conversation_id == own
    spellings = [str(own).upper(), own.hex, f"{{{own}}}", f"urn:uuid:{own}"]
    assert own not in {turnkeep.conversation_uuid(text) for text in spellings}


async def test_what_is_not_there_is_not_found(store: AsyncStore) -> None:
    with pytest.raises(turnkeep.NotFoundError, match="'nobody'"):
        await store.restore("nobody")
    await store.conversation("c")
    with pytest.raises(turnkeep.NotFoundError):
        await store.restore("c", branch=3)
    with pytest.raises(turnkeep.NotFoundError):
        await store.restore("c", at=(0, 0))
    with pytest.raises(turnkeep.NotFoundError):
        await store.conversation("c", branch=3)
    with pytest.raises(turnkeep.NotFoundError):
        await store.history("nobody")
    assert await store.history("c") == []


async def test_lost_messages_are_noticed_and_never_passed_over(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn([USER, USER, USER])
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM turnkeep.message WHERE position = 1")
    with pytest.raises(turnkeep.CorruptionError, match="3 messages were saved, 2 are there"):
        await store.restore("c")


async def test_a_lost_head_is_noticed(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM turnkeep.checkpoint")
    with pytest.raises(turnkeep.CorruptionError, match=r"checkpoint 0\.0 is missing"):
        await store.restore("c")


async def test_times_rise_along_a_branch_whatever_the_clock_does(store: AsyncStore, advance: Any, dsn: str) -> None:
    from datetime import timedelta

    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    advance(timedelta(hours=-5))
    for number in range(5):
        await branch.save([assistant(str(number))])
    history = await store.history("c")
    times = [checkpoint.created_at for checkpoint in history]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 6
    assert all(time.tzinfo is not None for time in times)
    assert [m.get("content") for m in (await store.restore("c")).messages[1:]] == list("01234")


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [assistant("other")]},
        {"messages": [assistant("same"), assistant("same")]},
        {"messages": []},
        {"messages": [assistant("same")], "final": True},
        {"messages": [assistant("same")], "tool_calls": CALLS[:1]},
    ],
)
async def test_a_write_id_with_other_content_is_an_error_and_writes_nothing(
    store: AsyncStore, other: dict[str, Any]
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn([USER, USER])
    write_id = uuid.uuid4()
    await branch.save([assistant("same")], write_id=write_id)
    for handle in (branch, await store.conversation("c")):
        with pytest.raises(turnkeep.KeyReusedError, match=r"write_id stands at 0\.1 with other content"):
            await handle.save(**other, write_id=write_id)
        again = await handle.save([turnkeep.RawJSON(json.dumps(assistant("same"), indent=1))], write_id=write_id)
        assert (again.sub_step, again.repeated, again.final) == (1, True, False)
    assert (await store.restore("c")).sub_step == 1


async def test_a_write_id_is_known_again_after_several_messages_and_on_a_fork(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    fork = await store.fork("c")
    write_id = uuid.uuid4()
    several = [assistant("a"), assistant("b\0")]
    await fork.save(several, write_id=write_id)
    assert (await (await store.conversation("c", branch=1)).save(several, write_id=write_id)).repeated
    with pytest.raises(turnkeep.KeyReusedError):
        await fork.save([assistant("a"), assistant("c")], write_id=write_id)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ({"id": "fc_1", "call_id": "call_1", "type": "function_call"}, {"call_id": "call_1", "output": "x"}),
        ({"id": "call_1", "type": "function"}, {"role": "tool", "tool_call_id": "call_1"}),
        ({"id": "toolu_1", "type": "tool_use"}, {"type": "tool_result", "tool_use_id": "toolu_1"}),
        ({"tool_call_id": "pyd_1", "part_kind": "tool-call"}, {"tool_call_id": "pyd_1", "part_kind": "tool-return"}),
        ({"name": "no id", "args": {}}, {"name": "no id", "response": {}}),
    ],
)
async def test_results_find_their_calls_in_every_dialect(store: AsyncStore, call: Any, result: Any) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save([assistant()], tool_calls=[call])
    await branch.save([assistant()], tool_results=[result])
    assert branch.pending == ()


async def test_a_handle_always_has_the_messages_and_the_state_of_its_head(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    assert (branch.messages, branch.state) == ([], None)
    await branch.begin_turn(USER, state={"n": 0})
    assert (branch.messages, branch.state) == ([USER], {"n": 0})
    await branch.save([assistant("a"), assistant("b")])
    with pytest.raises(turnkeep.InvalidInputError):
        await branch.save([assistant("never")], state=b"")
    assert (branch.messages, branch.state) == ([USER, assistant("a"), assistant("b")], {"n": 0})
    await branch.save([], state=[1], final=True)
    for handle in (branch, await store.conversation("c")):
        assert (handle.messages, handle.state) == ([USER, assistant("a"), assistant("b")], [1])


async def test_arguments_of_the_wrong_kind_are_named(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    wrong: list[tuple[str, Any]] = [
        ("branch", lambda: store.conversation("c", branch=1.5)),  # type: ignore[arg-type]
        ("branch", lambda: store.restore("c", branch=True)),
        ("at", lambda: store.restore("c", at="x")),  # type: ignore[arg-type]
        ("at", lambda: store.fork("c", at=3)),  # type: ignore[arg-type]
        (r"at\[1\]", lambda: store.fork("c", at=(0, -1))),
        ("before", lambda: store.history("c", before=(1,))),  # type: ignore[arg-type]
        ("before", lambda: store.conversations(before="x")),  # type: ignore[arg-type]
        ("limit", lambda: store.conversations(limit="5")),  # type: ignore[arg-type]
        ("seconds", lambda: branch.claim(seconds="5")),  # type: ignore[arg-type]
        ("message", lambda: branch.begin_turn([])),
    ]
    for name, call in wrong:
        with pytest.raises(turnkeep.InvalidInputError, match=f"^{name}: "):
            await call()
    for setting in ({"pool_size": 0}, {"pool_size": "x"}, {"timeout": None}, {"timeout": -1}):
        with pytest.raises(turnkeep.InvalidInputError, match=next(iter(setting))):
            turnkeep.open(dsn, **setting)


async def test_a_write_too_large_to_compare_is_known_by_its_id(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    large = [{"content": "x" * 15_000_000}] * 5
    write_id = uuid.uuid4()
    await branch.save(large, write_id=write_id)
    assert (await branch.save(large, write_id=write_id)).repeated
