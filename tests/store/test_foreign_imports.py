"""Chats of other programs come in as turns, again without harm, and what can't come along is said."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import psycopg
import pytest

import turnkeep
from tests.store.whole_rows import rows
from turnkeep import AsyncStore, TransferError
from turnkeep.imports.agents_sdk import openai_agents
from turnkeep.imports.chat import openai_chat, sharegpt
from turnkeep.imports.langgraph import langgraph
from turnkeep.imports.msgpack import Object, unpack
from turnkeep.imports.stream import Stream
from turnkeep.store import ForeignTables

FOREIGN = Path(__file__).parents[1] / "foreign"
CORPUS = Path(__file__).parents[1] / "corpus"


def load(dsn: str, file: str) -> None:
    """Put the other program's tables into the database, beside ours."""
    with psycopg.connect(dsn) as connection:
        connection.execute((FOREIGN / file).read_bytes())


async def read(store: AsyncStore, reader: Callable[..., Any], data: bytes) -> turnkeep.Transferred:
    """Import a file of chats."""
    return await store.import_(cast("BinaryIO", Stream(reader(io.BytesIO(data), "chats.json"))))


async def from_langgraph(store: AsyncStore, dsn: str) -> tuple[turnkeep.Transferred, list[str]]:
    said: list[str] = []
    with ForeignTables(dsn, "langgraph") as tables:
        return await store.import_(cast("BinaryIO", Stream(langgraph(tables, said.append)))), said


CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "a"},
    {"role": "user", "content": "and b"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "r"},
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]
SHAPES = {
    "one object": json.dumps({"id": "x", "messages": CHAT}, indent=1),
    "an array": json.dumps([{"id": "x", "messages": CHAT}]),
    "an array over lines": json.dumps([{"id": "x", "messages": CHAT}], indent=2),
    "a line each": json.dumps({"id": "x", "messages": CHAT}) + "\n\n",
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_openai_chat_becomes_turns_and_goes_on(store: AsyncStore, dsn: str, shape: str) -> None:
    done = await read(store, openai_chat, SHAPES[shape].encode())
    assert (done.conversations, done.messages) == (1, 8)
    checkpoint = await store.restore("openai-chat:x")
    assert checkpoint.messages == CHAT
    assert (checkpoint.turn_index, checkpoint.phase, checkpoint.status) == (1, "final", "idle")
    history = await store.history("openai-chat:x")
    steps = [(one.turn_index, one.sub_step, one.phase, one.tool_calls, one.tool_results) for one in history]
    assert steps[::-1] == [
        (0, 0, "input", 0, 0),
        (0, 1, "tool_calls", 1, 0),
        (0, 2, "tool_results", 0, 1),
        (0, 3, "final", 0, 0),
        (1, 0, "input", 0, 0),
        (1, 1, "final", 0, 0),
    ]
    before = rows(dsn)
    assert (await read(store, openai_chat, SHAPES[shape].encode())).there == 1
    assert rows(dsn) == before
    branch = await store.conversation("openai-chat:x")
    await branch.begin_turn({"role": "user", "content": "more"})
    await branch.save([{"role": "assistant", "content": "yes"}], final=True)


@pytest.mark.parametrize("cut", range(1, len(CHAT) + 1))
async def test_wherever_a_chat_stops_it_can_go_on(store: AsyncStore, cut: int) -> None:
    await read(store, openai_chat, json.dumps({"id": "x", "messages": CHAT[:cut]}).encode())
    checkpoint = await store.restore("openai-chat:x")
    assert checkpoint.messages == CHAT[:cut]
    assert checkpoint.turn_open == (CHAT[cut - 1]["role"] in ("user", "tool") or cut == 4)
    assert [call.call_id for call in checkpoint.pending] == (["1"] if cut == 4 else [])
    branch = await store.conversation("openai-chat:x")
    if checkpoint.pending:
        await branch.save([CHAT[4]], tool_results=[{"tool_call_id": "1"}])
    if branch.turn_open:
        await branch.save([{"role": "assistant", "content": "so"}], final=True)
    await branch.begin_turn({"role": "user", "content": "on"})


async def test_lines_without_an_id_are_known_by_their_content(store: AsyncStore) -> None:
    lines = "\n".join(json.dumps({"messages": CHAT[start:]}) for start in (0, 1, 0))
    done = await read(store, openai_chat, lines.encode())
    assert (done.conversations, done.there) == (2, 1)
    assert (await read(store, openai_chat, json.dumps(CHAT).encode())).there == 1


@pytest.mark.parametrize("odd", [{"id": "\ud800"}, {"id": "x", "title": "a \udfff"}, {"id": "x", "title": ""}])
async def test_an_id_or_a_title_that_no_column_holds_ends_nothing(store: AsyncStore, odd: dict[str, str]) -> None:
    lines = "\n".join(json.dumps({"messages": CHAT, **one}) for one in ({"id": "before"}, odd, {"id": "behind"}))
    assert (await read(store, openai_chat, lines.encode())).conversations == 3
    assert (await read(store, openai_chat, lines.encode())).there == 3


async def test_sharegpt_becomes_turns(store: AsyncStore) -> None:
    data = (CORPUS / "sharegpt.json").read_bytes()
    value = json.loads(data)
    chats = value if isinstance(value, list) else [value]
    done = await read(store, sharegpt, data)
    assert done.conversations == len(chats)
    assert (await read(store, sharegpt, data)).there == len(chats)
    (first, *_) = await store.conversations(limit=100)
    said = {text for chat in chats for text in (one.get("value", one.get("content")) for one in chat["conversations"])}
    for one in await store.conversations(limit=100):
        assert {m["content"] for m in (await store.restore(one.conversation_id)).messages} - said <= {
            chat.get("system") for chat in chats
        }
    assert first.external_id.startswith("sharegpt:")


@pytest.mark.parametrize(
    ("reader", "data", "why"),
    [
        (openai_chat, b"", "is empty"),
        (openai_chat, b"hello\n", "no JSON"),
        (openai_chat, b'{"messages": 1}', "line 1: no chat"),
        (openai_chat, b'{"messages": []}\n{"messages": [1]}\n', "line 2: no chat"),
        (openai_chat, b"[" * 100_000, "no JSON|nested"),
        (openai_chat, b'{"messages": [{"content": "' + rb"\ud800" + b'", "n": 1e999}]}', "content|number|inf"),
        (sharegpt, b'[{"conversations": [{"from": "nobody", "value": "x"}]}]', "element 0, message 0: nobody knows"),
        (sharegpt, b'[{"x": 1}]', "element 0: no conversation"),
    ],
)
async def test_what_is_none_is_named(store: AsyncStore, reader: Callable[..., Any], data: bytes, why: str) -> None:
    with pytest.raises(TransferError, match=why):
        await read(store, reader, data)


async def test_langgraph_threads_come_in_with_their_state(store: AsyncStore, dsn: str) -> None:
    load(dsn, "langgraph.sql")
    done, said = await from_langgraph(store, dsn)
    assert done.conversations == 4
    checkpoint = await store.restore("langgraph:support-7")
    assert [one["role"] for one in checkpoint.messages] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert checkpoint.messages[1]["content"] == "Wetter in Köln? 😀"
    assert checkpoint.messages[2]["tool_calls"][0] == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Köln","days":2}'},
    }
    assert checkpoint.messages[3]["tool_call_id"] == "call_1"
    assert checkpoint.messages[4]["content"] == [{"type": "text", "text": "nothing"}]
    assert checkpoint.messages[5]["metadata"]["langchain"]["id"] == "m5"
    state = checkpoint.state
    assert (state["count"], state["raw"], state["nested"]) == (1, {"base64": "AP8="}, {"k": [1, None]})
    assert checkpoint.phase == "final"
    assert checkpoint.created_at is not None
    assert checkpoint.created_at.year == 2026
    child = await store.describe("langgraph:support-7:researcher:1")
    assert child.parent == checkpoint.conversation_id
    waits = await store.restore("langgraph:waits")
    assert [call.call_id for call in waits.pending] == ["call_1", "call_2"]
    assert (await store.restore("langgraph:no messages")).turn_index == -1
    assert any("3 earlier checkpoints were left out" in one for one in said)
    before = rows(dsn)
    done, _ = await from_langgraph(store, dsn)
    assert (done.conversations, done.there) == (0, 4)
    assert rows(dsn) == before


