"""Transcripts on their way to a model: whatever stands in them, what goes over the wire is well formed (G7)."""

from __future__ import annotations

import copy
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.loop_simulator import TIME, asks, call, says, well_formed
from turnkeep import jsontext
from turnkeep.model import PendingCall
from turnkeep.runner.effects import Json, Outcome, Policy
from turnkeep.runner.transcript import (
    assistant_message,
    call_element,
    invalid_replies,
    reply_kind,
    request_messages,
    result_element,
    tool_message,
)

quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


# Junk that looks like what it isn't: each part may be as expected, missing, or any JSON value.
JUNK_VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, -1.5, 10**30, "", "x", "a", "function", "\ud800"),
    *([], [None], [1], ["a"], [[]], [{}], {}, {"a": 1}, {"id": "a"}, {"name": "a"}, {"function": {}}, {"function": 1}),
    {"tool_calls": 1},
]
junk = st.sampled_from(JUNK_VALUES)


def spoilt(expected: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(expected, expected, expected, junk)


ids = spoilt(st.sampled_from(["a", "a", "a_1", "a_2", "call_0", "call_1", "", 1, None]))
arguments = spoilt(st.sampled_from(["{}", '{"n": 1}', "{", "", "[]", "null"]) | st.just({"n": 1}))
names = spoilt(st.sampled_from(["search", "mail", ""]))
functions = spoilt(st.fixed_dictionaries({}, optional={"name": names, "arguments": arguments}))
one_call = spoilt(
    st.fixed_dictionaries(
        {},
        optional={
            "id": ids,
            "type": spoilt(st.sampled_from(["function", "web_search"])),
            "function": functions,
            "name": names,
            "arguments": arguments,
        },
    )
)
some_calls = spoilt(st.lists(one_call, max_size=4))
providers = spoilt(
    st.fixed_dictionaries(
        {},
        optional={
            "tool_calls": some_calls, "content": junk, "role": junk, "refusal": spoilt(st.just("no")),
        },
    )
)  # fmt: skip
metadata = spoilt(
    st.fixed_dictionaries(
        {},
        optional={
            "tool_calls": some_calls, "provider": providers, "tool_call_id": ids,
            "index": spoilt(st.integers(0, 4)), "outcome": spoilt(st.sampled_from(list(Outcome))),
        },
    )
)  # fmt: skip
messages = st.fixed_dictionaries(
    {},
    optional={
        "role": spoilt(st.sampled_from(["assistant", "assistant", "tool", "tool", "user", "system"])),
        "content": spoilt(st.just("text")),
        "metadata": metadata,
        "tool_calls": some_calls,
        "tool_call_id": ids,
    },
)
histories = st.lists(messages, max_size=7)


@quick
@given(histories, st.none() | st.text(max_size=3))
def test_any_history_makes_a_well_formed_request(history: list[Json], instructions: str | None) -> None:
    before = copy.deepcopy(history)
    sent = request_messages(instructions, history)
    well_formed(sent)
    assert history == before
    if instructions is not None:
        assert sent[0] == {"role": "system", "content": instructions}
    # Nothing but results is left out or made up.
    assert len([message for message in sent if message["role"] != "tool"]) == len(
        [message for message in history if message.get("role") != "tool"]
    ) + (instructions is not None)
    assert 0 <= invalid_replies(history) <= sum(message.get("role") == "assistant" for message in history)


USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "search", "arguments": "{}"}
CALL = {"id": "a", "type": "function", "function": FUNCTION}


def assistant(**metadata: Any) -> Json:
    return {"role": "assistant", "content": None, "metadata": metadata}


def result(content: Any, **metadata: Any) -> Json:
    return {"role": "tool", "content": content, "metadata": metadata}


