"""Twelve recorded agent conversations, shipped with the package, for the demo and for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class ScriptStep:
    """What one save of a turn carries: new messages, and the calls or the results that go with them.

    `state` counts only where `has_state` is true, and may then be None: JSON's null. Otherwise the
    state is unchanged by this step.
    """

    messages: tuple[Json, ...]
    tool_calls: tuple[Json, ...]
    tool_results: tuple[Json, ...]
    state: Any
    has_state: bool
    final: bool


@dataclass(frozen=True)
class ScriptTurn:
    """One input and the steps that answer it; the last step is final."""

    input: Json
    steps: tuple[ScriptStep, ...]


@dataclass(frozen=True)
class Script:
    """A whole conversation, turn by turn, as an agent would have saved it."""

    external_id: str
    agent_id: str
    title: str
    turns: tuple[ScriptTurn, ...]

    @property
    def saves(self) -> int:
        """How many saves play the script: one to begin each turn, one for each step."""
        return sum(1 + len(turn.steps) for turn in self.turns)

    def transcript(self) -> list[Json]:
        """All messages in the order they are saved: of each turn the input, then those of its steps."""
        return list(self._messages())

    def _messages(self) -> Iterator[Json]:
        for turn in self.turns:
            yield turn.input
            for step in turn.steps:
                yield from step.messages


def load_scripts() -> tuple[Script, ...]:
    """Read the shipped conversations, ordered by `external_id`. Each call gives fresh objects."""
    folder = resources.files("turnkeep").joinpath("demo", "conversations")
    texts = (file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".json"))
    return tuple(sorted(map(_script, texts), key=lambda script: script.external_id))


def _script(text: str) -> Script:
    data = json.loads(text)
    return Script(data["external_id"], data["agent_id"], data["title"], tuple(map(_turn, data["turns"])))


def _turn(data: Json) -> ScriptTurn:
    return ScriptTurn(data["input"], tuple(map(_step, data["steps"])))


def _step(data: Json) -> ScriptStep:
    return ScriptStep(
        messages=tuple(data["messages"]),
        tool_calls=tuple(data.get("tool_calls", ())),
        tool_results=tuple(data.get("tool_results", ())),
        state=data.get("state"),
        has_state="state" in data,
        final=data.get("final", False),
    )
