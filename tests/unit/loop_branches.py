"""Branches as a process of the turn loop finds them, and what they and the model have been told."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from tests.unit.loop_simulator import Branch, Crash, Simulator, asks, call, make_agent, scripted, simulate
from turnkeep import jsontext
from turnkeep.model import PendingCall
from turnkeep.runner.effects import AskModel, Json, Policy, RunTool


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


def crashed(tool: Any, *others: Any) -> Simulator:
    """A process has started these tools and died; the next one has gone on."""
    tools = [tool, *others]
    simulator = simulate(asks(*(call(one.name, id=str(index)) for index, one in enumerate(tools))))
    simulator.dies(Crash(RunTool, nth=len(tools)))
    simulator.effects.clear()
    return simulator
