"""The conversations as two others need them: what a client posts, and what a scripted model replies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from turnkeep.demo.pace import pace_of
from turnkeep.demo.script import Json, Script, ScriptTurn
from turnkeep.testing import Exchange, Reply, ToolCall
from turnkeep.testing.script import Place, chunks

_TO_FIRST_TOKEN = 0.3  # of the time a reply takes


def posted(turn: ScriptTurn) -> Json:
    """The message a client posts to open a turn. Events and forms are posted as their JSON text."""
    content = turn.input["content"]
    if isinstance(content, dict):
        content = json.dumps(content, ensure_ascii=False)
    return {**turn.input, "role": "user", "content": content}


def user_text(turn: ScriptTurn) -> str:
    """What a model server reads of that message, images and files left out."""
    content = posted(turn)["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def exchanges(scripts: Sequence[Script]) -> list[Exchange]:
    """All replies of the model, at the pace of their conversations."""
    return [exchange for script in scripts for exchange in _paced(script, pace_of(script).replies)]


def _paced(script: Script, seconds: float) -> Iterator[Exchange]:
    unpaced = [Exchange(user_text(turn), tuple(_replies(turn))) for turn in script.turns]
    each = seconds / sum(len(exchange.replies) for exchange in unpaced)
    for exchange in unpaced:
        yield Exchange(
            exchange.user,
            [
                replace(
                    reply,
                    first_token_seconds=_TO_FIRST_TOKEN * each,
                    token_seconds=(1 - _TO_FIRST_TOKEN) * each / len(chunks(reply, Place(exchange.user, index))),
                )
                for index, reply in enumerate(exchange.replies)
            ],
        )


def _replies(turn: ScriptTurn) -> Iterator[Reply]:
    for step in turn.steps:
        for message in step.messages:
            if message["role"] == "assistant":
                calls = [ToolCall(call["name"], call["arguments"], call["id"]) for call in step.tool_calls]
                yield Reply(message["content"], calls)
