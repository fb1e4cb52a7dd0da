"""Kinds of failure that people have met in agents' loops, and what comes of them here (G6, G7)."""

from __future__ import annotations

import pytest

from tests.unit.loop_branches import asked_after, contents, crashed, outcomes
from tests.unit.loop_simulator import (
    MAIL,
    Crash,
    asks,
    call,
    says,
    simulate,
    wire,
)
from turnkeep.runner.effects import (
    AskModel,
    AwaitTool,
    Landed,
    Outcome,
    Save,
)
from turnkeep.runner.transcript import UNKNOWN_OUTCOME

# -- kinds of failure that people have met: reused ids


def test_tool_id_reuse_of_one_id_in_four_rounds_keeps_all_four_results() -> None:
    simulator = simulate(*[asks(call("mail", f'{{"n": {n}}}', id="X")) for n in range(4)])
    simulator.outcome = lambda run: Landed(run.call, f"r{run.arguments['n']}", Outcome.OK)
    assert simulator.go() is None
    assert contents(simulator.branch) == ["r0", "r1", "r2", "r3"]
    sent = [message["content"] for message in asked_after(simulator) if message["role"] == "tool"]
    assert sent == ["r0", "r1", "r2", "r3"]
    assert set(simulator.branch.results.values()) == {1}
    assert len(simulator.branch.results) == 4


@pytest.mark.parametrize("lands", [0, -1], ids=["in order", "in reverse"])
@pytest.mark.parametrize("crash", range(12))
def test_tool_id_reuse_twice_in_one_message_gives_each_call_its_own_result(lands: int, crash: int) -> None:
    simulator = simulate(asks(*(call("search", f'{{"n": {n}}}', id="X") for n in range(3))))
    simulator.lands = lambda running: lands
    simulator.outcome = lambda run: Landed(run.call, f"r{run.arguments['n']}", Outcome.OK)
    simulator.dies(Crash(nth=crash + 1))
    assert simulator.go() is None
    results = wire(simulator.branch)[2:5]
    assert [result["content"] for result in results] == ["r0", "r1", "r2"]
    assert len({result["tool_call_id"] for result in results}) == 3


@pytest.mark.parametrize(
    "ids", [["a_2", "a", "a"], ["a", "a", "a_1"], ["", "", "call_0"], ["a_1", "a", "a_1", "a"]], ids=str
)
def test_tool_id_reuse_never_makes_up_an_id_that_is_taken(ids: list[str]) -> None:
    simulator = simulate(asks(*(call("search", id=id) for id in ids)))
    simulator.lands = lambda running: -1
    assert simulator.go() is None
    assert [result["content"] for result in asked_after(simulator)[2:]] == [
        f"search of (0, 1, {index})" for index in range(len(ids))
    ]


# -- parallel tools of which some are done


@pytest.mark.parametrize("lost", ["search", "mail", "refund", "deploy"])
def test_parallel_tools_partial_keeps_what_is_done_and_looks_only_at_the_rest(lost: str) -> None:
    simulator = simulate(asks(call("mail", id="send"), call("refund", id="update"), call(lost, id="last")))
    simulator.dies(Crash(AwaitTool, nth=3))
    assert len(simulator.branch.pending) == 1
    before = list(simulator.branch.messages)
    simulator.effects.clear()
    simulator.finish()
    assert simulator.branch.messages[: len(before)] == before
    assert simulator.runs[0, (0, 1, 0)] == simulator.runs[0, (0, 1, 1)] == 1
    assert simulator.runs[0, (0, 1, 2)] == (2 if lost in ("search", "refund") else 1)


def test_parallel_tools_partial_is_one_message_with_its_results_after_it_in_call_order() -> None:
    simulator = simulate(asks(call("search", id="a"), call("mail", id="b")))
    simulator.lands = lambda running: -1
    assert simulator.go() is None
    assert [message["metadata"]["tool_call_id"] for message in simulator.branch.messages[2:4]] == ["b", "a"]
    _, assistant, *results = asked_after(simulator)
    assert [one["id"] for one in assistant["tool_calls"]] == ["a", "b"]
    assert [result["tool_call_id"] for result in results] == ["a", "b"]


def test_parallel_tools_partial_keeps_the_siblings_of_a_tool_that_raised() -> None:
    simulator = simulate(asks(*(call("mail", id=name) for name in "abc")))
    simulator.lands = lambda running: -1
    simulator.outcome = lambda run: (
        Landed(run.call, "ValueError", Outcome.ERROR) if run.call.index == 1 else Landed(run.call, "fine", Outcome.OK)
    )
    simulator.dies(Crash(Save, nth=3))
    assert contents(simulator.branch) == ["fine", "ValueError"]  # each durable as soon as it landed
    assert simulator.go() is None
    assert [result["content"] for result in asked_after(simulator)[2:]] == [UNKNOWN_OUTCOME, "ValueError", "fine"]


# -- calls without result, and results too many


@pytest.mark.parametrize("crash", range(1, 11))
def test_dangling_tool_call_gets_its_result_right_behind_it_wherever_the_process_died(crash: int) -> None:
    simulator = simulate(asks(call("mail", id="call_a")), says("sent"), says("going on"), requests=2)
    simulator.dies(Crash(nth=crash))
    assert simulator.go() is None
    messages = wire(simulator.branch)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert simulator.branch.results == {(0, 1, 0): 1}  # and persisted once


def test_dangling_tool_call_says_of_each_call_of_a_batch_what_is_known() -> None:
    simulator = simulate(asks(call("mail", id="1"), call("mail", id="2"), call("search", id="3")))
    simulator.dies(Crash(AwaitTool, nth=2, after=False))  # the first has landed
    assert simulator.go() is None
    assert [result["content"] for result in asked_after(simulator)[2:]] == [
        "mail of (0, 1, 0)", UNKNOWN_OUTCOME, "search of (0, 1, 2)",
    ]  # fmt: skip


def test_dangling_tool_call_stays_visible_as_uncertain_in_message_and_result() -> None:
    simulator = crashed(MAIL)
    simulator.go()
    assert simulator.of(Save)[0].tool_results[0]["outcome"] == "unknown"
    assert outcomes(simulator.branch) == ["unknown"]


def test_dangling_tool_call_is_never_in_a_checkpoint_that_ends_a_turn() -> None:
    simulator = simulate(asks(call("search", id="a"), call("mail", id="b")), says("1"), asks(call("mail")), requests=2)
    simulator.go()
    assert all(not branch.pending for branch in simulator.checkpoints if not branch.turn_open)
    assert any(branch.pending for branch in simulator.checkpoints)


def test_duplicate_tool_result_is_not_made_by_resuming_again_and_again() -> None:
    simulator = crashed(MAIL)
    for _ in range(3):
        simulator.dies(Crash(AskModel))
    assert simulator.go() is None
    assert simulator.branch.results == {(0, 1, 0): 1}
    assert len(contents(simulator.branch)) == 1
