"""The turn loop's table, row by row: what a head shows, and what is done about it. No I/O."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loop_simulator import (
    DECIDED,
    DEPLOY,
    MAIL,
    REFUND,
    SEARCH,
    TIME,
    TOOLS,
    Branch,
    Crash,
    Simulator,
    asks,
    call,
    make_agent,
    make_tool,
    says,
    scripted,
    simulate,
)
from turnkeep import jsontext
from turnkeep.model import PendingCall
from turnkeep.runner.effects import (
    AskModel,
    AwaitTool,
    FailTurn,
    HandBack,
    Head,
    Json,
    Landed,
    ModelRefused,
    Outcome,
    Policy,
    RunTool,
    Save,
    SaveStarted,
    TakeRequest,
    WaitForPerson,
)
from turnkeep.runner.loop import turns
from turnkeep.runner.transcript import UNKNOWN_OUTCOME

CORPUS = Path(__file__).parent.parent / "corpus"
STRICTNESS = [Policy.RERUN, Policy.TRANSACTIONAL, Policy.REPORT, Policy.ASK]
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


def outcomes(branch: Branch) -> list[str]:
    """How the calls came out, as their messages say, in the order they were stored."""
    return [message["metadata"]["outcome"] for message in branch.messages if message["role"] == "tool"]


def contents(branch: Branch) -> list[Any]:
    return [message["content"] for message in branch.messages if message["role"] == "tool"]


def asked_after(simulator: Simulator, nth: int = -1) -> Sequence[Json]:
    """The messages of a request to the model; by default of the last one."""
    return simulator.of(AskModel)[nth].messages


def pending(*elements: Any, attempts: int = 0, uncertain: bool = False, branch: int = 0) -> tuple[PendingCall, ...]:
    text = jsontext.encode(list(elements), "tool_calls")
    return tuple(
        PendingCall(0, 1, index, branch, attempts, uncertain, text, uuid.UUID(int=1)) for index in range(len(elements))
    )


def element(name: str, policy: Policy | None, arguments: str = '{"n": 1}', id: str = "call_1") -> Json:
    return {"id": id, "name": name, "arguments": arguments, "policy": policy and policy.value}


def resumed(calls: Sequence[PendingCall], messages: Sequence[Json] = (), agent: Any = None) -> Simulator:
    """A process that finds an open turn with these calls pending."""
    issued = {"role": "assistant", "content": None, "metadata": {"tool_calls": [one.call for one in calls]}}
    branch = Branch(turn_index=0, sub_step=1, turn_open=True, messages=[{"role": "user", "content": "go"}])
    branch.messages += messages or [issued]
    branch.pending = {one.place: one for one in calls}
    return Simulator(agent or make_agent(), scripted(), branch)


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
    assert asked.messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "request 0"},
    ]
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


# -- calls that were never started


@pytest.mark.parametrize("tool", [MAIL, DEPLOY], ids=lambda tool: tool.policy)
def test_a_call_is_marked_as_started_before_it_runs(tool: Any) -> None:
    simulator = simulate(asks(call(tool.name)))
    assert simulator.go() is None
    assert simulator.kinds()[2:7] == ["Save", "SaveStarted", "RunTool", "AwaitTool", "Save"]
    (run,) = simulator.of(RunTool)
    assert (run.name, run.arguments, run.policy, run.call.attempts) == (tool.name, {"n": 1}, tool.policy, 1)


@pytest.mark.parametrize("tool", [SEARCH, REFUND], ids=lambda tool: tool.policy)
def test_a_call_that_may_run_again_is_not_marked(tool: Any) -> None:
    simulator = simulate(asks(call(tool.name)))
    assert simulator.go() is None
    assert simulator.kinds()[2:6] == ["Save", "RunTool", "AwaitTool", "Save"]
    assert not simulator.of(SaveStarted)


def test_parallel_calls_share_one_mark_saved_before_any_of_them_runs() -> None:
    names = ["search", "mail", "refund", "deploy", "mail"]
    simulator = simulate(asks(*(call(name, id=str(index)) for index, name in enumerate(names))))
    assert simulator.go() is None
    assert simulator.kinds()[2:10] == ["Save", "SaveStarted", *["RunTool"] * 5, "AwaitTool"]
    (started,) = simulator.of(SaveStarted)
    assert [one.index for one in started.calls] == [1, 3, 4]
    assert [run.name for run in simulator.of(RunTool)] == names


def test_the_mark_is_not_saved_again_while_results_land() -> None:
    simulator = simulate(asks(call("mail", id="a"), call("mail", id="b")))
    simulator.go()
    assert len(simulator.of(SaveStarted)) == 1
    assert simulator.kinds()[4:10] == ["RunTool", "RunTool", "AwaitTool", "Save", "AwaitTool", "Save"]


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.ERROR, Outcome.UNKNOWN])
@pytest.mark.parametrize("content", ["text", "", None, 0, False, [1, {"a": []}], {"b": None}], ids=repr)
def test_what_a_tool_gives_is_stored_as_it_is_and_sent_as_text(content: Any, outcome: Outcome) -> None:
    simulator = simulate(asks(call("mail")))
    simulator.outcome = lambda run: Landed(run.call, content, outcome)
    assert simulator.go() is None
    save = simulator.of(Save)[1]
    assert save.tool_results == [{"tool_call_id": "call_1", "name": "mail", "outcome": outcome.value, "attempt": 1}]
    assert contents(simulator.branch) == [content]
    assert simulator.branch.messages[2]["metadata"] == {
        "timestamp": TIME, "tool_name": "mail", "tool_call_id": "call_1", "index": 0, "outcome": outcome.value,
    }  # fmt: skip
    sent = asked_after(simulator)[-1]["content"]
    assert sent == content if isinstance(content, str) else json.loads(sent) == content


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_results_are_saved_as_they_land_and_sent_in_the_order_of_the_calls(order: tuple[int, ...]) -> None:
    simulator = simulate(asks(*(call("search", id=name) for name in "abc")))
    simulator.lands = lambda running: min(range(len(running)), key=lambda i: order.index(running[i].call.index))
    assert simulator.go() is None
    saved = [save.answers[0].index for save in simulator.of(Save)[1:-1]]
    assert saved == list(order)
    assert [message["metadata"]["index"] for message in simulator.branch.messages if message["role"] == "tool"] == saved
    results = asked_after(simulator)[2:]
    assert [result["tool_call_id"] for result in results] == ["a", "b", "c"]
    assert [result["content"] for result in results] == [f"search of (0, 1, {index})" for index in range(3)]


def test_a_transaction_that_could_not_commit_is_waited_for_again() -> None:
    simulator = simulate(asks(call("refund"), call("search", id="b")))
    simulator.rollbacks = 2
    assert simulator.go() is None
    assert simulator.kinds()[3:11] == [
        "RunTool", "RunTool", "AwaitTool", "Save", "AwaitTool", "Save", "AwaitTool", "Save",
    ]  # fmt: skip
    assert outcomes(simulator.branch) == ["ok", "ok"]


# -- calls that were started, and whose process died


def crashed(tool: Any, *others: Any) -> Simulator:
    """A process has started these tools and died; the next one has gone on."""
    tools = [tool, *others]
    simulator = simulate(asks(*(call(one.name, id=str(index)) for index, one in enumerate(tools))))
    simulator.dies(Crash(RunTool, nth=len(tools)))
    simulator.effects.clear()
    return simulator


@pytest.mark.parametrize("tool", [SEARCH, REFUND], ids=lambda tool: tool.policy)
def test_rerun_and_transactional_run_again(tool: Any) -> None:
    simulator = crashed(tool)
    assert simulator.go() is None
    assert simulator.kinds()[:3] == ["RunTool", "AwaitTool", "Save"]
    assert outcomes(simulator.branch) == ["ok"]
    assert simulator.runs == {(0, (0, 1, 0)): 2}


def test_report_is_not_run_again_and_the_model_is_told_that_the_outcome_is_unknown() -> None:
    simulator = crashed(MAIL)
    assert simulator.go() is None
    assert simulator.kinds() == ["Save", "AskModel", "Save", "TakeRequest"]
    assert simulator.of(Save)[0].tool_results == [
        {"tool_call_id": "0", "name": "mail", "outcome": "unknown", "attempt": 1}
    ]
    assert asked_after(simulator)[-1] == {"role": "tool", "tool_call_id": "0", "content": UNKNOWN_OUTCOME}
    assert simulator.runs == {(0, (0, 1, 0)): 1}


def test_report_is_not_run_even_if_the_process_died_between_the_mark_and_the_start() -> None:
    simulator = simulate(asks(call("mail")))
    simulator.dies(Crash(SaveStarted))
    assert simulator.go() is None
    assert outcomes(simulator.branch) == ["unknown"]
    assert not simulator.runs


def test_nothing_is_lost_if_the_process_died_before_the_mark() -> None:
    simulator = simulate(asks(call("mail")))
    simulator.dies(Crash(SaveStarted, after=False))
    assert simulator.go() is None
    assert outcomes(simulator.branch) == ["ok"]


def test_ask_waits_for_a_person_after_the_others_have_run() -> None:
    simulator = crashed(DEPLOY, SEARCH, MAIL, REFUND)
    stopped = simulator.go()
    assert isinstance(stopped, WaitForPerson)
    assert [one.index for one in stopped.calls] == [0]
    assert simulator.kinds() == [
        "Save", "RunTool", "RunTool", "AwaitTool", "Save", "AwaitTool", "Save", "Save", "WaitForPerson",
    ]  # fmt: skip
    assert [run.name for run in simulator.of(RunTool)] == ["search", "refund"]
    assert simulator.branch.turn_open
    assert simulator.branch.state["flags"]["requires_human_input"] is True
    assert isinstance(simulator.go(), WaitForPerson)  # whoever looks, until somebody has decided
    assert simulator.kinds()[-2:] == ["WaitForPerson", "WaitForPerson"]
    simulator.decide(stopped.calls)
    assert simulator.go() is None
    assert [result["content"] for result in asked_after(simulator)[2:]] == [
        DECIDED, "search of (0, 1, 1)", UNKNOWN_OUTCOME, "refund of (0, 1, 3)",
    ]  # fmt: skip
    assert simulator.runs[0, (0, 1, 0)] == 1
    assert simulator.branch.state["flags"]["requires_human_input"] is False


def test_calls_with_a_result_are_not_looked_at_after_a_crash() -> None:
    simulator = simulate(asks(call("mail", id="a"), call("mail", id="b"), call("search", id="c")))
    simulator.dies(Crash(Save, nth=2))
    simulator.effects.clear()
    assert simulator.go() is None
    assert [save.answers[0].index for save in simulator.of(Save)[:2]] == [1, 2]
    assert [result["content"] for result in asked_after(simulator)[2:]] == [
        "mail of (0, 1, 0)", UNKNOWN_OUTCOME, "search of (0, 1, 2)",
    ]  # fmt: skip


@pytest.mark.parametrize(("stored", "current"), list(product(Policy, Policy)), ids=str)
def test_the_stricter_of_stored_and_current_policy_wins(stored: Policy, current: Policy) -> None:
    simulator = resumed(pending(element("act", stored), attempts=1), agent=make_agent(make_tool("act", current)))
    stopped = simulator.go()
    stricter = max(stored, current, key=STRICTNESS.index)
    if stricter is Policy.ASK:
        assert isinstance(stopped, WaitForPerson)
        assert simulator.kinds() == ["Save", "WaitForPerson"]
        return
    assert stopped is None
    assert outcomes(simulator.branch) == ["unknown" if stricter is Policy.REPORT else "ok"]
    assert [run.policy for run in simulator.of(RunTool)] == ([] if stricter is Policy.REPORT else [stricter])


@pytest.mark.parametrize(
    ("stored", "current"), [pair for pair in product(Policy, Policy) if pair[0] is not Policy.RERUN], ids=str
)
def test_a_call_that_was_never_started_runs_under_the_stricter_policy(stored: Policy, current: Policy) -> None:
    simulator = resumed(pending(element("act", stored)), agent=make_agent(make_tool("act", current)))
    assert simulator.go() is None
    stricter = max(stored, current, key=STRICTNESS.index)
    assert [run.policy for run in simulator.of(RunTool)] == [stricter]
    assert len(simulator.of(SaveStarted)) == (stricter in (Policy.REPORT, Policy.ASK))


@pytest.mark.parametrize("current", [Policy.REPORT, Policy.ASK])
def test_a_call_issued_as_rerun_may_have_run_unmarked_before_its_tool_became_stricter(current: Policy) -> None:
    # The process before this one saved no mark, and can have died with the tool under way.
    simulator = resumed(pending(element("act", Policy.RERUN)), agent=make_agent(make_tool("act", current)))
    stopped = simulator.go()
    assert not simulator.of(RunTool)
    if current is Policy.ASK:
        assert isinstance(stopped, WaitForPerson)
    else:
        assert outcomes(simulator.branch) == ["unknown"]


@pytest.mark.parametrize("policy", ["compensate", "", 1, [], {}, True], ids=repr)
@pytest.mark.parametrize("attempts", [0, 1])
def test_a_policy_that_this_code_does_not_know_is_no_licence_to_run(policy: Any, attempts: int) -> None:
    calls = pending({**element("mail", None), "policy": policy}, attempts=attempts)
    simulator = resumed(calls)
    assert simulator.go() in (None, HandBack(("mail",)), WaitForPerson(calls))
    assert not simulator.of(RunTool)


# -- forks


def forked(*tools: Any, at: Crash) -> Simulator:
    """A branch forked off from where a process stands at an effect; the process does not go on."""
    simulator = simulate(asks(*(call(one.name, id=str(index)) for index, one in enumerate(tools))))
    simulator.dies(at)
    simulator.branch = simulator.branch.fork(1)
    simulator.effects.clear()
    return simulator


ISSUED = Crash(Save)
RUNNING = Crash(AwaitTool, after=False)


@pytest.mark.parametrize("at", [ISSUED, RUNNING], ids=["issued", "running"])
@pytest.mark.parametrize("tool", [REFUND, MAIL], ids=lambda tool: tool.policy)
def test_on_a_fork_nobody_knows_what_became_of_a_call(tool: Any, at: Crash) -> None:
    simulator = forked(tool, at=at)
    assert simulator.go() is None
    assert not simulator.of(RunTool)
    assert outcomes(simulator.branch) == ["unknown"]


@pytest.mark.parametrize("at", [ISSUED, RUNNING], ids=["issued", "running"])
def test_on_a_fork_an_idempotent_call_runs_as_the_call_of_the_branch_that_issued_it(at: Crash) -> None:
    simulator = forked(SEARCH, at=at)
    assert simulator.go() is None
    (run,) = simulator.of(RunTool)
    assert run.call.branch == 0
    assert outcomes(simulator.branch) == ["ok"]


@pytest.mark.parametrize("at", [ISSUED, RUNNING], ids=["issued", "running"])
def test_on_a_fork_a_person_is_asked_whether_or_not_the_call_was_started(at: Crash) -> None:
    simulator = forked(DEPLOY, SEARCH, at=at)
    stopped = simulator.go()
    assert isinstance(stopped, WaitForPerson)
    assert [run.name for run in simulator.of(RunTool)] == ["search"]
    simulator.decide(stopped.calls)
    assert simulator.go() is None


def test_a_fork_from_before_the_call_issues_one_of_its_own() -> None:
    simulator = forked(MAIL, at=Crash(AskModel))
    assert simulator.go() is None
    assert [run.call.branch for run in simulator.of(RunTool)] == [1]
    assert outcomes(simulator.branch) == ["ok"]


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
