"""A reply from its chunks: what is joined, what is kept whole, which calls they are, and when it is none."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from turnkeep.runner.deltas import ModelUnavailableError, ReplyBuilder
from turnkeep.runner.effects import ModelReply, ToolCall

Json = dict[str, Any]


def build(*deltas: Json, finish: str | None = "stop", done: bool = True) -> ModelReply:
    builder = ReplyBuilder()
    for delta in deltas:
        builder.add({"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None})
    builder.add({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return builder.reply(done=done)


def call(
    index: int | None = None, id: str | None = None, name: str | None = None, arguments: str | None = None
) -> Json:
    """A delta with one piece of one call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece = {"index": index, "id": id, "function": function}
    return {"tool_calls": [{key: value for key, value in piece.items() if value is not None}]}


def pairs(reply: ModelReply) -> list[tuple[str, str]]:
    return [(made.name, made.arguments) for made in reply.calls]


# -- text and other keys


def test_text_is_joined_and_told_as_it_comes() -> None:
    builder = ReplyBuilder()
    told = []
    for piece in ("", "Hel", "lo", None, " you"):
        told += builder.add({"choices": [{"index": 0, "delta": {"role": "assistant", "content": piece}}]})
    builder.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    usage = {"prompt_tokens": 1, "completion_tokens": 3}
    builder.add({"choices": [], "usage": usage})
    assert told == ["Hel", "lo", " you"]
    assert builder.reply(done=True) == ModelReply(
        {"role": "assistant", "content": "Hello you"}, "Hello you", None, (), "length", usage
    )


def test_keys_that_nobody_knows_are_kept() -> None:
    reply = build(
        {"role": "assistant", "content": None, "reasoning_content": "I th"},
        {"reasoning_content": "ink", "reasoning": "so", "score": 1},
        {"reasoning_content": None, "score": 2.5, "flag": True},
        {"audio": {"id": "a1", "data": "AA", "expires_at": 1}},
        {"audio": {"id": "a1", "data": "BB", "transcript": "hm"}},
        {"annotations": [{"type": "url_citation", "url": "x"}]},
        {"annotations": [{"type": "url_citation", "url": "y"}], "tags": ["a", 1]},
        {"content": "Yes", "tags": ["b"]},
    )
    assert reply.provider == {
        "role": "assistant",
        "content": "Yes",
        "reasoning_content": "I think",
        "reasoning": "so",
        "score": 2.5,
        "flag": True,
        "audio": {"id": "a1", "data": "AABB", "expires_at": 1, "transcript": "hm"},
        "annotations": [{"type": "url_citation", "url": "x"}, {"type": "url_citation", "url": "y"}],
        "tags": ["a", 1, "b"],
    }


def test_elements_with_an_index_are_merged_and_lose_it() -> None:
    def detail(index: int, **more: Any) -> Json:
        return {"reasoning_details": [{"index": index, "format": "f-v1", **more}]}

    reply = build(
        detail(1, type="reasoning.text", text="b"),
        detail(0, type="reasoning.text", text="a"),
        detail(1, type="reasoning.text", text="B"),
        {"content": "x"},
    )
    assert reply.provider["reasoning_details"] == [
        {"format": "f-v1", "type": "reasoning.text", "text": "a"},
        {"format": "f-v1", "type": "reasoning.text", "text": "bB"},
    ]
    reply = build(detail(0, type="reasoning.text", text="a"), detail(0, type="reasoning.encrypted", data="="))
    assert [part["type"] for part in reply.provider["reasoning_details"]] == ["reasoning.text", "reasoning.encrypted"]


def test_a_refusal_is_one() -> None:
    reply = build({"role": "assistant", "content": None, "refusal": "I "}, {"refusal": "won't"})
    assert (reply.content, reply.refusal) == (None, "I won't")


def test_content_in_parts_is_kept_and_its_text_told() -> None:
    reply = build(
        {"content": [{"type": "thinking", "thinking": "hm"}]},
        {"content": "Hel"},
        {"content": [{"type": "text", "text": "lo"}]},
    )
    assert reply.content == "Hello"
    assert reply.provider["content"][0] == {"type": "thinking", "thinking": "hm"}
    reply = build({"content": "Hel"}, {"content": [{"type": "text", "text": "lo"}]})
    assert reply.provider["content"] == [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]


