"""The turn loop under any replies of a model, any order of results, and processes that die at any effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.unit.loop_simulator import (
    DECIDED,
    TOOLS,
    Branch,
    Crash,
    Crashed,
    Simulator,
    asks,
    call,
    in_call_order,
    make_agent,
    says,
    scripted,
    wire,
)
from turnkeep.runner.effects import Json, Landed, ModelReply, Outcome, Policy, RunTool, Save, SaveStarted, WaitForPerson
from turnkeep.runner.transcript import UNKNOWN_OUTCOME

MARKED = {tool.name for tool in TOOLS if tool.policy in (Policy.REPORT, Policy.ASK)}
AGENT = make_agent()
quick = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))

calls = st.builds(
    call,
    name=st.sampled_from([*(tool.name for tool in TOOLS), "invented"]),
    arguments=st.sampled_from(['{"n": 1}'] * 6 + ['{"n": 2}', "", "{", "[]", '{"n": "x"}']),
    id=st.sampled_from(["X", "X_1", "X_2", "call_0", "call_1", ""]),
)
replies = st.one_of(
    *[st.lists(calls, min_size=1, max_size=4).map(lambda several: asks(*several))] * 5,
    st.lists(calls, min_size=1, max_size=2).map(lambda several: asks(*several, finish_reason="length")),
    st.sampled_from([says("text"), says(None), says(None, refusal="no"), says("cut", finish_reason="length")]),
)
crashes = st.builds(
    Crash,
    kind=st.sampled_from([object, object, object, Save, RunTool, SaveStarted]),
    nth=st.integers(1, 12),
    after=st.booleans(),
)


@dataclass(frozen=True)
class Story:
    """What a model says, in which order tools land, which of them fail, and how often a transaction can't commit."""

    replies: Sequence[ModelReply]
    requests: int
    order: Sequence[int]
    failing: int
    rollbacks: int

    def simulator(self) -> Simulator:
        branch = Branch(waiting=[f"request {number}" for number in range(self.requests)])
        simulator = Simulator(AGENT, scripted(*self.replies), branch, lands=self._lands, rollbacks=self.rollbacks)
        simulator.outcome = lambda run: self._outcome(run, simulator.branch)
        return simulator

    def _lands(self, running: Sequence[RunTool]) -> int:
        return min(range(len(running)), key=lambda i: self.order[running[i].call.index % len(self.order)])

    def _outcome(self, run: RunTool, branch: Branch) -> Landed:
        outcome = Outcome.ERROR if run.call.index == self.failing else Outcome.OK
        replies = len(of(branch, "assistant"))
        return Landed(
            run.call, {"tool": run.name, "replies": replies, "index": run.call.index, **run.arguments}, outcome
        )


stories = st.builds(
    Story,
    replies=st.lists(replies, min_size=1, max_size=5),
    requests=st.integers(1, 2),
    order=st.permutations(range(4)),
    failing=st.integers(0, 8),
    rollbacks=st.integers(0, 1),
)


def crash(simulator: Simulator, at: Crash) -> bool:
    """Go on until the process dies, if it comes to that. A person who is asked meanwhile decides at once."""
    try:
        stopped = simulator.go(at)
    except Crashed:
        return True
    if isinstance(stopped, WaitForPerson):
        simulator.decide(stopped.calls)
    return False


def check(simulator: Simulator, branch: Branch) -> None:
    """What must hold of a branch that has come to its end. The simulator has checked each effect on the way."""
    assert not branch.turn_open
    assert not branch.waiting
    assert not branch.pending
    wire(branch)
    issued = [one for message in of(branch, "assistant") for one in message["metadata"].get("tool_calls", ())]
    assert len(branch.results) == len(of(branch, "tool")) == len(issued)
    assert set(branch.results.values()) <= {1}
    for run in (effect for effect in simulator.effects if isinstance(effect, RunTool)):
        if run.name in MARKED:
            assert simulator.runs[run.call.branch, run.call.place] == 1, f"{run.call} was run twice"
    for save in (effect for effect in simulator.effects if isinstance(effect, Save)):
        for answer, result in zip(save.answers, save.tool_results, strict=True):
            assert result["outcome"] != Outcome.UNKNOWN or answer.attempts or answer.uncertain