async def test_a_pickle_is_never_opened(store: AsyncStore, dsn: str, tmp_path: Path) -> None:
    load(dsn, "langgraph.sql")
    trap = tmp_path / "opened"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (trap,)

    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE checkpoint_blobs SET type = 'pickle', blob = %s WHERE channel = 'nested'", (pickle.dumps(Trap()),)
        )
    _, said = await from_langgraph(store, dsn)
    assert not trap.exists()
    assert any("'nested' is of kind 'pickle', which is never opened" in one for one in said)
    assert "nested" not in (await store.restore("langgraph:support-7")).state


async def test_agents_sdk_sessions_come_in_item_by_item(store: AsyncStore, dsn: str) -> None:
    load(dsn, "agents_sdk.sql")
    for expected in ((2, 0), (0, 2)):
        with ForeignTables(dsn, "agents_sdk") as tables:
            done = await store.import_(cast("BinaryIO", Stream(openai_agents(tables))))
        assert (done.conversations, done.there) == expected
    checkpoint = await store.restore("openai-agents:user-1")
    assert [one.get("type", one.get("role")) for one in checkpoint.messages] == [
        *("user", "reasoning", "function_call", "function_call_output", "message", "user", "message"),
    ]
    assert (checkpoint.turn_index, checkpoint.phase) == (1, "final")
    cut = await store.restore("openai-agents:cut")
    assert [call.call_id for call in cut.pending] == ["c9"]
    assert cut.turn_open


async def test_tables_that_are_not_there_are_named(store: AsyncStore, dsn: str) -> None:
    with (
        ForeignTables(dsn, "langgraph", "elsewhere") as tables,
        pytest.raises(turnkeep.NotFoundError, match="not in schema 'elsewhere'"),
    ):
        await store.import_(cast("BinaryIO", Stream(langgraph(tables, print))))


def test_msgpack_is_read_into_plain_data_and_damage_is_an_error() -> None:
    assert unpack(b"\x82\xa1a\x93\x01\xff\xc0\xa1b\xcb?\xf0\x00\x00\x00\x00\x00\x00") == {"a": [1, -1, None], "b": 1.0}
    extension = b"\x93\xa2os\xa6system\xa2ls"
    assert unpack(b"\xc7" + bytes([len(extension)]) + b"\x00" + extension) == Object("os", "system", "ls")
    for damaged in (b"", b"\x92\x01", b"\xc1", b"\x01\x02", b"\xd9\xff", b"\xc7\x01\x63\x00", b"\x91" * 1000):
        with pytest.raises(ValueError, match=r"."):
            unpack(damaged)
