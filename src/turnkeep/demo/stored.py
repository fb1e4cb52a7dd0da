"""What the check compares, read by plain SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from turnkeep.demo.calls import CallPlace
from turnkeep.demo.script import Json
from turnkeep.demo.statements import (
    BRANCHES,
    CHECKPOINTS,
    EFFECTS,
    MESSAGES,
    REQUESTS,
    TRANSCRIPTS,
    in_schema,
)


@dataclass(frozen=True)
class StoredBranch:
    """A row of the branch table."""

    branch: int
    status: str
    leased: bool


@dataclass(frozen=True)
class StoredCheckpoint:
    """A row of the checkpoint table. `at` is the wall clock's time."""

    turn: int
    sub_step: int
    branch: int
    write_id: str
    phase: str
    at: float
    tool_calls: Sequence[Json]
    tool_results: Sequence[Json]
    answers: Sequence[int]


@dataclass
class Stored:
    """What a store holds of one conversation.

    `requests` are the turns that took them up by their keys, `transcript` what the head's spans list, `messages` how
    many there are.
    """

    branches: list[StoredBranch] = field(default_factory=list)
    requests: dict[str, int | None] = field(default_factory=dict)
    checkpoints: list[StoredCheckpoint] = field(default_factory=list)
    transcript: list[Json] = field(default_factory=list)
    messages: int = 0


@dataclass(frozen=True)
class Effect:
    """What a transactional tool has left in the database."""

    place: CallPlace
    tool: str
    key: str


def read(connection: psycopg.Connection[tuple[Any, ...]], schema: str) -> tuple[Mapping[str, Stored], Sequence[Effect]]:
    """Read all conversations of a store, by external id, and what their tools have left."""
    found: defaultdict[str, Stored] = defaultdict(Stored)
    for name, *row in connection.execute(in_schema(BRANCHES, schema)):
        found[name].branches.append(StoredBranch(*row))
    for name, key, turn in connection.execute(in_schema(REQUESTS, schema)):
        found[name].requests[key] = turn
    for name, *row in connection.execute(in_schema(CHECKPOINTS, schema)):
        found[name].checkpoints.append(StoredCheckpoint(*row))
    for name, body in connection.execute(in_schema(TRANSCRIPTS, schema)):
        found[name].transcript.append(body)
    for name, count in connection.execute(in_schema(MESSAGES, schema)):
        found[name].messages = count
    effects = [Effect((name, *place), tool, key) for name, *place, tool, key in connection.execute(EFFECTS, [schema])]
    return dict(found), effects
