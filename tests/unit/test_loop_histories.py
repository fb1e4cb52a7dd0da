"""Histories that others wrote, on their way through the loop: whatever stands in them, it goes on (G7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loop_branches import asked_after, outcomes, pending, resumed
from tests.unit.loop_simulator import (
    TIME,
    asks,
    call,
    in_call_order,
    make_agent,
    simulate,
    well_formed,
    wire,
)
from turnkeep.runner.effects import (
    AskModel,
    Head,
    Json,
    RunTool,
    Save,
    WaitForPerson,
)
from turnkeep.runner.loop import turns
from turnkeep.runner.tools import tool

CORPUS = Path(__file__).parent.parent / "corpus"

# -- histories that others wrote, in OpenAI's shape

A, B = (
    {"id": id, "type": "function", "function": {"name": name, "arguments": '{"n": 1}'}}
    for id, name in (("call_a", "mail"), ("call_b", "search"))
)
USER = {"role": "user", "content": "go on"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [A, B]}
RESULT_A = {"role": "tool", "tool_call_id": "call_a", "content": "sent"}
RESULT_B = {"role": "tool", "tool_call_id": "call_b", "content": "found"}


def asked_about(messages: Sequence[Json]) -> Sequence[Json]:
    """What the model is asked in an open turn with this history."""
    asked = next(turns(make_agent(), Head(0, 1, True, messages, (), None), lambda: TIME))
    assert isinstance(asked, AskModel)
    well_formed(asked.messages)
    return asked.messages


def test_dangling_tool_call_of_others_is_stated_as_unknown() -> None:
    sent = asked_about([USER, CALLING, RESULT_B, USER])
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert "unknown" in sent[2]["content"]
    assert sent[3] == RESULT_B


def test_dangling_tool_call_of_others_whose_result_came_after_the_user_went_on() -> None:
    sent = asked_about([USER, CALLING, RESULT_B, USER, RESULT_A])
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert [message["content"] for message in sent[2:4]] == ["sent", "found"]


def test_dangling_tool_call_of_others_whose_result_came_after_a_caption() -> None:
    caption = {"role": "assistant", "content": "a picture"}
    sent = asked_about([USER, CALLING, RESULT_B, caption, RESULT_A])
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [message["content"] for message in sent[2:4]] == ["sent", "found"]


@pytest.mark.parametrize("twice", [{**RESULT_A}, {**RESULT_A, "content": "sent again"}], ids=["same", "other"])
def test_duplicate_tool_result_of_others_is_sent_once(twice: Json) -> None:
    sent = asked_about([USER, CALLING, RESULT_A, RESULT_B, twice, USER])
    assert [message["content"] for message in sent] == ["go on", None, "sent", "found", "go on"]


def test_duplicate_tool_result_that_came_late_is_no_second_answer() -> None:
    simulator = resumed(pending(A, attempts=1), [{**CALLING, "tool_calls": [A]}])
    assert simulator.go() is None
    simulator.branch.messages.append(RESULT_A)  # by a tool that had survived
    messages = wire(simulator.branch)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]


def test_a_result_of_others_without_a_call_is_not_sent() -> None:
    for messages in ([RESULT_A, USER], [USER, RESULT_A], [USER, {"role": "assistant", "content": "hi"}, RESULT_A]):
        assert "tool" not in [message["role"] for message in asked_about(messages)]


def test_results_of_others_in_any_order_are_sent_in_the_order_of_the_calls() -> None:
    sent = asked_about([USER, CALLING, RESULT_B, RESULT_A])
    assert [message["content"] for message in sent[2:]] == ["sent", "found"]


def test_one_id_in_every_round_of_others_is_no_trouble() -> None:
    rounds = [
        message
        for n in range(4)
        for message in (
            {"role": "assistant", "content": None, "tool_calls": [A | {"id": "X"}, B | {"id": "X"}]},
            {"role": "tool", "tool_call_id": "X", "content": f"{n}a"},
            {"role": "tool", "tool_call_id": "X", "content": f"{n}b"},
        )
    ]
    sent = asked_about([USER, *rounds])
    assert [message["content"] for message in sent if message["role"] == "tool"] == [
        f"{n}{name}" for n in range(4) for name in "ab"
    ]


@pytest.mark.parametrize(
    "file",
    ["openai_chat_parallel_tools", "crash_dangling_calls", "invalid_tool_arguments", "openai_chat_refusal_audio"],
)
def test_a_conversation_of_the_corpus_makes_a_well_formed_request(file: str) -> None:
    sent = asked_about(json.loads((CORPUS / f"{file}.json").read_text())["messages"])
    assert any(message["role"] == "assistant" for message in sent)


@pytest.mark.parametrize(
    ("name", "outcome"), [("search", "ok"), ("refund", "unknown"), ("mail", "unknown"), ("deploy", None)]
)
@pytest.mark.parametrize("arguments", ['{"n": 1}', {"n": 1}], ids=["text", "object"])
@pytest.mark.parametrize("shape", ["flat", "OpenAI's"])
def test_a_call_issued_by_somebody_elses_loop_may_have_been_started(
    name: str, outcome: str | None, arguments: Any, shape: str
) -> None:
    function = {"name": name, "arguments": arguments}
    issued: Json = {"id": "c", **function} if shape == "flat" else {"id": "c", "type": "function", "function": function}
    simulator = resumed(pending(issued), [{"role": "assistant", "content": None, "tool_calls": [issued]}])
    stopped = simulator.go()
    if outcome is None:
        assert isinstance(stopped, WaitForPerson)
        assert simulator.kinds() == ["Save", "WaitForPerson"]
        return
    assert outcomes(simulator.branch) == [outcome]
    assert simulator.branch.messages[2]["metadata"]["tool_name"] == name
    assert simulator.of(Save)[0].tool_results[0]["name"] == name
    assert asked_after(simulator)[2]["tool_call_id"] == "c"


@pytest.mark.parametrize("arguments", [{"arguments": None}, {"arguments": ""}, {"arguments": {}}, {}], ids=repr)
def test_a_call_of_somebody_elses_loop_needs_no_arguments_where_its_tool_has_none(arguments: Json) -> None:
    @tool(idempotent=True)
    async def ping() -> None: ...

    simulator = resumed(pending({"id": "c", "name": "ping", **arguments}), agent=make_agent(ping))
    assert simulator.go() is None
    assert [run.arguments for run in simulator.of(RunTool)] == [{}]


def test_a_call_of_somebody_elses_loop_to_a_tool_that_is_not_ours_is_not_said_not_to_have_run() -> None:
    simulator = resumed(pending(A | {"function": {"name": "theirs", "arguments": "{}"}}))
    assert simulator.go() is None
    assert outcomes(simulator.branch) == ["unknown"]


def test_current_tool_names_a_call_in_openais_shape_too() -> None:
    simulator = resumed(pending(B, A), [CALLING])
    assert simulator.go() is None
    assert simulator.of(Save)[0].state["current_tool"] == "search"


@pytest.mark.parametrize(
    "issued",
    [
        "mail", 7, None, [], ["mail"], {}, {"function": "mail"}, {"function": None, "name": 3}, {"name": ["mail"]},
        {"id": 7, "name": "mail", "arguments": 5}, {"id": None, "name": "search", "arguments": [1]},
        {"name": "search", "arguments": None}, {"policy": "report"}, {"policy": None, "name": None},
    ],
    ids=repr,
)  # fmt: skip
def test_a_pending_call_of_any_shape_comes_to_an_end(issued: Any) -> None:
    simulator = resumed(pending(issued))
    assert simulator.go() is None or simulator.kinds() == ["HandBack"]
    assert not simulator.of(RunTool)
    wire(simulator.branch)


def test_in_call_order_is_what_the_tests_take_it_for() -> None:
    simulator = simulate(asks(*(call("search", id=name) for name in "abc")))
    simulator.lands = lambda running: -1
    simulator.go()
    assert [message["metadata"]["index"] for message in in_call_order(simulator.branch.messages)[2:5]] == [0, 1, 2]