JUNK: dict[str, list[Json]] = {
    "no message": [{}],
    "role null": [{"role": None, "content": "x"}],
    "role a list": [{"role": ["user"], "content": "x"}],
    "metadata null": [{"role": "assistant", "content": "x", "metadata": None}],
    "metadata a text": [{"role": "assistant", "content": "x", "metadata": "m"}],
    "metadata a list": [{"role": "tool", "content": "x", "metadata": [1]}],
    "calls a text": [assistant(tool_calls="search")],
    "calls a number": [assistant(tool_calls=7)],
    "calls true": [assistant(tool_calls=True)],
    "calls an object": [assistant(tool_calls={"id": "a"})],
    "calls of junk": [assistant(tool_calls=[None, 1, "x", [], {}])],
    "a call that is a list": [assistant(tool_calls=[["a", "search"]])],
    "no name": [assistant(tool_calls=[{"id": "a", "arguments": "{}"}])],
    "name a number": [assistant(tool_calls=[{"id": "a", "name": 7}])],
    "id a number": [assistant(tool_calls=[{"id": 7, "name": "search"}])],
    "id a list": [assistant(tool_calls=[{"id": [7], "name": "search"}])],
    "id an object": [assistant(tool_calls=[{"id": {}, "name": "search"}, {"id": {"a": 1}, "name": "search"}])],
    "id taken": [assistant(tool_calls=[{"id": id, "name": "search"} for id in ("a_2", "a", "a")])],
    "function a text": [assistant(tool_calls=[{"id": "a", "function": "search"}])],
    "arguments a list": [assistant(tool_calls=[{"id": "a", "name": "search", "arguments": [1]}])],
    "arguments a number": [assistant(tool_calls=[{"id": "a", "name": "search", "arguments": 5}])],
    "provider a text": [assistant(tool_calls=[CALL], provider="openai")],
    "provider a list": [assistant(tool_calls=[CALL], provider=[CALL])],
    "provider's calls a number": [assistant(tool_calls=[CALL], provider={"tool_calls": 1})],
    "provider's calls a text": [assistant(tool_calls=[CALL], provider={"tool_calls": "x"})],
    "provider's function a text": [assistant(tool_calls=[CALL], provider={"tool_calls": [{"function": "x"}]})],
    "provider's function a list": [assistant(tool_calls=[CALL], provider={"tool_calls": [{"function": [1]}]})],
    "provider's role": [assistant(provider={"role": "tool", "content": "x"})],
    "provider's calls without ours": [assistant(provider={"tool_calls": [CALL], "content": None})],
    "a user's calls": [{"role": "user", "content": "x", "tool_calls": [CALL]}],
    "results of nothing": [result("x"), USER, result("y", index=0), result("z", tool_call_id="a")],
}


@pytest.mark.parametrize("history", JUNK.values(), ids=JUNK.keys())
def test_junk_makes_a_well_formed_request(history: list[Json]) -> None:
    well_formed(request_messages(None, [USER, *history, USER]))
    well_formed(request_messages("Be kind.", history * 2))


# -- which result is whose


def contents(history: list[Json]) -> list[str]:
    sent = request_messages(None, history)
    well_formed(sent)
    return [message["content"] for message in sent if message["role"] == "tool"]


def test_a_result_that_names_an_index_belongs_to_the_call_there() -> None:
    calling = assistant(tool_calls=[{"id": "X", "name": "search", "arguments": "{}"}] * 3)
    landed = [result(f"r{index}", index=index, tool_call_id="X") for index in (2, 0, 1)]
    assert contents([calling, *landed]) == ["r0", "r1", "r2"]


def test_an_index_of_somebody_elses_meaning_does_not_hide_a_result() -> None:
    calling = assistant(tool_calls=[{"id": id, "name": "search"} for id in ("X", "Y")])
    landed = [result("y", tool_call_id="Y", index=1), result("x", tool_call_id="Z", index=0)]
    assert contents([calling, *landed])[1] == "y"
    assert contents([assistant(tool_calls=[{"id": "X", "name": "search"}]), result("x", index=0)]) == ["x"]


def test_a_made_up_tool_name_goes_back_as_one_that_servers_take() -> None:
    for name, sent in (("functions.search x", "functions_search_x"), ("", "unknown"), ("search", "search")):
        wire = request_messages(None, [assistant(tool_calls=[{"id": "a", "name": name}])])
        assert wire[0]["tool_calls"][0]["function"]["name"] == sent


def test_results_that_name_an_id_only_belong_to_its_calls_in_their_order() -> None:
    calling = assistant(tool_calls=[{"id": id, "name": "search"} for id in ("X", "Y", "X")])
    landed = [result(content, tool_call_id=id) for content, id in (("y", "Y"), ("x0", "X"), ("x2", "X"))]
    assert contents([calling, *landed]) == ["x0", "y", "x2"]


def test_an_id_made_up_for_one_call_takes_no_result_of_another() -> None:
    calling = assistant(tool_calls=[{"id": id, "name": "search"} for id in ("a", "a", "a_1")])
    landed = [result(content, tool_call_id=id) for content, id in (("r2", "a_1"), ("r0", "a"), ("r1", "a"))]
    assert contents([calling, *landed]) == ["r0", "r1", "r2"]


def test_a_call_without_a_result_does_not_take_one_of_the_next_round() -> None:
    calling = assistant(tool_calls=[{"id": "X", "name": "search"}])
    first, second = contents([calling, USER, calling, result("second", tool_call_id="X", index=0)])
    assert "unknown" in first
    assert second == "second"


def test_a_second_result_of_a_call_stays_away() -> None:
    calling = assistant(tool_calls=[{"id": "X", "name": "search"}])
    for key in ({"index": 0}, {"tool_call_id": "X"}):
        assert contents([calling, result("first", **key), result("second", **key)]) == ["first"]


def test_equal_results_of_two_calls_are_two_results() -> None:
    calling = assistant(tool_calls=[{"id": "X", "name": "search"}] * 2)
    assert contents([calling, result("same", tool_call_id="X"), result("same", tool_call_id="X")]) == ["same"] * 2


