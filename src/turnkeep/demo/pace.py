"""How long replies and tools take, so that all conversations come to their end at about the same time."""

from __future__ import annotations

from dataclasses import dataclass

from turnkeep.demo.script import Script

_SECONDS = 12.5  # of a conversation that nothing interrupts
_TURN_SECONDS = 0.1  # of a turn, beside its replies and tools
_TOOLS_SECONDS = 3.0  # of all tools of a conversation, one after the other
_SHORTEST_TOOL, _LONGEST_TOOL = 0.05, 0.3
_SHORTEST_REPLY = 0.03


@dataclass(frozen=True)
class Pace:
    """Seconds: of one tool, and of all replies together."""

    tool: float
    replies: float


def pace_of(script: Script) -> Pace:
    """How a conversation is paced. The more there is of everything, the less time each takes."""
    calls = sum(len(step.tool_calls) for turn in script.turns for step in turn.steps)
    replies = sum(message["role"] == "assistant" for message in script.transcript())
    tool = min(max(_TOOLS_SECONDS / calls, _SHORTEST_TOOL), _LONGEST_TOOL)
    left = _SECONDS - len(script.turns) * _TURN_SECONDS - calls * tool
    return Pace(tool, max(left, replies * _SHORTEST_REPLY))