def compare(crashed: Simulator, smooth: Simulator) -> None:
    """Assert that a run came to what it comes to when nothing dies, but for the calls whose outcome nobody knows."""
    expected, found = (in_call_order(simulator.branch.messages) for simulator in (smooth, crashed))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        doubtful = one["role"] == "tool" and one["content"] in (UNKNOWN_OUTCOME, DECIDED)
        if doubtful:
            assert one["metadata"]["tool_name"] in MARKED
            one, other = (
                {**message, "content": None, "metadata": {**message["metadata"], "outcome": None}}
                for message in (one, other)
            )
        assert one == other
    assert crashed.branch.state == smooth.branch.state


def of(branch: Branch, role: str) -> list[Json]:
    return [message for message in branch.messages if message["role"] == role]


@quick
@given(stories)
def test_any_replies_come_to_an_end_with_one_result_for_each_call(story: Story) -> None:
    simulator = story.simulator()
    simulator.finish()
    check(simulator, simulator.branch)
    assert "unknown" not in [message["metadata"]["outcome"] for message in of(simulator.branch, "tool")]
    assert set(simulator.runs.values()) <= {1}


LONG = Story(
    [
        asks(*(call(tool.name, id="X") for tool in TOOLS)),
        asks(call("mail", "{"), call("invented"), call("refund")),
        asks(call("search"), call("mail"), finish_reason="length"),
        says("first"),
        asks(call("deploy"), call("deploy")),
        asks(call("mail"), call("search")),
    ],
    requests=2,
    order=[2, 0, 3, 1],
    failing=1,
    rollbacks=1,
)


def test_a_process_may_die_before_and_after_any_effect_of_a_long_conversation() -> None:
    smooth = LONG.simulator()
    smooth.finish()
    assert len(smooth.effects) > 50
    for nth in range(1, len(smooth.effects) + 1):
        for after in (False, True):
            simulator = LONG.simulator()
            assert crash(simulator, Crash(nth=nth, after=after))
            simulator.finish()
            check(simulator, simulator.branch)
            compare(simulator, smooth)


@quick
@given(stories, st.lists(crashes, min_size=1, max_size=5))
def test_whatever_dies_the_transcript_is_that_of_the_run_that_never_crashed(
    story: Story, deaths: Sequence[Crash]
) -> None:
    smooth, crashed = story.simulator(), story.simulator()
    smooth.finish()
    died = [crash(crashed, at) for at in deaths]
    crashed.finish()
    check(crashed, crashed.branch)
    event(f"died {sum(died)} times")
    compare(crashed, smooth)


@quick
@given(stories, st.lists(st.tuples(crashes, st.none() | st.integers(0, 100)), min_size=1, max_size=4), st.booleans())
def test_forks_in_the_middle_run_nothing_twice_that_must_not_be(
    story: Story, deaths: Sequence[tuple[Crash, int | None]], forked_go_on_first: bool
) -> None:
    simulator = story.simulator()
    branches = [simulator.branch]
    for at, place in deaths:
        crash(simulator, at)
        if place is not None and simulator.checkpoints:
            # From any checkpoint, of this branch or of another one; the one forked from goes on later.
            origin = simulator.checkpoints[place % len(simulator.checkpoints)]
            simulator.branch = origin.fork(len(branches))
            branches.append(simulator.branch)
    event(f"{len(branches)} branches")
    for branch in reversed(branches) if forked_go_on_first else branches:
        simulator.branch = branch
        simulator.finish()
        check(simulator, branch)


@quick
@given(stories, st.integers(1, 4), st.lists(crashes, max_size=3))
def test_no_turn_has_more_inferences_than_max_steps(story: Story, max_steps: int, deaths: Sequence[Crash]) -> None:
    simulator = story.simulator()
    simulator.agent = make_agent(max_steps=max_steps)
    for at in deaths:
        crash(simulator, at)
    for _ in range(10):
        simulator.go()
    inferences = 0
    for message in simulator.branch.messages:
        inferences = {"user": 0, "assistant": inferences + 1, "tool": inferences}[message["role"]]
        assert inferences <= max_steps
