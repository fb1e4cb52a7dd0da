"""A whole list is saved: only what is new in it is stored, and it comes back as it was."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

import turnkeep
from turnkeep import AsyncStore, RawJSON

CORPUS = Path(__file__).parents[1] / "corpus"


def message(number: object, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": f"message {number}"}


def stored(dsn: str) -> int:
    """How many messages are stored, of all conversations."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM turnkeep.message").fetchone()
    assert row is not None
    return int(row[0])


async def test_an_unchanged_list_of_a_restored_conversation_stores_nothing(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.save_all([message(0), message(1)], state={"n": 1})
    again = await store.conversation("c")
    same = await again.save_all(again.messages)
    assert (same.turn_index, same.sub_step, same.repeated) == (0, 0, True)
    assert (await again.save_all(again.messages, state={"n": 1})).repeated
    assert (stored(dsn), len(await store.history("c"))) == (2, 1)
    # A state of its own is a sub-step of its own, and still no message.
    assert (await again.save_all(again.messages, state={"n": 2})).sub_step == 1
    assert stored(dsn) == 2
    assert (await store.restore("c")).state == {"n": 2}


async def test_edits_anywhere_store_what_is_new_and_come_back(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    whole = [message(number) for number in range(20)]
    await branch.save_all(whole)
    steps: list[tuple[list[dict[str, Any]], int]] = [
        ([*whole, message(20), message(21)], 2),  # appended
        ([*whole[:7], message("x"), *whole[8:]], 1),  # one edited
        (whole[:5], 0),  # truncated
        ([message("summary", "system"), *whole[2:5]], 1),  # compacted
        ([*whole[2:5], message("summary", "system")], 0),  # turned round
        ([], 0),
        ([message("again")], 1),
    ]
    count, lists = 20, [whole]
    for after, new in steps:
        await branch.save_all(after)
        count += new
        lists.append(after)
        assert branch.messages == after
        assert (await store.restore("c")).messages == after
        assert stored(dsn) == count
    for sub_step, whole in enumerate(lists):
        assert (await store.restore("c", at=(0, sub_step))).messages == whole
    with psycopg.connect(dsn) as connection:
        views = connection.execute("SELECT sub_step, messages FROM turnkeep.agent_checkpoints").fetchall()
    assert sorted(views) == [(sub_step, whole) for sub_step, whole in enumerate(lists)]


async def test_a_list_begins_a_turn_goes_on_with_it_and_ends_it(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    call = {"id": "call_1", "name": "look", "arguments": {}}
    whole = [message("do")]
    began = await branch.save_all(whole, state={"step": 0})
    assert (began.turn_index, began.sub_step, branch.turn_open) == (0, 0, True)
    whole.append({"role": "assistant", "tool_calls": [call]})
    await branch.save_all(whole, tool_calls=[call])
    assert [pending.call_id for pending in branch.pending] == ["call_1"]
    with pytest.raises(turnkeep.PendingCallsError):
        await branch.save_all(whole, final=True)
    result = {"tool_call_id": "call_1", "content": "seen"}
    whole.append({"role": "tool", **result})
    await branch.save_all(whole, tool_results=[result])
    whole.append(message("done", "assistant"))
    ended = await branch.save_all(whole, final=True)
    assert (ended.turn_index, ended.sub_step, ended.final) == (0, 3, True)
    # Whole turns after the fact: two sub-steps each.
    whole += [message("more"), message("answer", "assistant")]
    after = await branch.save_all(whole, final=True)
    assert (after.turn_index, after.sub_step, after.final) == (1, 1, True)
    assert (await branch.save_all(whole, final=True)).repeated
    restored = await store.restore("c")
    assert (restored.messages, restored.phase) == (whole, "final")


async def test_calls_and_results_of_a_turn_saved_after_the_fact_belong_together(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    calls = [{"id": name, "name": "look", "arguments": {}} for name in "ab"]
    results = [{"tool_call_id": name, "content": name} for name in "ba"]
    await branch.save_all([message("do")], tool_calls=calls, tool_results=results, state=[1], final=True)
    assert [(c.phase, c.tool_calls, c.tool_results) for c in await store.history("c")] == [
        ("final", 0, 2),
        ("input", 2, 0),
    ]
    restored = await store.restore("c")
    assert (restored.pending, restored.state) == ((), [1])


async def test_the_same_write_id_gives_the_first_outcome_from_any_process(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.save_all([message(0), message(1)])
    write_id = uuid.uuid4()
    compacted = [message("s"), message(1), message(2)]
    first = await branch.save_all(compacted, write_id=write_id)
    await branch.save_all([*compacted, message(3)])
    count = stored(dsn)
    for handle in (branch, await store.conversation("c")):
        again = await handle.save_all(compacted, write_id=write_id)
        assert (again.turn_index, again.sub_step, again.repeated) == (first.turn_index, first.sub_step, True)
        for other in ([message("s"), message(0), message(2)], compacted[:2], [*compacted, message(3)]):
            with pytest.raises(turnkeep.KeyReusedError):
                await handle.save_all(other, write_id=write_id)
        with pytest.raises(turnkeep.KeyReusedError):
            await handle.save_all(compacted, final=True, write_id=write_id)
    assert stored(dsn) == count
    assert len(await store.history("c")) == 3


async def test_an_unchanged_list_under_a_write_id_is_known_again_when_others_have_gone_on(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.save_all([message(0)])
    write_id = uuid.uuid4()
    first = await branch.save_all([message(0)], write_id=write_id)
    await branch.save_all([message(0), message(1)])
    again = await (await store.conversation("c")).save_all([message(0)], write_id=write_id)
    assert (again.turn_index, again.sub_step, again.repeated) == (first.turn_index, first.sub_step, True)
    assert (await store.restore("c")).messages == [message(0), message(1)]


async def test_a_retry_of_a_whole_turn_ends_what_its_first_try_has_begun(store: AsyncStore) -> None:
    write_id = uuid.uuid4()
    whole = [message(0), message(1, "assistant")]
    # The first try came as far as the turn's beginning.
    branch = await store.conversation("c")
    await branch.save_all(whole, write_id=uuid.uuid5(write_id, "input"))
    again = await (await store.conversation("c")).save_all(whole, final=True, write_id=write_id)
    assert (again.turn_index, again.sub_step, again.final) == (0, 1, True)
    twice = await (await store.conversation("c")).save_all(whole, final=True, write_id=write_id)
    assert (twice.turn_index, twice.sub_step, twice.final, twice.repeated) == (0, 1, True, True)


async def test_a_stale_handle_saves_no_list(store: AsyncStore) -> None:
    one, two = await store.conversation("c"), await store.conversation("c")
    await one.save_all([message(0)])
    with pytest.raises(turnkeep.ConflictError):
        await two.save_all([message("other")])
    await two.refresh()
    await two.save_all([message(0), message("other")])
    assert (await store.restore("c")).messages == [message(0), message("other")]


async def test_a_list_is_refused_whole_and_the_handle_stays(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.save_all([message(0)])
    for wrong in ([message(0), float("nan")], [message(0), {"x": float("inf")}], "text", [message(0), "x"], None):
        with pytest.raises(turnkeep.InvalidInputError):
            await branch.save_all(wrong)  # type: ignore[arg-type]
    assert (stored(dsn), branch.messages) == (1, [message(0)])


async def test_a_list_scattered_beyond_the_cap_is_gathered_and_stays_exact(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    whole = [message(number) for number in range(700)]
    await branch.save_all(whole)
    # Each save cuts one message out: one more span each time.
    for number in range(1, 300):
        whole.remove(message(2 * number))
        await branch.save_all(whole)
    with psycopg.connect(dsn) as connection:
        (most, rows) = connection.execute(
            "SELECT max(cardinality(spans)) / 3, (SELECT max(position) + 1 FROM turnkeep.message)"
            " FROM turnkeep.checkpoint"
        ).fetchone() or (0, 0)
    assert most == 256
    assert rows == stored(dsn) == 700 + 444  # written once more, when it was 444 long
    assert branch.messages == whole
    restored = await store.conversation("c")
    assert restored.messages == whole
    assert (await restored.save_all(whole)).repeated
    # What was gathered is known again by its write id.
    write_id = uuid.uuid4()
    await branch.save_all(whole[::2], write_id=write_id)
    assert (await branch.save_all(whole[::2], write_id=write_id)).repeated


async def test_a_fork_saves_lists_of_what_it_has_inherited(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    whole = [message(number) for number in range(6)]
    await branch.save_all(whole)
    fork = await store.fork("c")
    await branch.save_all([*whole, message("main")])
    mixed = [whole[0], message("fork"), *whole[3:]]
    await fork.save_all(mixed)
    assert stored(dsn) == 8
    assert (await store.restore("c", branch=1)).messages == mixed
    assert (await store.restore("c")).messages == [*whole, message("main")]


def lists_in(value: Any) -> list[list[dict[str, Any]]]:
    """Every list of objects in a JSON value, the longest first."""
    found = []
    if isinstance(value, list):
        if value and all(isinstance(element, dict) for element in value):
            found.append(value)
        for element in value:
            found += lists_in(element)
    elif isinstance(value, dict):
        for member in value.values():
            found += lists_in(member)
    return sorted(found, key=len, reverse=True)


GEMINI = [
    {"role": "user", "parts": [{"text": "weather?"}]},
    {
        "role": "model",
        "parts": [{"functionCall": {"name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": "x=="}],
    },
    {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"result": -3.0}}}]},
    {"role": "model", "parts": [{"text": "-3 °C"}]},
]
RESPONSES = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Oslo"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "-3"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "-3 °C", "annotations": []}],
    },
]
LANGCHAIN = [
    {"type": "human", "data": {"content": "weather?", "additional_kwargs": {}, "example": False}},
    {
        "type": "ai",
        "data": {
            "content": "",
            "tool_calls": [{"name": "w", "args": {"city": "Oslo"}, "id": "c1", "type": "tool_call"}],
        },
    },
    {"type": "tool", "data": {"content": "-3", "tool_call_id": "c1", "status": "success", "artifact": None}},
]
PYDANTIC_AI = [
    {
        "kind": "request",
        "parts": [{"part_kind": "user-prompt", "content": "weather?", "timestamp": "2026-01-01T00:00:00Z"}],
    },
    {
        "kind": "response",
        "parts": [{"part_kind": "tool-call", "tool_name": "w", "args": {"city": "Oslo"}, "tool_call_id": "c1"}],
    },
    {
        "kind": "request",
        "parts": [{"part_kind": "tool-return", "tool_name": "w", "content": {"c": -3.0}, "tool_call_id": "c1"}],
    },
]
DIALECTS: list[tuple[str, Any]] = [
    ("gemini", GEMINI),
    ("responses", RESPONSES),
    ("langchain", LANGCHAIN),
    ("pydantic_ai", PYDANTIC_AI),
    *(
        (path.stem, lists_in(json.loads(path.read_text(encoding="utf-8")))[0])
        for path in sorted(CORPUS.glob("*.json"))
        if path.stem not in ("huge_numbers", "deep_nesting_200")  # their numbers Python can't hold; no list of objects
    ),
]


@pytest.mark.parametrize(("name", "whole"), DIALECTS, ids=[name for name, _ in DIALECTS])
async def test_the_dialects_people_hold_lists_in_pass_as_they_are(
    store: AsyncStore, dsn: str, name: str, whole: list[dict[str, Any]]
) -> None:
    branch = await store.conversation(name)
    for length in range(1, len(whole) + 1, max(1, len(whole) // 10)):
        await branch.save_all(whole[:length])
    await branch.save_all(whole, final=True)
    assert stored(dsn) == len(whole)
    restored = await store.conversation(name)
    assert restored.messages == whole
    assert [json.dumps(one) for one in restored.messages] == [
        json.dumps(one) for one in whole
    ]  # keys in order, 1 not 1.0
    assert (await restored.save_all(restored.messages)).repeated
    compacted = [{"role": "system", "content": "a summary"}, *whole[len(whole) // 2 :]]
    await restored.save_all(compacted)
    assert (stored(dsn), (await store.restore(name)).messages) == (len(whole) + 1, compacted)


async def test_exact_texts_are_kept_where_values_are_the_same(store: AsyncStore, dsn: str) -> None:
    texts = ['{"n": 1e400, "n": 2}', '{"t":"\\u0000\\ud800"}', '{ "spaced" : 1.50 }']
    branch = await store.conversation("c")
    await branch.save_all([RawJSON(text) for text in texts])
    restored = await store.restore("c")
    again = await store.conversation("c")
    assert (await again.save_all([RawJSON(text) for text in restored.message_texts])).repeated
    await again.save_all([*map(RawJSON, texts[:2]), {"spaced": 1.5}, message("new")])
    assert (await store.restore("c")).message_texts[:3] == tuple(texts)
    assert stored(dsn) == 4


@pytest.mark.parametrize(
    "parts", [[0, 4], [2, 1], [1, 1], [-1, 2], [], [0, 3], [-1, 1, -1, 1], [-2, 1, -1, 1], [0, 1, -1], [-1, 0, -1, 1]]
)
async def test_no_language_can_save_parts_that_are_not_there(store: AsyncStore, dsn: str, parts: list[int]) -> None:
    branch = await store.conversation("c")
    await branch.save_all([message(number) for number in range(3)])
    call = (
        "SELECT outcome FROM turnkeep.save_v1(%s, 0, 0, 0, 0, 0, gen_random_uuid(), false, 'step', NULL, 1,"
        " '{\"new\": 1}', p_parts => %s::int[])"
    )
    with psycopg.connect(dsn) as connection:
        with pytest.raises(psycopg.errors.InvalidParameterValue), connection.transaction():
            connection.execute(call, (branch.conversation_id, parts))
        assert connection.execute(call, (branch.conversation_id, [2, 3, -1, 1, 0, 1])).fetchone() == ("saved",)
    assert (await store.restore("c")).messages == [message(2), {"new": 1}, message(0)]
    assert stored(dsn) == 4
