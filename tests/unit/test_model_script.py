"""A scripted model's replies: how one is chosen, and what it is on the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnkeep.testing import Exchange, Reply, ToolCall
from turnkeep.testing.script import NoReplyError, Place, choose, chunks, completion, dump, error, load, place, read_log

AT = Place("hello", 0)
SCRIPT = (
    Exchange("hello", [Reply("one"), Reply("two")]),
    Exchange("bye", [Reply("gone")]),
)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def asked(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)}


ASSISTANT = {"role": "assistant", "content": None}
TOOL = {"role": "tool", "tool_call_id": "c", "content": "r"}


def deltas(reply: Reply, at: Place = AT) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks(reply, at)]


def joined(reply: Reply, key: str) -> str:
    return "".join(delta.get(key) or "" for delta in deltas(reply))


# -- choosing


def test_the_last_user_text_and_the_replies_after_it_choose() -> None:
    assert choose(SCRIPT, asked(user("hello"))) == (AT, Reply("one"))
    assert choose(SCRIPT, asked(user("hello"), ASSISTANT, TOOL)) == (Place("hello", 1), Reply("two"))
    assert choose(SCRIPT, asked(user("hello"), ASSISTANT, ASSISTANT, user("bye"))) == (Place("bye", 0), Reply("gone"))


def test_messages_that_are_neither_do_not_count() -> None:
    system = {"role": "system", "content": "hello"}
    assert place(asked(system, user("hello"), ASSISTANT, TOOL, TOOL, system)) == Place("hello", 1)


def test_the_text_parts_of_a_content_list_are_joined() -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "lo"}]
    assert choose(SCRIPT, asked(user(parts)))[1] == Reply("one")


def test_a_star_matches_what_no_other_exchange_does() -> None:
    script = (Exchange("*", [Reply("any")]), *SCRIPT)
    assert choose(script, asked(user("hello")))[1] == Reply("one")
    assert choose(script, asked(user("Hello"))) == (Place("Hello", 0), Reply("any"))


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (asked(user("Hello")), "no exchange for the user text 'Hello'"),
        (asked(user("bye"), ASSISTANT), "1 replies to 'bye', and reply 2"),
        (asked(TOOL), "no message with role user"),
        ({}, "no message with role user"),
    ],
)
def test_what_is_not_in_the_script_has_no_reply(request_: dict[str, Any], why: str) -> None:
    with pytest.raises(NoReplyError, match=why):
        choose(SCRIPT, request_)


# -- failing


def test_a_reply_fails_so_many_times_or_always() -> None:
    assert [Reply("x", status=503, times=2).fails(attempt) for attempt in range(4)] == [True, True, False, False]
    assert Reply(break_after=0).fails(1_000)
    assert not Reply("x").fails(0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": 200},
        {"status": 503, "break_after": 1},
        {"times": 1},
        {"break_after": -1},
        {"token_seconds": -0.1},
    ],
)
def test_a_reply_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Reply("x", **wrong)


def test_an_error_is_of_the_kind_of_its_status() -> None:
    kinds = {status: error(status, "why")["error"]["type"] for status in (400, 429, 503)}
    assert kinds == {400: "invalid_request_error", 429: "rate_limit_error", 503: "server_error"}


# -- on the wire


@pytest.mark.parametrize(
    "text",
    ["", "word", "two words", "  spaces\n\n and\ttabs  ", "x" * 100, "日本語のとても長い文章" * 5, "a\ud800b 🙂"],
)
def test_text_is_cut_in_pieces_and_nothing_is_lost(text: str) -> None:
    assert joined(Reply(text), "content") == text
    assert joined(Reply(reasoning=text), "reasoning_content") == text
    assert joined(Reply(refusal=text), "refusal") == text
    assert len(deltas(Reply(text))) >= len(text.split()) + 2


def test_the_role_comes_first_and_the_finish_reason_last() -> None:
    made = chunks(Reply("a b"), AT, model="m")
    assert [chunk["choices"][0]["delta"] for chunk in made] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": " b"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in made] == [None, None, None, "stop"]
    assert {(chunk["object"], chunk["model"]) for chunk in made} == {("chat.completion.chunk", "m")}


def test_a_message_without_text_has_null() -> None:
    assert deltas(Reply(refusal="no"))[0] == {"role": "assistant", "content": None}
    assert completion(Reply(refusal="no"), AT)["choices"][0]["message"]["content"] is None


def test_usage_comes_only_when_asked_for_in_a_chunk_without_choices() -> None:
    assert all("usage" not in chunk for chunk in chunks(Reply("x"), AT))
    *before, last = chunks(Reply("x", usage={"total_tokens": 7}), AT, include_usage=True)
    assert last["choices"] == []
    assert last["usage"] == {"total_tokens": 7}
    assert [chunk["usage"] for chunk in before] == [None, None, None]
    made_up = completion(Reply("x"), AT)["usage"]
    assert made_up["prompt_tokens"] + made_up["completion_tokens"] == made_up["total_tokens"] > 0


def test_calls_come_as_name_and_id_and_then_arguments_in_pieces() -> None:
    reply = Reply(tool_calls=[ToolCall("look", {"city": "Łódź", "days": 3}), ToolCall("pay", "{not json", id="own")])
    calls = [delta["tool_calls"][0] for delta in deltas(reply) if "tool_calls" in delta]
    (first, *pieces), (second, *more) = ([call for call in calls if call["index"] == index] for index in (0, 1))
    assert first["function"] == {"name": "look", "arguments": ""}
    assert first["type"] == "function"
    assert second == {"index": 1, "id": "own", "type": "function", "function": {"name": "pay", "arguments": ""}}
    assert all(set(piece) == {"index", "function"} for piece in pieces + more)
    assert len(pieces) > 1
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"city":"Łódź","days":3}'
    assert "".join(piece["function"]["arguments"] for piece in more) == "{not json"
    assert chunks(reply, AT)[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_without_an_id_has_always_the_same_and_its_own() -> None:
    reply = Reply(tool_calls=[ToolCall("a"), ToolCall("a")])

    def ids(at: Place) -> list[str]:
        return [call["id"] for call in completion(reply, at)["choices"][0]["message"]["tool_calls"]]

    assert ids(AT) == ids(AT)
    assert all(call_id.startswith("call_") for call_id in ids(AT))
    assert len({*ids(AT), *ids(Place("hello", 1)), *ids(Place("bye", 0))}) == 6


def test_a_given_finish_reason_and_further_keys_are_sent() -> None:
    reply = Reply("x", finish_reason="length", extra={"annotations": [1], "content_signature": "s"})
    assert chunks(reply, AT)[-1]["choices"][0]["finish_reason"] == "length"
    assert {"annotations": [1], "content_signature": "s"} in deltas(reply)
    choice = completion(reply, AT)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["annotations"] == [1]


def test_the_whole_message_is_the_sum_of_its_deltas() -> None:
    reply = Reply("some text", [ToolCall("a", {"k": 1})], reasoning="I think", refusal="no way")
    message = completion(reply, AT)["choices"][0]["message"]
    for key in ("content", "refusal", "reasoning_content"):
        assert message[key] == joined(reply, key)
    assert message["tool_calls"][0]["function"] == {"name": "a", "arguments": '{"k":1}'}


# -- in files


def test_a_script_survives_its_file() -> None:
    script = (
        Exchange("hello \ud800", [Reply("one", [ToolCall("a", {"k": [None, 1.5]}), ToolCall("b", "{", id="i")])]),
        Exchange("*", [Reply(reasoning="r", refusal="no", finish_reason="length", usage={"total_tokens": 1})]),
        Exchange("x", [Reply(first_token_seconds=1, token_seconds=0.5, status=503, times=2, extra={"k": {}})]),
        Exchange("y", (Reply(break_after=3),)),
    )
    assert load(dump(script)) == script


def test_a_script_whose_part_could_never_be_used_is_refused() -> None:
    with pytest.raises(ValueError, match="'hello'"):
        dump([*SCRIPT, Exchange("hello", [])])
    with pytest.raises(ValueError, match="JSON"):
        dump([Exchange("hello", [Reply(extra={"k": float("nan")})])])


def test_a_log_is_read_whatever_a_kill_has_cut() -> None:
    lines = [json.dumps({"request": {"n": 1}}), '{"request": {"n"', json.dumps({"finished": {}}), '{"at": 1.0, "reque']
    logged = read_log("\n".join(lines))
    assert logged.requests == ({"n": 1},)
    assert logged.finished == 1
