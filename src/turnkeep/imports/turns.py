"""A foreign conversation, a list of messages, as turns and checkpoints in the format of an export. Pure.

A turn begins with a user's messages; each further message is a sub-step, and the last one ends the turn. Ids and times
are made from what the source says, and from nothing else: the same source gives the same rows again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from turnkeep import jsontext, transfer
from turnkeep._version import VERSION
from turnkeep.model import call_id_of, conversation_uuid
from turnkeep.transfer import BRANCH, CHECKPOINT, CONVERSATION, MESSAGE, Kind, Record, Writer

NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""The time of what comes without one."""

_CALL_TYPES = ("function_call",)
_RESULT_TYPES = ("function_call_output",)


@dataclass(frozen=True)
class Foreign:
    """A conversation of another program. `name` is its id there behind the program's name; `state` what else it has."""

    name: str
    messages: Sequence[Record]
    created_at: datetime = NO_TIME
    turns_at: datetime = NO_TIME
    agent_id: str | None = None
    title: str | None = None
    parent: str | None = None
    state: Any = None
    metadata: Record = field(default_factory=dict)

    def lines(self, writer: Writer) -> Iterator[bytes]:
        """It as lines of an export."""
        yield writer.row(CONVERSATION, self._header())
        for kind, record in _Rows(self).all():
            yield writer.row(kind, record)
        yield writer.end()

    def _header(self) -> Record:
        optional = {
            "agent_id": self.agent_id,
            "title": self.title,
            "parent_conversation_id": None if self.parent is None else str(conversation_uuid(self.parent)),
        }
        return {
            "format": transfer.FORMAT,
            "release": VERSION,
            "exported_at": _time(NO_TIME),
            "conversation_id": str(conversation_uuid(self.name)),
            "external_id": self.name,
            "tags": [],
            "metadata": json.dumps(self.metadata, ensure_ascii=False, separators=(", ", ": ")),
            "version": 0,
            "update_ids": [],
            "current_branch": 0,
            "next_branch": 1,
            "created_at": _time(self.created_at),
            **{name: value for name, value in optional.items() if value is not None},
        }


class _Rows:
    """The rows of a foreign conversation."""

    def __init__(self, source: Foreign) -> None:
        self._source = source
        self._id = conversation_uuid(source.name)
        self._checkpoints: list[Record] = []
        self._open: dict[str, list[int]] = {}
        self._stop = 0

    def all(self) -> Iterator[tuple[Kind, Record]]:
        """All of them, in the order of the format."""
        messages = self._source.messages
        turns = list(_turns(messages))
        for turn, steps in enumerate(turns):
            self._turn(turn, steps, last=turn == len(turns) - 1)
        head = self._checkpoints[-1] if self._checkpoints else {"turn_index": -1, "sub_step": 0, "phase": "final"}
        if self._checkpoints and self._source.state is not None:
            head["state"] = jsontext.encode(self._source.state, "state")
        yield (
            BRANCH,
            {
                "branch": 0,
                "name": "main",
                "status": "idle" if head["phase"] == "final" else "open",
                "turn_index": head["turn_index"],
                "sub_step": head["sub_step"],
                "next_position": len(messages),
                "lineage": [],
                "turn_started_at": _time(self._source.turns_at),
                "attempts": 0,
                "updated_at": _time(self._source.turns_at + timedelta(microseconds=len(self._checkpoints))),
            },
        )
        for position, message in enumerate(messages):
            body = jsontext.encode(message, f"{self._source.name}: messages[{position}]")
            yield MESSAGE, {"branch": 0, "position": position, "body": body}
        for checkpoint in self._checkpoints:
            yield CHECKPOINT, checkpoint

    def _turn(self, turn: int, steps: Sequence[Sequence[Record]], *, last: bool) -> None:
        self._open = {}
        for sub_step, messages in enumerate(steps):
            self._stop += len(messages)
            self._add(turn, sub_step, messages)
        ends = not last or not (_is_users(steps[-1][-1]) or self._open or answers(steps[-1][-1]))
        if ends and len(steps) == 1:
            self._add(turn, 1, ())
        if ends:
            self._checkpoints[-1]["phase"] = "final"

    def _add(self, turn: int, sub_step: int, messages: Sequence[Record]) -> None:
        made = [call for message in messages for call in calls(message)]
        found = [answer for message in messages for answer in answers(message)]
        # A result names its call by an id; one that answers none is a message only.
        settled = [
            (answer, self._open.pop(str(call_id_of(answer)))) for answer in found if call_id_of(answer) in self._open
        ]
        number = len(self._checkpoints)
        record: Record = {
            "turn_index": turn,
            "sub_step": sub_step,
            "branch": 0,
            "phase": "input" if sub_step == 0 else "tool_calls" if made else "tool_results" if settled else "step",
            "created_at": _time(self._source.turns_at + timedelta(microseconds=number)),
            "write_id": str(uuid.uuid5(self._id, f"{turn}.{sub_step}")),
            "spans": [0, 0, self._stop] if self._stop else [],
        }
        if self._source.agent_id is not None:
            record["agent_id"] = self._source.agent_id
        if self._checkpoints:
            parent = self._checkpoints[-1]
            record["parent_turn_index"], record["parent_sub_step"] = parent["turn_index"], parent["sub_step"]
            record["parent_branch"] = 0
        if made:
            record["tool_calls"] = jsontext.encode(made, "tool_calls")
            for index, call in enumerate(made):
                if (known := call_id_of(call)) is not None:
                    self._open[known] = [turn, sub_step, index]
        if settled:
            record["tool_results"] = jsontext.encode([answer for answer, _ in settled], "tool_results")
            record["answers"] = [part for _, place in settled for part in place]
        self._checkpoints.append(record)


def _turns(messages: Sequence[Record]) -> Iterator[list[list[Record]]]:
    """The steps of each turn: first what it begins with, then one message after the other."""
    steps: list[list[Record]] = []
    for message in messages:
        if not steps:
            steps = [[message]]
        elif _is_users(message) and any(not _begins(one) for one in steps[-1]):
            yield steps
            steps = [[message]]
        elif len(steps) == 1 and _begins(message) and all(map(_begins, steps[0])):
            steps[0].append(message)
        else:
            steps.append([message])
    if steps:
        yield steps


def _is_users(message: Record) -> bool:
    return message.get("role") == "user"


def _begins(message: Record) -> bool:
    return message.get("role") in ("user", "system", "developer")


def calls(message: Record) -> list[Record]:
    """The tool calls that a message makes, in OpenAI's two shapes."""
    if message.get("type") in _CALL_TYPES:
        return [message]
    found = message.get("tool_calls")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def answers(message: Record) -> list[Record]:
    """The results that a message brings."""
    if message.get("type") in _RESULT_TYPES:
        return [message]
    if message.get("role") == "tool" and isinstance(message.get("tool_call_id"), str):
        return [{"tool_call_id": message["tool_call_id"], "content": message.get("content")}]
    return []


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
