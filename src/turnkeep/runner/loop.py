"""The turn loop: from what a branch shows to what is done next, as a generator of effects. No I/O, no clock.

One table decides, `decide` for a call and `_step` for a turn; a restart is not a special case, because every decision
is taken from the head alone::

    take a request → save → model → save reply and calls → [save started] → tools → save each result → … → save final
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnkeep.model import PendingCall
from turnkeep.runner.agent import Agent
from turnkeep.runner.effects import (
    AskModel,
    AwaitTool,
    Effect,
    FailTurn,
    HandBack,
    Head,
    Json,
    Landed,
    ModelRefused,
    ModelReply,
    Outcome,
    Policy,
    RunTool,
    Save,
    SaveStarted,
    TakeRequest,
    WaitForPerson,
)
from turnkeep.runner.tools import InvalidArgumentsError, Tool
from turnkeep.runner.transcript import (
    UNKNOWN_OUTCOME,
    assistant_message,
    call_element,
    called_arguments,
    called_name,
    invalid_replies,
    request_messages,
    result_element,
    tool_message,
)

Now = Callable[[], str]
"""Tells the time, as an ISO 8601 text in UTC."""

Steps = Generator[Effect, Any, Head | None]

_INVALID_REPLIES = 3
_STRICTNESS: list[str] = [Policy.RERUN, Policy.TRANSACTIONAL, Policy.REPORT, Policy.ASK]
_MARKED = {Policy.REPORT, Policy.ASK}


def turns(agent: Agent, head: Head, now: Now) -> Generator[Effect, Any, None]:
    """Go on with a branch until no request waits, or its turn has stopped."""
    while True:
        if not head.turn_open:
            if not head.waiting:
                return
            taken: Head | None = yield TakeRequest(_state(agent, head, step_count=0))
            if taken is None:
                return
            head = taken
        while head.turn_open:
            after = yield from _step(agent, head, now)
            if after is None:
                return
            head = after


def _step(agent: Agent, head: Head, now: Now) -> Steps:
    """The turn's next step; None when it has stopped."""
    if head.pending:
        return (yield from _settle(agent, head, now))
    steps = _steps_taken(head)
    if steps >= agent.max_steps:
        yield FailTurn(
            {
                "type": "max_steps",
                "message": f"{steps} inferences in one turn, and max_steps is {agent.max_steps}: raise it, and resume",
            }
        )
        return None
    offered = [tool.definition() for tool in agent.tools]
    reply: ModelReply | ModelRefused = yield AskModel(request_messages(agent.instructions, head.messages), offered)
    if isinstance(reply, ModelRefused):
        yield FailTurn({"type": "model_refused", "message": reply.message, "status": reply.status})
        return None
    after: Head = yield _reply_saved(agent, head, reply, steps + 1, now)
    return after


def _reply_saved(agent: Agent, head: Head, reply: ModelReply, steps: int, now: Now) -> Save:
    elements = []
    for call in reply.calls:
        tool = agent.tool(call.name)
        element = call_element(call.id, call.name, call.arguments, None if tool is None else tool.policy)
        elements.append({**element, "truncated": True} if reply.finish_reason == "length" else element)
    return Save(
        messages=[assistant_message(reply, now())],
        tool_calls=elements,
        state=_state(agent, head, step_count=steps, calls=elements, final=not elements),
        final=not elements,
    )


# -- calls


@dataclass(frozen=True)
class Run:
    """Run the call."""

    tool: Tool
    arguments: Mapping[str, Any]
    policy: Policy


@dataclass(frozen=True)
class Settle:
    """Give the call a result without running it."""

    content: str
    outcome: Outcome


@dataclass(frozen=True)
class Ask:
    """Leave the call to a person."""


@dataclass(frozen=True)
class Missing:
    """Leave the call to a worker that has its tool."""

    tool: str


Decision = Run | Settle | Ask | Missing