def test_a_character_cut_in_two_is_whole_again() -> None:
    assert build({"content": "\ud83d"}, {"content": "\ude00"}).content == "😀"
    assert build({"content": "\ud83d"}, {"content": "!"}).content == "\ud83d!"


def test_only_the_first_choice_counts() -> None:
    builder = ReplyBuilder()
    chunk = {"choices": [{"index": 1, "delta": {"content": "other"}}, {"index": 0, "delta": {"content": "this"}}]}
    assert builder.add(chunk) == ["this"]
    assert builder.reply(done=True).content == "this"


def test_a_whole_message_is_taken_verbatim() -> None:
    builder = ReplyBuilder()
    message = {"role": "assistant", "content": "Hi", "tool_calls": [{"id": "a", "function": {"name": "f"}}] * 2}
    assert builder.add({"choices": [{"message": message, "finish_reason": "stop"}]}) == ["Hi"]
    reply = builder.reply(done=False)
    assert reply.provider == message
    assert [made.id for made in reply.calls] == ["a", "call_0"]


@pytest.mark.parametrize("delta", [{"choices": None}, {}, {"choices": [None]}, {"choices": [{"delta": None}]}])
def test_chunks_that_say_nothing_change_nothing(delta: Json) -> None:
    builder = ReplyBuilder()
    assert builder.add(delta) == []
    with pytest.raises(ModelUnavailableError):
        builder.reply(done=True)


# -- calls


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [call(0, "a", "f", ""), call(0, None, None, '{"x"'), call(0, None, None, ":1}"), call(1, "b", "g", "{}")],
            id="openai",
        ),
        pytest.param([call(0, "a", "f", '{"x":1}'), call(1, "b", "g", "{}")], id="whole, one a delta"),
        pytest.param(
            [{"tool_calls": call(0, "a", "f", '{"x":1}')["tool_calls"] + call(1, "b", "g", "{}")["tool_calls"]}],
            id="whole, all in one delta",
        ),
        pytest.param(
            [
                call(0, "a", "f", '{"x"'),
                call(1, "b", "g", "{"),
                call(0, None, None, ":1}"),
                call(1, None, None, "}"),
            ],
            id="interleaved",
        ),
        pytest.param(
            [call(1, "b", "g", "{}"), call(0, "a", "f", '{"x"'), call(0, None, None, ":1}")], id="in another order"
        ),
        pytest.param(
            [call(0, "a", "f", '{"x"'), call(0, None, None, ":1}"), call(0, "b", "g", ""), call(0, None, None, "{}")],
            id="each at index 0",
        ),
        pytest.param(
            [call(None, "a", "f", '{"x"'), call(None, None, None, ":1}"), call(None, "b", "g", "{}")], id="no index"
        ),
        pytest.param([call(None, "a", "f", '{"x":1}'), call(None, "b", "g", "{}")], id="no index, whole"),
        pytest.param(
            [call(0, "a", "f", '{"x"'), call(0, "a", "f", ":1}"), call(1, "b", "g", "{"), call(1, "b", "g", "}")],
            id="id and name repeated",
        ),
        pytest.param(
            [call(None, "a", "f", '{"x"'), call(None, "a", "f", ":1}"), call(None, "b", "g", "{}")],
            id="id and name repeated, no index",
        ),
        pytest.param(
            [call(0, "a", "f", ""), call(0, "z", None, '{"x":1}'), call(1, "b", "g", ""), call(1, "y", None, "{}")],
            id="another id in each delta",
        ),
        pytest.param(
            [call(0, "a", "f", '{"x"'), call(0, "z", "f", ":1}"), call(1, "b", "g", "{}")],
            id="another id in each delta, name repeated",
        ),
        pytest.param(
            [call(0, "a", "", ""), call(0, "a", "f", '{"x":1}'), call(1, "b", None, "{}"), call(1, None, "g", "")],
            id="name late",
        ),
    ],
)
def test_calls_are_told_apart(deltas: list[Json]) -> None:
    reply = build(*deltas, finish="tool_calls")
    assert reply.calls == (ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "{}"))
    assert [given["id"] for given in reply.provider["tool_calls"]] == ["a", "b"]
    assert all("index" not in given for given in reply.provider["tool_calls"])


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param([call(0, "a", "f", "{}"), call(0, "b", "f", "{}")], id="at index 0"),
        pytest.param([call(0, "a", "f", ""), call(0, "b", "f", ""), call(0, None, None, "{}")], id="no arguments yet"),
        pytest.param([call(None, None, "f", "{}"), call(None, None, "f", "{}")], id="no index, no id"),
        pytest.param([call(0, None, "f", "{}"), call(0, None, "f", "{}")], id="at index 0, no id"),
        pytest.param([call(None, "a", "f", "{}"), call(None, "b", "f", "{}")], id="no index"),
    ],
)
def test_two_calls_of_one_tool_are_two(deltas: list[Json]) -> None:
    reply = build(*deltas, finish="tool_calls")
    assert [made.name for made in reply.calls] == ["f", "f"]
    assert len({made.id for made in reply.calls}) == 2


