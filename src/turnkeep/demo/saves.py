"""A script as the saves that play it, one after the other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from turnkeep.demo.script import Json, Script, ScriptStep

Place = tuple[int, int]
"""(turn, sub_step) of a checkpoint."""


@dataclass(frozen=True)
class Save:
    """One save of a conversation and the place where its checkpoint belongs; sub-step 0 begins the turn."""

    turn: int
    sub_step: int
    messages: tuple[Json, ...]
    tool_calls: tuple[Json, ...] = ()
    tool_results: tuple[Json, ...] = ()
    state: Any = None
    has_state: bool = False
    final: bool = False

    @property
    def place(self) -> Place:
        """(turn, sub_step)."""
        return self.turn, self.sub_step


def saves_of(script: Script) -> tuple[Save, ...]:
    """All saves of a script, in order."""
    found = []
    for number, turn in enumerate(script.turns):
        found.append(Save(number, 0, (turn.input,)))
        found += [_save(number, sub_step, step) for sub_step, step in enumerate(turn.steps, start=1)]
    return tuple(found)


def _save(turn: int, sub_step: int, step: ScriptStep) -> Save:
    return Save(
        turn, sub_step, step.messages, step.tool_calls, step.tool_results, step.state, step.has_state, step.final
    )


def source_text(value: object) -> str:
    """The JSON text that a value of a script has to come back as, character by character."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