def decide(agent: Agent, call: PendingCall) -> Decision:
    """What to do about a call without result."""
    element = call.call if isinstance(call.call, dict) else {}
    name = called_name(element)
    tool = None if name is None else agent.tool(name)
    foreign = "policy" not in element  # issued by somebody else's loop, that marks nothing as started
    stored = element.get("policy")
    if element.get("truncated"):
        return Settle("This call was not run: the reply was cut off at its length limit.", Outcome.INVALID)
    if stored is not None and (tool is None or stored not in _STRICTNESS):
        return Missing(str(name))
    if tool is None:
        names = ", ".join(one.name for one in agent.tools) or "none"
        unknown = Settle(UNKNOWN_OUTCOME, Outcome.UNKNOWN)
        return unknown if foreign else Settle(f"There is no tool {name!r}. Tools: {names}.", Outcome.ERROR)
    policy = max(Policy(stored or tool.policy), tool.policy, key=_STRICTNESS.index)
    # Calls that may be run again are not marked as started: where the tool has become stricter since, nobody knows.
    elsewhere = call.uncertain or foreign
    if elsewhere or call.attempts or (stored == Policy.RERUN and policy in _MARKED):
        if policy is Policy.ASK:
            return Ask()
        # On another branch a transaction of this call may have committed.
        if policy is Policy.REPORT or (policy is Policy.TRANSACTIONAL and elsewhere):
            return Settle(UNKNOWN_OUTCOME, Outcome.UNKNOWN)
    arguments = called_arguments(element)
    try:
        return Run(tool, tool.validated(arguments), policy)
    except InvalidArgumentsError as error:
        what = "can't be run again" if elsewhere else "was not run"
        return Settle(f"This call {what}: {error}. Its arguments were: {arguments}", Outcome.INVALID)


def _settle(agent: Agent, head: Head, now: Now) -> Steps:
    """See to it that every call gets its result."""
    decisions = [(call, decide(agent, call)) for call in head.pending]
    missing = tuple(decision.tool for _, decision in decisions if isinstance(decision, Missing))
    if missing:
        yield HandBack(missing)
        return None
    settled = [
        Landed(call, decision.content, decision.outcome) for call, decision in decisions if isinstance(decision, Settle)
    ]
    if settled:
        after: Head = yield _results_saved(agent, head, settled, now)
        head = after
        if any(one.outcome is Outcome.INVALID for one in settled) and (
            invalid_replies(head.messages) % _INVALID_REPLIES == 0
        ):
            yield FailTurn(
                {
                    "type": "invalid_arguments",
                    "message": f"{_INVALID_REPLIES} replies in a row held calls that could not be run: "
                    f"{settled[-1].content}",
                }
            )
            return None
    runs = {call.place: decision for call, decision in decisions if isinstance(decision, Run)}
    head = yield from _run(agent, head, runs, now)
    if head.pending:  # a person's
        calls = [call.call for call in head.pending]
        waits = _state(agent, head, step_count=_steps_taken(head), calls=calls, waits=True)
        if head.state != waits:
            head = yield Save(state=waits)
        yield WaitForPerson(head.pending)
        return None
    return head


def _run(agent: Agent, head: Head, runs: Mapping[tuple[int, int, int], Run], now: Now) -> Generator[Effect, Any, Head]:
    """Run calls side by side, each result durable before the next one is waited for (G6)."""
    unmarked = tuple(
        call for call in head.pending if call.place in runs and runs[call.place].policy in _MARKED and not call.attempts
    )
    if unmarked:
        head = yield SaveStarted(unmarked)
    for call in head.pending:
        if (run := runs.get(call.place)) is not None:
            yield RunTool(call, run.tool.name, run.arguments, run.policy)
    # A transaction that could not commit leaves its call pending: it lands again.
    while any(call.place in runs for call in head.pending):
        landed: Landed = yield AwaitTool()
        head = yield _results_saved(agent, head, [landed], now)
    return head


def _results_saved(agent: Agent, head: Head, landed: Sequence[Landed], now: Now) -> Save:
    places = [one.call.place for one in landed]
    left = [call.call for call in head.pending if call.place not in places]
    return Save(
        messages=[tool_message(one.call, one.content, one.outcome, now()) for one in landed],
        tool_results=[result_element(one.call, one.outcome) for one in landed],
        answers=tuple(one.call for one in landed),
        state=_state(agent, head, step_count=_steps_taken(head), calls=left),
    )


# -- state


def _steps_taken(head: Head) -> int:
    """The inferences of the open turn; what the state says after an earlier turn's end is not of this one."""
    state = head.state if isinstance(head.state, dict) else {}
    flags = state.get("flags")
    count = state.get("step_count")
    over = isinstance(flags, dict) and flags.get("is_final") is True
    return count if isinstance(count, int) and not over else 0


def _state(
    agent: Agent, head: Head, *, step_count: int, calls: Sequence[Any] = (), final: bool = False, waits: bool = False
) -> Json:
    """The state to save: what others keep in it stays."""
    before = head.state if isinstance(head.state, dict) else {}
    flags = before.get("flags")
    variables = before.get("variables")
    return {
        **before,
        "step_count": step_count,
        "max_steps": agent.max_steps,
        "current_tool": called_name(calls[0]) if calls else None,
        "variables": variables if isinstance(variables, dict) else {},
        "flags": {**(flags if isinstance(flags, dict) else {}), "is_final": final, "requires_human_input": waits},
    }
