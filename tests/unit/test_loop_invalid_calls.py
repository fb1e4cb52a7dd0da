"""Calls that the turn loop never runs: arguments that can't be, tools that aren't, calls the provider has executed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.loop_branches import asked_after, contents, element, outcomes, pending, resumed
from tests.unit.loop_simulator import DEPLOY, SEARCH, TOOLS, Crash, asks, call, make_agent, says, simulate
from turnkeep.runner.effects import AskModel, FailTurn, HandBack, Policy, RunTool, Save, SaveStarted, WaitForPerson

BAD_ARGUMENTS = {
    "cut short": '{"n": 1',
    "no JSON": "n=1",
    "not an object": "[1]",
    "null": "null",
    "twice": '{"n": 1}{"n": 1}',
    "wrong type": '{"n": "many"}',
    "missing": "{}",
    "none at all": "",
    "unknown argument": '{"n": 1, "m": 2}',
    "not a number": '{"n": NaN}',
    "a lone surrogate": '{"n": "\\ud800"}',
}


# -- arguments that can't be, tools that aren't


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.policy)
def test_invalid_args_are_never_run_and_stay_verbatim(tool: Any, arguments: str) -> None:
    simulator = simulate(asks(call(tool.name, arguments)))
    assert simulator.go() is None
    assert simulator.kinds()[2:5] == ["Save", "Save", "AskModel"]
    assert outcomes(simulator.branch) == ["invalid"]
    metadata = simulator.branch.messages[1]["metadata"]
    assert metadata["provider"]["tool_calls"][0]["function"]["arguments"] == arguments
    assert metadata["tool_calls"] == [{"id": "call_1", "name": tool.name, "arguments": arguments}]
    result = asked_after(simulator)[-1]
    assert "not run" in result["content"]
    assert result["content"].endswith(arguments)  # so that the model sees what it did
    sent = asked_after(simulator)[1]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent), dict)  # or some servers refuse the conversation for ever


def test_invalid_args_of_one_call_do_not_keep_its_neighbours_from_running() -> None:
    simulator = simulate(asks(call("mail", "{", id="a"), call("mail", id="b"), call("search", id="c")))
    assert simulator.go() is None
    assert simulator.kinds()[2:7] == ["Save", "Save", "SaveStarted", "RunTool", "RunTool"]
    assert outcomes(simulator.branch) == ["invalid", "ok", "ok"]


def test_arguments_that_validate_are_passed_as_values() -> None:
    simulator = simulate(asks(call("search", ' {"n" : 12345678901234567890 } ')))
    assert simulator.go() is None
    assert simulator.of(RunTool)[0].arguments == {"n": 12345678901234567890}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.policy)
def test_calls_of_a_reply_cut_by_length_are_never_run_even_if_they_look_whole(tool: Any) -> None:
    simulator = simulate(asks(call(tool.name, id="a"), call("search", '{"n"', id="b"), finish_reason="length"))
    simulator.dies(Crash(Save))
    assert simulator.go() is None
    assert not simulator.runs
    assert outcomes(simulator.branch) == ["invalid", "invalid"]
    assert "length" in contents(simulator.branch)[0]


INVALID = asks(call("search", "{"))


@pytest.mark.parametrize("reply", [INVALID, asks(call("search"), finish_reason="length")], ids=["no JSON", "cut"])
def test_invalid_args_three_times_in_a_row_fail_the_turn(reply: Any) -> None:
    simulator = simulate(reply, reply, reply, reply)
    stopped = simulator.go()
    assert isinstance(stopped, FailTurn)
    assert stopped.failure["type"] == "invalid_arguments"
    assert len(simulator.of(AskModel)) == 3
    assert not simulator.branch.pending  # the results are there, nothing dangles
    assert simulator.branch.turn_open


def test_invalid_args_twice_are_retried() -> None:
    simulator = simulate(INVALID, INVALID, says("sorry"))
    assert simulator.go() is None


def test_invalid_args_are_counted_across_crashes() -> None:
    simulator = simulate(INVALID, INVALID, INVALID)
    for nth in (2, 1):
        simulator.dies(Crash(Save, nth=nth))
    assert isinstance(simulator.go(), FailTurn)
    assert len(simulator.of(AskModel)) == 3


def test_invalid_args_get_one_try_more_if_the_process_dies_right_before_the_failure() -> None:
    simulator = simulate(INVALID, INVALID, INVALID, says("well"))
    simulator.dies(Crash(FailTurn, after=False))
    assert simulator.go() is None
    assert len(simulator.of(AskModel)) == 4


def test_invalid_args_are_counted_anew_after_a_reply_without_any() -> None:
    simulator = simulate(INVALID, INVALID, asks(call("search")), INVALID, INVALID, says("well"))
    assert simulator.go() is None


def test_invalid_args_are_counted_anew_in_another_turn() -> None:
    simulator = simulate(INVALID, INVALID, says("no"), INVALID, INVALID, says("no"), requests=2)
    assert simulator.go() is None


def test_invalid_args_count_once_a_reply_and_also_beside_calls_that_run() -> None:
    both = asks(call("search", "{", id="a"), call("mail", "{", id="b"), call("search", id="c"))
    simulator = simulate(both, both, both)
    stopped = simulator.go()
    assert isinstance(stopped, FailTurn)
    assert len(simulator.of(AskModel)) == 3


def test_a_turn_that_invalid_args_failed_goes_on_when_resumed() -> None:
    simulator = simulate(INVALID, INVALID, INVALID, says("now I know"))
    assert isinstance(simulator.go(), FailTurn)
    assert simulator.go() is None
    assert simulator.branch.messages[-1]["content"] == "now I know"


def test_a_started_call_whose_arguments_no_longer_validate_is_not_said_not_to_have_run() -> None:
    simulator = resumed(pending(element("mail", Policy.REPORT, '{"m": "as it was"}'), attempts=1))
    assert simulator.go() is None
    assert not simulator.of(RunTool)
    assert outcomes(simulator.branch) == ["unknown"]


def test_a_call_of_an_older_schema_on_a_fork_is_not_said_not_to_have_run() -> None:
    simulator = resumed(pending(element("mail", Policy.REPORT, '{"m": "as it was"}'), uncertain=True))
    assert simulator.go() is None
    assert outcomes(simulator.branch) == ["unknown"]


def test_an_idempotent_call_of_an_older_schema_on_a_fork_is_not_said_not_to_have_run() -> None:
    simulator = resumed(pending(element("search", Policy.RERUN, '{"m": "as it was"}'), uncertain=True))
    assert simulator.go() is None
    assert not simulator.of(RunTool)
    assert "not run" not in contents(simulator.branch)[0]


def test_a_person_is_asked_about_a_started_call_whose_arguments_no_longer_validate() -> None:
    simulator = resumed(pending(element("deploy", Policy.ASK, '{"m": "as it was"}'), attempts=1))
    assert isinstance(simulator.go(), WaitForPerson)


@pytest.mark.parametrize("name", ["invented", "", "Search", "search\n"], ids=repr)
def test_a_tool_the_model_invented_gets_an_error_result(name: str) -> None:
    simulator = simulate(asks(call(name, id="a"), call("search", id="b")))
    assert simulator.go() is None
    assert outcomes(simulator.branch) == ["error", "ok"]
    message = contents(simulator.branch)[0]
    assert repr(name) in message
    assert all(tool.name in message for tool in TOOLS)
    assert [run.name for run in simulator.of(RunTool)] == ["search"]


def test_invented_tools_are_an_error_but_no_invalid_arguments() -> None:
    simulator = simulate(*[asks(call("invented"))] * 4, says("there are none"))
    assert simulator.go() is None


def test_an_invented_tool_of_an_agent_without_tools() -> None:
    simulator = simulate(asks(call("invented")))
    simulator.agent = replace(simulator.agent, tools=())
    assert simulator.go() is None
    assert asked_after(simulator, 0)
    assert simulator.of(AskModel)[0].tools == []
    assert outcomes(simulator.branch) == ["error"]


def test_a_tool_that_this_code_does_not_have_is_left_to_a_worker_that_has_it() -> None:
    simulator = simulate(asks(call("search", id="a"), call("mail", id="b"), call("invented", id="c")))
    simulator.dies(Crash(Save))
    simulator.effects.clear()
    whole, simulator.agent = simulator.agent, make_agent(SEARCH, DEPLOY)
    assert simulator.go() == HandBack(("mail",))
    assert simulator.kinds() == ["HandBack"]  # and nothing is run or saved
    simulator.agent = whole
    assert simulator.go() is None
    assert sorted(outcomes(simulator.branch)) == ["error", "ok", "ok"]


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_started_call_too_is_left_to_a_worker_that_has_its_tool(attempts: int) -> None:
    simulator = resumed(pending(element("gone", Policy.REPORT), attempts=attempts))
    assert simulator.go() == HandBack(("gone",))


def test_a_tool_that_was_invented_once_and_exists_by_now_is_run() -> None:
    simulator = resumed(pending(element("mail", None)))
    assert simulator.go() is None
    assert outcomes(simulator.branch) == ["ok"]
    assert len(simulator.of(SaveStarted)) == 1


SEARCHED = {"id": "ws_1", "type": "web_search", "web_search": {"query": "news"}, "result": ["…"]}


def test_a_call_that_the_provider_has_executed_is_never_pending() -> None:
    simulator = simulate(asks(call("search"), provided=[SEARCHED]))
    assert simulator.go() is None
    assert [one["id"] for one in simulator.of(Save)[0].tool_calls] == ["call_1"]
    assert len(simulator.of(RunTool)) == 1
    assert simulator.branch.messages[1]["metadata"]["provider"]["tool_calls"][0] == SEARCHED  # kept
    assert [one["id"] for one in asked_after(simulator)[1]["tool_calls"]] == ["call_1"]


def test_a_reply_with_nothing_but_what_the_provider_has_executed_ends_the_turn() -> None:
    reply = replace(asks(provided=[SEARCHED]), content="the news")
    simulator = simulate(replace(reply, provider=reply.provider | {"content": "the news"}), says("more"), requests=2)
    assert simulator.go() is None
    assert simulator.branch.messages[1]["metadata"]["kind"] == "text"
    assert "tool_calls" not in asked_after(simulator)[1]
