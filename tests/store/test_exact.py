"""G3: the JSON text that was stored comes back; what Python can't hold is said, never changed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import psycopg
import pytest

import turnkeep
from turnkeep import AsyncStore, RawJSON

CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.json"))
USER = {"role": "user", "content": "go"}

AWKWARD = {
    "NUL": r'{"a":"x\u0000y","\u0000":1}',
    "lone surrogates": r'{"a":"\ud83d end","\udc00":"\udfff\ud800"}',
    "valid pair escaped": r'{"a":"\ud83d\ude00"}',
    "beyond a double": '{"a":1e400,"b":-1e-400,"c":1e131072,"d":1e-16384}',
    "numbers that jsonb spells out": '{"a":[1e5000,-1E+4300]}',
    "400 digits": '{"a":' + "9" * 400 + ',"b":' + "9" * 5000 + "}",
    "20,000 fraction digits": '{"a":0.' + "1" * 20000 + "}",
    "spellings": '{"a":1.0,"b":1e2,"c":-0.0,"d":1.50,"e":1E+2,"f":12345678901234567890}',
    "duplicate keys": '{"a":1,"a":2,"b":{"c":1,"c":[]}}',
    "key order and spaces": '{ "zz" : 1,\n\t"a":2, "m" : [ 1 , 2 ] }',
    "deep": '{"a":' + "[" * 499 + "]" * 499 + "}",
    "escapes": r'{"a":"\/\b\f\n\r\t\"\\ \u00e9 \u2028"}',
    "raw line separators": '{"a":"\u2028\u2029\x7f\ufeff\uffff\U0010ffff"}',
    "2,000 levels of names": '{"a":' + json.dumps(["x" * 300] * 2000) + "}",
}


async def test_every_file_of_the_corpus_comes_back_identical(store: AsyncStore) -> None:
    assert len(CORPUS) >= 18
    for path in CORPUS:
        text = path.read_text(encoding="utf-8").strip()
        message = RawJSON(text if text.startswith("{") else f'{{"file":{text}}}')
        branch = await store.conversation(path.name)
        await branch.begin_turn([USER, message], state=message)
        await branch.save([message], tool_calls=[message], state=message)
        restored = await store.restore(path.name)
        assert restored.message_texts == ('{"role":"user","content":"go"}', message.text, message.text)
        assert restored.state_text == message.text
        assert restored.tool_calls_text == f"[{message.text}]"


async def test_values_of_the_corpus_come_back_equal_or_are_refused(store: AsyncStore) -> None:
    refused = set()
    for path in CORPUS:
        value = {"file": json.loads(path.read_text(encoding="utf-8"))}
        branch = await store.conversation(path.name)
        await branch.begin_turn(USER)
        try:
            await branch.save([value], state=value)
        except turnkeep.UnstorableError as error:
            refused.add((path.name, error.path.split("[")[0]))
            continue
        restored = await store.restore(path.name)
        assert json.dumps(restored.messages[1]) == json.dumps(value)
        assert json.dumps(restored.state) == json.dumps(value)
    assert {name for name, _ in refused} == {"huge_numbers.json"}


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD.keys())
async def test_awkward_text_is_exact_and_never_makes_a_query_fail(store: AsyncStore, dsn: str, text: str) -> None:
    raw = RawJSON(text)
    branch = await store.conversation("c")
    await branch.begin_turn([raw, USER], state=raw)
    await branch.save([raw], tool_calls=[raw, raw], state=raw)
    await branch.save([raw], tool_results=[raw, raw], answers=branch.pending, state=raw)
    restored = await store.restore("c")
    assert restored.message_texts == (raw.text, '{"role":"user","content":"go"}', raw.text, raw.text)
    assert (restored.state_text, restored.tool_results_text) == (raw.text, f"[{raw.text},{raw.text}]")
    with psycopg.connect(dsn) as connection:
        assert len(connection.execute("SELECT * FROM turnkeep.agent_checkpoints").fetchall()) == 3
        assert len(connection.execute("SELECT * FROM turnkeep.all_checkpoints").fetchall()) == 3
        stored = connection.execute("SELECT body::text FROM turnkeep.message WHERE position = 0").fetchone()
        assert stored == (raw.text,)


async def test_what_python_cannot_hold_is_said_when_it_is_asked_for(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn([USER, RawJSON('{"a":[1e400]}')], state=RawJSON("9" * 5000))
    restored = await store.restore("c")
    assert restored.message_texts[1] == '{"a":[1e400]}'
    with pytest.raises(turnkeep.UnreadableError, match=r'messages\[1\]\["a"\]\[0\]'):
        _ = restored.messages
    with pytest.raises(turnkeep.UnreadableError, match="state"):
        _ = restored.state


async def test_large_incompressible_content_comes_back_identical(store: AsyncStore, dsn: str) -> None:
    import base64

    image = base64.b64encode(random.Random(7).randbytes(1_500_000)).decode()
    message = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}],
    }
    branch = await store.conversation("c")
    await branch.begin_turn(message)
    assert (await store.restore("c")).messages == [message]
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT messages->0->'content'->0->>'type' FROM turnkeep.agent_checkpoints").fetchone()
    assert row == ("image_url",)


async def test_a_message_beyond_the_limit_is_refused_with_its_size(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    with pytest.raises(turnkeep.UnstorableError, match=r"messages\[0\].*bytes"):
        await branch.save([{"content": "x" * (64 * 1024 * 1024)}])
    assert (await store.restore("c")).sub_step == 0


async def test_one_odd_message_leaves_its_neighbours_alone(store: AsyncStore, dsn: str) -> None:
    messages: list[Any] = [{"role": "user", "content": str(i)} for i in range(20)]
    messages.insert(11, {"role": "tool", "content": "W\0s\0l\0"})
    branch = await store.conversation("c")
    await branch.begin_turn(messages)
    assert (await store.restore("c")).messages == messages
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT messages FROM turnkeep.agent_checkpoints").fetchone()
    assert row is not None
    shown = row[0]
    assert shown[:11] + shown[12:] == messages[:11] + messages[12:]
    assert set(shown[11]) == {"turnkeep_unrepresentable"}


async def test_integers_and_floats_keep_their_types(store: AsyncStore) -> None:
    message = {"values": [2512292042121000001, 2**63, -(2**64), 1.0, 100.0, -0.0, True, 1]}
    branch = await store.conversation("c")
    await branch.begin_turn(message)
    (restored,) = (await store.restore("c")).messages
    assert repr(restored) == repr(message)
    assert [type(value) for value in restored["values"]] == [type(value) for value in message["values"]]


async def test_a_key_takes_every_message_that_can_be_stored(store: AsyncStore) -> None:
    deepest = RawJSON('{"a":' + "[" * 499 + "]" * 499 + "}")
    branch = await store.conversation("c")
    for _ in range(2):
        await branch.begin_turn([deepest, USER], key="k")
    await branch.save([USER], final=True)
    assert not (await store.post("c", deepest, key="posted")).repeated
    assert (await store.post("c", deepest, key="posted")).repeated
    with pytest.raises(turnkeep.KeyReusedError):
        await store.post("c", [deepest, USER], key="posted")
    await branch.take_request()
    assert branch.messages[0] == branch.messages[-1]
    assert (await store.restore("c")).message_texts.count(deepest.text) == 2


@pytest.mark.parametrize("number", ["1e400", "9" * 5000], ids=["infinite", "long"])
async def test_a_failure_that_could_not_be_read_with_its_branch_is_refused(store: AsyncStore, number: str) -> None:
    branch = await store.conversation("c")
    await branch.claim()
    with pytest.raises(turnkeep.UnstorableError, match=r'failure\["seen"\]'):
        await branch.release(failure={"type": "x", "message": "m", "seen": RawJSON(number)})
    assert await branch.release(failure={"type": "x", "message": "\0 \ud800"})
    assert (await store.restore("c")).failure == {"type": "x", "message": "\0 \ud800"}
