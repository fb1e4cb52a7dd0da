"""The tools of the conversations: real functions that take their time, leave marks, and give what was recorded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnkeep.demo.calls import policy_of, recorded_calls
from turnkeep.demo.outside import Mark, OutsideFile
from turnkeep.demo.pace import pace_of
from turnkeep.demo.script import Script
from turnkeep.demo.statements import LEAVE_EFFECT
from turnkeep.runner import Agent, Tool, ToolContext, tool
from turnkeep.runner.effects import Policy


class ToolError(Exception):
    """What a tool raised when the conversation was recorded."""


class World:
    """Where the tools of one run do their work.

    `run` names it in the table of effects, `outside` is the file for what is done outside the database. Unless `paced`,
    nothing takes time.
    """

    def __init__(self, scripts: Sequence[Script], run: str, outside: Path, *, paced: bool) -> None:
        self._calls = recorded_calls(scripts)
        self._run = run
        self._outside = OutsideFile(outside)
        self._seconds = {script.external_id: pace_of(script).tool if paced else 0.0 for script in scripts}

    async def perform(self, call: ToolContext) -> Any:
        """Do what a call asks for. Raises `ToolError` where it had failed."""
        recorded = self._calls[call.external_id, call.turn_index, str(call.call_id)]
        if recorded.policy is Policy.TRANSACTIONAL:
            place = (call.external_id, call.turn_index, call.call_id)
            await call.connection.execute(LEAVE_EFFECT, (self._run, *place, call.tool, call.idempotency_key))
        self._mark(call, ended=False)
        await asyncio.sleep(self._seconds[call.external_id] * random.uniform(0.7, 1.3))
        self._mark(call, ended=True)
        if recorded.is_error:
            raise ToolError(recorded.content)
        return recorded.content

    def _mark(self, call: ToolContext, *, ended: bool) -> None:
        self._outside.leave(
            Mark(
                conversation=call.external_id,
                turn=call.turn_index,
                call_id=str(call.call_id),
                tool=call.tool,
                key=call.idempotency_key,
                attempt=call.attempt,
                ended=ended,
            )
        )


def agents(scripts: Sequence[Script], world: World, base_url: str) -> list[Agent]:
    """The agent of each conversation, with the tools it uses there."""
    return [
        Agent(
            script.agent_id,
            model="scripted",
            base_url=base_url,
            instructions=f"You are at work on: {script.title}",
            tools=[_tool(name, world) for name in sorted(_tool_names(script))],
        )
        for script in scripts
    ]


def _tool(name: str, world: World) -> Tool:
    policy = policy_of(name)

    @tool(
        name=name,
        description=name.replace("_", " ").capitalize(),
        idempotent=policy is Policy.RERUN,
        transactional=policy is Policy.TRANSACTIONAL,
    )
    async def perform(call: ToolContext, **arguments: Any) -> Any:
        return await world.perform(call)

    return perform


def _tool_names(script: Script) -> set[str]:
    return {call["name"] for turn in script.turns for step in turn.steps for call in step.tool_calls}
