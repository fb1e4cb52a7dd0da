"""The turn loop's table, row by row: how a turn begins, how it ends, and what is stored of it. No I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.loop_branches import asked_after
from tests.unit.loop_simulator import TIME, TOOLS, Crash, asks, call, make_agent, says, scripted, simulate
from turnkeep.runner.effects import AskModel, AwaitTool, FailTurn, Head, ModelRefused, Save, TakeRequest
from turnkeep.runner.loop import turns

# -- taking a request, and asking the model


def test_nothing_waits() -> None:
    simulator = simulate(requests=0)
    assert simulator.go() is None
    assert simulator.kinds() == ["TakeRequest"]


def test_an_input_is_put_to_the_model_and_its_text_ends_the_turn() -> None:
    simulator = simulate(says("hello"), agent=make_agent(instructions="Be kind."))
    assert simulator.go() is None
    assert simulator.kinds() == ["TakeRequest", "AskModel", "Save", "TakeRequest"]
    (asked,) = simulator.of(AskModel)
    assert asked.messages == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "request 0"}]
    assert asked.tools == [tool.definition() for tool in TOOLS]
    assert not simulator.branch.turn_open
    assert simulator.branch.messages[-1]["content"] == "hello"


def test_requests_are_answered_one_turn_after_the_other() -> None:
    simulator = simulate(says("one"), asks(call("search")), says("two"), requests=2)
    assert simulator.go() is None
    assert [message["role"] for message in simulator.branch.messages] == [
        "user", "assistant", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert simulator.branch.turn_index == 1
    assert simulator.of(Save)[0].final
    assert simulator.of(Save)[-1].final


def test_the_model_is_asked_again_when_every_call_is_answered() -> None:
    simulator = simulate(asks(call("search", id="a"), call("search", id="b")))
    assert simulator.go() is None
    assert simulator.kinds() == [
        "TakeRequest", "AskModel", "Save", "RunTool", "RunTool", "AwaitTool", "Save", "AwaitTool", "Save", "AskModel",
        "Save", "TakeRequest",
    ]  # fmt: skip
    assert [message["role"] for message in asked_after(simulator)] == ["user", "assistant", "tool", "tool"]


def test_an_open_turn_goes_on_without_taking_a_request() -> None:
    head = Head(3, 0, True, [{"role": "user", "content": "hi"}], (), None)
    assert isinstance(next(turns(make_agent(), head, lambda: TIME)), AskModel)
    head = replace(head, turn_open=False)
    assert isinstance(next(turns(make_agent(), head, lambda: TIME)), TakeRequest)


def test_a_model_that_refuses_the_request_fails_the_turn_which_can_go_on() -> None:
    simulator = simulate(ModelRefused("HTTP 400: too long", 400))
    stopped = simulator.go()
    assert stopped == FailTurn({"type": "model_refused", "message": "HTTP 400: too long", "status": 400})
    assert simulator.kinds() == ["TakeRequest", "AskModel", "FailTurn"]
    assert simulator.branch.turn_open
    simulator.model = scripted()
    assert simulator.go() is None
    assert simulator.branch.messages[-1]["content"] == "done"


# -- max_steps


def test_max_steps_stops_the_turn_once_its_calls_are_answered() -> None:
    simulator = simulate(asks(call("search")), asks(call("search")), agent=make_agent(max_steps=2))
    stopped = simulator.go()
    assert isinstance(stopped, FailTurn)
    assert stopped.failure["type"] == "max_steps"
    assert len(simulator.of(AskModel)) == 2
    assert not simulator.branch.pending
    assert simulator.branch.turn_open


def test_max_steps_of_the_code_beats_the_stored_one_and_the_turn_goes_on() -> None:
    simulator = simulate(asks(call("search")), asks(call("search")), agent=make_agent(max_steps=2))
    simulator.go()
    assert isinstance(simulator.go(), FailTurn)  # as often as it is tried
    assert len(simulator.of(AskModel)) == 2
    simulator.agent = make_agent(max_steps=3)
    assert simulator.go() is None
    assert len(simulator.of(AskModel)) == 3
    assert simulator.branch.state["max_steps"] == 3


def test_an_answer_at_the_last_step_is_an_answer() -> None:
    simulator = simulate(asks(call("search")), says("found"), agent=make_agent(max_steps=2))
    assert simulator.go() is None


def test_max_steps_counts_the_inferences_of_one_turn_across_crashes() -> None:
    simulator = simulate(asks(call("search")), asks(call("search")), agent=make_agent(max_steps=2), requests=1)
    simulator.dies(Crash(Save))
    simulator.dies(Crash(AwaitTool))
    stopped = simulator.go()
    assert isinstance(stopped, FailTurn)
    assert simulator.branch.state["step_count"] == 2


def test_max_steps_begins_anew_with_each_turn() -> None:
    agent = make_agent(max_steps=2)
    simulator = simulate(asks(call("search")), says("1"), asks(call("search")), says("2"), agent=agent, requests=2)
    assert simulator.go() is None


def test_max_steps_begins_anew_after_a_turn_that_others_have_ended() -> None:
    simulator = simulate(asks(call("search")), says("2"), agent=make_agent(max_steps=2))
    simulator.branch.state = {"step_count": 2, "flags": {"is_final": False}}  # as it was when they did
    assert simulator.go() is None
    assert simulator.of(TakeRequest)[0].state["step_count"] == 0


def test_max_steps_begins_anew_in_a_turn_that_others_have_opened() -> None:
    simulator = simulate(says("1"), asks(call("search")), says("2"), agent=make_agent(max_steps=2))
    assert simulator.go() is None
    simulator.branch.begin({"role": "user", "content": "more"})  # and left the state as it was
    assert simulator.go() is None
    assert simulator.branch.messages[-1]["content"] == "2"


# -- final replies


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (says("hello"), "text"),
        (says(None, refusal="I won't."), "refusal"),
        (says("I won't.", refusal="I won't."), "refusal"),
        (says("", refusal="I won't."), "refusal"),
        (says(None), "empty"),
        (says(""), "empty"),
        (says("half a sen", finish_reason="length"), "truncated"),
        (says("", finish_reason="length"), "truncated"),
        (says("filtered", finish_reason="content_filter"), "text"),
    ],
)
def test_a_reply_without_calls_is_final_and_typed(reply: Any, kind: str) -> None:
    simulator = simulate(reply, says("next"), requests=2)
    assert simulator.go() is None
    saved = simulator.of(Save)[0]
    assert saved.final
    assert not saved.tool_calls
    (message,) = saved.messages
    assert message == {
        "role": "assistant",
        "content": reply.content,
        "metadata": {
            "timestamp": TIME, "kind": kind, "finish_reason": reply.finish_reason, "usage": reply.usage,
            "provider": reply.provider,
        },
    }  # fmt: skip
    assert saved.state["flags"]["is_final"] is True


def test_a_reply_with_calls_is_typed_too_and_keeps_the_providers_own_keys() -> None:
    reply = asks(call("search"))
    provider = reply.provider | {"reasoning_content": "hm", "content": ""}
    provider["tool_calls"][0]["extra_content"] = {"signature": "x"}
    simulator = simulate(replace(reply, provider=provider))
    assert simulator.go() is None
    assert simulator.branch.messages[1]["metadata"]["kind"] == "tool_calls"
    assert asked_after(simulator)[1] == provider


# -- what a checkpoint says of its calls and of the state


def test_a_call_is_stored_with_its_policy_and_one_that_was_invented_without() -> None:
    names = ["search", "refund", "mail", "deploy", "invented"]
    simulator = simulate(asks(*(call(name, "{}", id=name) for name in names)))
    simulator.dies(Crash(Save))
    policies = ["rerun", "transactional", "report", "ask", None]
    assert simulator.of(Save)[0].tool_calls == [
        {"id": name, "name": name, "arguments": "{}", "policy": policy}
        for name, policy in zip(names, policies, strict=True)
    ]


def test_the_state_says_how_far_the_turn_is() -> None:
    simulator = simulate(asks(call("search", id="a"), call("mail", id="b")), agent=make_agent(max_steps=7))
    assert simulator.go() is None
    states = [effect.state for effect in simulator.effects if isinstance(effect, Save | TakeRequest)]
    assert [state["step_count"] for state in states] == [0, 1, 1, 1, 2, 0]
    assert [state["current_tool"] for state in states] == [None, "search", "mail", None, None, None]
    assert [state["flags"]["is_final"] for state in states] == [False, False, False, False, True, False]
    assert {state["max_steps"] for state in states} == {7}
    assert all(state["variables"] == {} for state in states)


def test_what_others_keep_in_the_state_stays() -> None:
    simulator = simulate(asks(call("search")))
    kept = {"cart": [1, 2], "variables": {"tier": "gold"}, "flags": {"vip": True, "is_final": True}, "step_count": 9}
    simulator.branch.state = kept
    assert simulator.go() is None
    state = simulator.branch.state
    assert list(state)[:2] == ["cart", "variables"]
    assert state["cart"] == [1, 2]
    assert state["variables"] == {"tier": "gold"}
    assert state["flags"] == {"vip": True, "is_final": True, "requires_human_input": False}
    assert state["step_count"] == 2
    assert kept["step_count"] == 9


@pytest.mark.parametrize(
    "state",
    [
        None, 7, "text", [1], True,
        {"flags": 1, "variables": None, "step_count": "many"},
        {"flags": [], "variables": [], "step_count": None},
        {"flags": None, "variables": "x", "step_count": 1.5},
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("turn_open", [False, True])
def test_a_state_that_is_none_of_ours_is_put_right(state: Any, turn_open: bool) -> None:
    simulator = simulate(asks(call("search")))
    simulator.branch.state = state
    if turn_open:
        simulator.branch.begin({"role": "user", "content": simulator.branch.waiting.pop()})
    assert simulator.go() is None
    assert simulator.branch.state == {
        "step_count": 2, "max_steps": 100, "current_tool": None, "variables": {},
        "flags": {"is_final": True, "requires_human_input": False},
    }  # fmt: skip