def test_a_name_repeated_without_ids_is_one_call() -> None:
    reply = build(call(None, None, "f", '{"x"'), call(None, None, "f", ":1}"), call(None, None, "f", ""))
    assert pairs(reply) == [("f", '{"x":1}')]


def test_calls_without_an_id_of_their_own_get_one_and_the_message_stays() -> None:
    first = {"function": {"name": "f", "arguments": "{}"}}
    reply = build(
        {
            "tool_calls": [
                first | {"id": "call_0", "index": 0},
                first | {"index": 1},
                first | {"id": "", "index": 2},
                first | {"id": "call_0", "index": 3},
            ]
        }
    )
    assert [made.id for made in reply.calls] == ["call_0", "call_1", "call_2", "call_3"]
    assert reply.provider["tool_calls"] == [
        first | {"id": "call_0"},
        first,
        first | {"id": ""},
        first | {"id": "call_0"},
    ]


def test_only_functions_are_ours_to_call() -> None:
    reply = build(
        {
            "tool_calls": [
                {"index": 0, "id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}},
                {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": {"x": 1}}},
                {"index": 2, "id": "c", "type": "function"},
            ]
        }
    )
    assert reply.calls == (ToolCall("b", "g", '{"x": 1}'), ToolCall("c", "", ""))
    assert len(reply.provider["tool_calls"]) == 3
    assert build({"function_call": {"name": "f", "arguments": "{}"}}).calls == ()


# -- whole or not


def test_a_stream_that_just_ends_is_no_reply() -> None:
    with pytest.raises(ModelUnavailableError, match="middle"):
        build({"content": "Hel"}, finish=None, done=False)


@pytest.mark.parametrize("delta", [{}, {"role": "assistant", "content": ""}, {"reasoning_content": "hm"}])
def test_the_end_alone_is_no_reply(delta: Json) -> None:
    with pytest.raises(ModelUnavailableError, match="without a reply"):
        build(delta, finish=None)


@pytest.mark.parametrize("delta", [{"content": "x"}, {"refusal": "no"}, call(0, "a", "f", "{}")])
def test_an_end_without_a_reason_is_enough_for_a_reply(delta: Json) -> None:
    assert build(delta, finish=None).finish_reason is None


def test_an_empty_reply_with_a_reason_is_one() -> None:
    assert build({"role": "assistant", "content": ""}).content == ""
    assert build({}).provider == {"role": "assistant"}


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_a_reply_that_the_server_gave_up_is_none(finish: str) -> None:
    with pytest.raises(ModelUnavailableError, match=finish):
        build({"content": "Hel"}, finish=finish)


def test_nesting_beyond_the_stack_is_no_reply() -> None:
    deep: Json = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(ModelUnavailableError, match="nested"):
        build(deep)


def test_a_long_reply_is_put_together_in_no_time() -> None:
    chunks = [{"choices": [{"index": 0, "delta": {"content": "word "}}]} for _ in range(100_000)]
    chunks += [{"choices": [{"index": 0, "delta": call(0, "a", "f", "x" * 10)}]} for _ in range(20_000)]
    builder = ReplyBuilder()
    start = time.process_time()
    for chunk in chunks:
        builder.add(chunk)
    reply = builder.reply(done=True)
    assert time.process_time() - start < 2  # 0.3 s here; what is quadratic takes minutes
    assert reply.content == "word " * 100_000
    assert len(reply.calls[0].arguments) == 200_000
    json.dumps(reply.provider)
