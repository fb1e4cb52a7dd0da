"""What the turn loop does about calls: never started, started by a process that died, found on a fork. No I/O."""

from __future__ import annotations

import json
from itertools import permutations, product
from typing import Any

import pytest

from tests.unit.loop_branches import asked_after, contents, crashed, element, outcomes, pending, resumed
from tests.unit.loop_simulator import (
    DECIDED,
    DEPLOY,
    MAIL,
    REFUND,
    SEARCH,
    TIME,
    Crash,
    Simulator,
    asks,
    call,
    make_agent,
    make_tool,
    simulate,
)
from turnkeep.runner.effects import (
    AskModel,
    AwaitTool,
    HandBack,
    Landed,
    Outcome,
    Policy,
    RunTool,
    Save,
    SaveStarted,
    WaitForPerson,
)
from turnkeep.runner.transcript import UNKNOWN_OUTCOME

STRICTNESS = [Policy.RERUN, Policy.TRANSACTIONAL, Policy.REPORT, Policy.ASK]


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
