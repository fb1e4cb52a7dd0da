"""Real messages that other stores lost, changed or choked on: text goes in and the same text comes out (G3, G9).

Bodies as they were reported, as raw JSON: some of them do not survive a parser.
"""

from __future__ import annotations

import json
import random
from hashlib import sha256
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.unit.json_values import strict
from turnkeep import AsyncStore, RawJSON

USER = {"role": "user", "content": "go"}

BODIES = {
    "text-nul in a tool result": r'{"role":"tool","tool_call_id":"call_1","content":"col1\u0000col2"}',
    "text-nul in every second place": (
        r'{"role":"tool","tool_call_id":"call_win","content":"W\u0000s\u0000l\u0000 \u0000e\u0000r\u0000r\u0000"}'
    ),
    "text-nul beside its spelling": r'{"role":"user","content":"the regex is \\u0000 and a real one: \u0000"}',
    "text-surrogate that is lone": r'{"role":"user","content":"price \ud83d end"}',
    "text-surrogate in pairs": (
        r'{"role":"user","content":"\ud83d\ude00 \ud83d\udc69\u200d\ud83d\udcbb \ud840\udc00"}'
    ),
    "num-precision in arguments": (
        r'{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",'
        r'"function":{"name":"q","arguments":"{\"id\": 2512292042121000001}"}}]}'
    ),
    "num-precision of integers": (
        '{"role":"tool","tool_call_id":"c","structuredContent":{"a":9007199254740991,"b":9007199254740993,'
        '"c":-7108510333361982070,"d":123456789012345678901234567890}}'
    ),
    "num-precision of floats": (
        '{"state":{"t":13.600000000000001,"u":0.1,"v":1.0,"w":1e2,"x":-0.0,"y":1E-7,"z":245.44444444444446}}'
    ),
    "json-key-order": (
        '{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"search",'
        '"input":{"query":"x","a":1,"limit":5}}]}'
    ),
    "json-duplicate-keys": '{"role":"tool","tool_call_id":"c1","content":"ok","meta":{"amount":1,"amount":2}}',
    "reasoning-replay of signed blocks": (
        '{"role":"assistant","content":[{"type":"thinking","thinking":"step\\u00a01\\r\\n\\tdone ",'
        '"signature":"EqQBCkYIBRgCKkDo9x/+=="},{"type":"redacted_thinking","data":"EmwKAhgBEgy3va=="},'
        '{"type":"text","text":""}]}'
    ),
    "reasoning-replay of an item": '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAAAB"}',
    "reasoning-replay beside calls": (
        '{"role":"assistant","content":null,"reasoning_content":"I should call f","tool_calls":[{"id":"c1",'
        '"type":"function","function":{"name":"f","arguments":"{}"}}]}'
    ),
    "reasoning-replay that is null": '{"role":"assistant","content":"x","reasoning_content":null}',
    "reasoning-replay that is empty": '{"role":"assistant","content":"x","reasoning_content":""}',
    "reasoning-replay that is absent": '{"role":"assistant","content":"x"}',
    "multimodal-roundtrip of blocks": (
        '{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"t"},{"type":"image","data":"iVBORw0=",'
        '"mimeType":"image/png"},{"type":"resource","resource":{"uri":"file:///r.csv","mimeType":"text/csv",'
        '"text":"a,b\\n1,2\\n"},"annotations":{"audience":["user"],"priority":0.9}}],"isError":false,"_meta":{"k":"v"}}'
    ),
    "multimodal-roundtrip of audio": (
        '{"role":"assistant","content":[{"type":"output_audio","transcript":"Hello","audio":null}]}'
    ),
    "invalid-args that were cut": (
        r'{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",'
        r'"function":{"name":"bash","arguments":"{\"command\": \"ls -l"}}]}'
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_a_body_comes_back_to_the_byte_and_to_the_type(store: AsyncStore, dsn: str, body: str) -> None:
    value: Any = json.loads(body)
    branch = await store.conversation("c")
    await branch.begin_turn([USER, RawJSON(body)], state=RawJSON(body))
    await branch.save([value, value], tool_calls=[RawJSON(body)], state=value)
    await branch.save([], tool_results=[RawJSON(body)], answers=branch.pending)
    async with turnkeep.open(dsn) as restarted:
        first, last = await restarted.restore("c", at=(0, 0)), await restarted.restore("c")
    assert first.message_texts[1] == first.state_text == body
    assert last.tool_results_text == f"[{body}]"
    assert [strict(message) for message in last.messages[1:]] == [strict(value)] * 3
    assert strict(last.state) == strict(value)
    assert json.dumps(last.messages[2]) == json.dumps(value)
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT messages->0 FROM turnkeep.agent_checkpoints").fetchall()
    assert rows == [(USER,)] * 3


async def test_text_nul_in_one_of_a_batch_harms_none_of_its_neighbours(store: AsyncStore, dsn: str) -> None:
    odd = json.loads(BODIES["text-nul in every second place"])
    clean = [{"role": "tool", "content": f"clean {number}"} for number in range(20)]
    branch = await store.conversation("c")
    await branch.begin_turn([*clean[:10], odd, *clean[10:]])
    assert (await store.restore("c")).messages == [*clean[:10], odd, *clean[10:]]
    with psycopg.connect(dsn) as connection:
        ((shown,),) = connection.execute("SELECT messages FROM turnkeep.agent_checkpoints").fetchall()
    assert [*shown[:10], *shown[11:]] == clean


async def test_text_surrogate_in_the_history_lets_every_later_turn_be_saved(store: AsyncStore, dsn: str) -> None:
    odd = json.loads(BODIES["text-surrogate that is lone"])
    branch = await store.conversation("c")
    for message in (odd, *({"role": "user", "content": f"turn {n}"} for n in range(2, 5))):
        await branch.begin_turn(message)
        await branch.save([{"role": "assistant", "content": "ok"}], final=True)
    async with turnkeep.open(dsn) as restarted:
        restored = await restarted.restore("c")
    users = [message["content"] for message in restored.messages if message["role"] == "user"]
    assert users == ["price \ud83d end", "turn 2", "turn 3", "turn 4"]


async def test_text_surrogate_pair_that_a_stream_cut_in_two_is_kept_and_joined(store: AsyncStore) -> None:
    deltas = ["ok \ud83d", "\ude80 done"]
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    for delta in deltas:
        await branch.save([{"type": "delta", "text": delta}])
    await branch.save([{"role": "assistant", "content": "".join(deltas)}], final=True)
    restored = await store.restore("c")
    assert [message["text"] for message in restored.messages[1:3]] == deltas
    assert restored.messages[3]["content"] == "ok 🚀 done"


async def test_text_surrogate_an_emoji_at_the_edge_of_a_preview_costs_no_message(store: AsyncStore, dsn: str) -> None:
    text = "x" * 239 + "\U0001f389"
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user", "content": text})
    assert (await store.restore("c")).messages[0]["content"] == text
    with psycopg.connect(dsn) as connection:
        query = (
            "SELECT left(messages->0->>'content', 240), length(messages->0->>'content') FROM turnkeep.all_checkpoints"
        )
        assert connection.execute(query).fetchall() == [(text, 240)]


async def test_num_precision_a_digest_of_a_state_is_the_same_after_the_trip(store: AsyncStore) -> None:
    state = json.loads(BODIES["num-precision of floats"])["state"]
    branch = await store.conversation("c")
    await branch.begin_turn(USER, state=state)
    restored = (await store.restore("c")).state
    assert sha256(json.dumps(restored).encode()).digest() == sha256(json.dumps(state).encode()).digest()
    assert [type(value) for value in restored.values()] == [float] * 7
    assert str(restored["x"]) == "-0.0"


async def test_json_key_order_is_kept_at_every_level_whatever_it_is(store: AsyncStore) -> None:
    rng = random.Random(5)

    def shuffled(levels: int) -> dict[str, Any]:
        keys = rng.sample(["query", "a", "limit", "Z", "10", "9", "é", "", "aa"], 9)
        return {key: shuffled(levels - 1) if levels and number < 2 else number for number, key in enumerate(keys)}

    messages = [shuffled(4) for _ in range(5)]
    branch = await store.conversation("c")
    await branch.begin_turn(messages)
    assert json.dumps((await store.restore("c")).messages) == json.dumps(messages)


async def test_reasoning_replay_items_stay_side_by_side_and_their_empty_summary_a_list(store: AsyncStore) -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAB"},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"},
    ]
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save(items, tool_calls=[items[1]])
    restored = await store.restore("c")
    assert restored.messages[1:] == items
    assert [call.call_id for call in restored.pending] == ["call_1"]


async def test_reasoning_replay_blocks_do_not_multiply_over_twenty_resumes(store: AsyncStore, dsn: str) -> None:
    for turn in range(20):
        async with turnkeep.open(dsn) as restarted:
            branch = await restarted.conversation("c")
            await branch.begin_turn(USER)
            block = {"type": "thinking", "thinking": f"step {turn}", "signature": f"sig{turn}"}
            await branch.save([{"role": "assistant", "content": [block]}], final=True)
    messages = (await store.restore("c")).messages
    signatures = [message["content"][0]["signature"] for message in messages if message["role"] == "assistant"]
    assert signatures == [f"sig{turn}" for turn in range(20)]