@pytest.mark.parametrize(
    "between",
    [[USER], [USER, USER], [{"role": "assistant", "content": "caption"}], [USER | {"tool_calls": [CALL]}]],
    ids=str,
)
def test_a_result_is_sent_behind_its_call_whatever_was_stored_between_them(between: list[Json]) -> None:
    calling = assistant(tool_calls=[{"id": "X", "name": "search"}])
    assert contents([calling, *between, result("found", tool_call_id="X", index=0)]) == ["found"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("text", "text"), ("", ""), (None, "null"), (True, "true"), (1.50, "1.5"), ({"é": ["ü"]}, '{"é": ["ü"]}'),
        ([], "[]"),
    ],
)  # fmt: skip
def test_a_result_goes_over_the_wire_as_text(content: Any, text: str) -> None:
    assert contents([assistant(tool_calls=[CALL]), result(content, index=0)]) == [text]


# -- the assistant's messages


def test_the_providers_message_goes_back_as_it_came() -> None:
    reply = asks(call("search", '{ "n" : 1 }', id="a"), call("mail", id="b"))
    provider = reply.provider | {"reasoning_content": "hm", "annotations": [], "content": "I'll look."}
    provider["tool_calls"][1]["extra_content"] = {"thought_signature": "sig"}
    message = assistant_message(reply, TIME)
    message["metadata"]["provider"] = provider
    sent = request_messages(None, [message])
    assert sent[0] == provider
    well_formed(sent)


def test_a_providers_calls_that_are_not_ours_lend_their_keys_to_none() -> None:
    others = [CALL | {"signature": number} for number in range(2)]
    sent = request_messages(None, [assistant(tool_calls=[{"id": "a", **FUNCTION}], provider={"tool_calls": others})])
    assert sent[0]["tool_calls"] == [CALL]


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"a": 1}{"a": 1}', '"x"', "n=1"], ids=repr)
def test_arguments_that_are_no_object_are_sent_as_an_empty_one(text: str) -> None:
    message = assistant_message(asks(call("search", text)), TIME)
    sent = request_messages(None, [message])
    assert sent[0]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert message["metadata"]["provider"]["tool_calls"][0]["function"]["arguments"] == text


@pytest.mark.parametrize("text", ["{}", ' {"n" : 1e2 } ', '{"a": 1, "a": 2}', '{"n": 123456789012345678901234567890}'])
def test_arguments_that_are_an_object_are_sent_verbatim(text: str) -> None:
    sent = request_messages(None, [assistant_message(asks(call("search", text)), TIME)])
    assert sent[0]["tool_calls"][0]["function"]["arguments"] == text


def test_a_message_without_text_or_calls_is_sent_with_an_empty_one() -> None:
    assert request_messages(None, [assistant_message(says(None), TIME)]) == [{"role": "assistant", "content": ""}]


def test_a_refusal_is_sent_as_one() -> None:
    sent = request_messages(None, [assistant_message(says(None, refusal="no"), TIME)])
    assert sent == [{"role": "assistant", "content": None, "refusal": "no"}]


def test_what_a_message_says_to_us_alone_is_not_sent() -> None:
    history = [{"role": role, "content": role, "metadata": {"x": 1}} for role in ("system", "user", "assistant")]
    assert request_messages(None, history) == [
        {"role": role, "content": role} for role in ("system", "user", "assistant")
    ]


# -- messages to store


def test_the_kind_of_a_reply() -> None:
    assert reply_kind(asks(call("search"))) == "tool_calls"
    assert reply_kind(asks(call("search"), finish_reason="length")) == "tool_calls"
    assert reply_kind(says("x", refusal="no", finish_reason="length")) == "refusal"
    assert reply_kind(says("x", finish_reason="length")) == "truncated"
    assert reply_kind(says("x")) == "text"
    assert reply_kind(says("")) == "empty"


def test_a_calls_result_names_the_call_by_its_place() -> None:
    elements = [call_element("X", "search", "{}", policy) for policy in (Policy.RERUN, None)]
    assert [element["policy"] for element in elements] == ["rerun", None]
    pending = PendingCall(3, 2, 1, 0, 4, False, jsontext.encode(elements, "tool_calls"), uuid.UUID(int=1))
    message = tool_message(pending, {"x": 1}, Outcome.ERROR, TIME)
    assert message["metadata"] == {
        "timestamp": TIME, "tool_name": "search", "tool_call_id": "X", "index": 1, "outcome": "error",
    }  # fmt: skip
    assert message["content"] == {"x": 1}
    assert result_element(pending, Outcome.OK) == {
        "tool_call_id": "X", "name": "search", "outcome": "ok", "attempt": 4,
    }  # fmt: skip


def test_invalid_replies_are_counted_from_the_end() -> None:
    invalid, fine = result("x", outcome="invalid"), result("x", outcome="ok")
    calling = assistant()
    assert invalid_replies([]) == 0
    assert invalid_replies([USER, calling, invalid]) == 1
    assert invalid_replies([USER, calling, invalid, fine, calling, fine, invalid]) == 2
    assert invalid_replies([USER, calling, invalid, calling, fine]) == 0
    assert invalid_replies([USER, calling, invalid, calling, fine, calling, invalid]) == 1
    assert invalid_replies([USER, calling, invalid, USER, calling, invalid]) == 1
    assert invalid_replies([invalid]) == 0
