"""What the turn loop asks for, and what it is told: plain records, no I/O.

The loop yields an effect, a driver performs it and sends back its outcome. Each effect is a point at which a process
may die: what stands in the database then decides how the next one goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from turnkeep.model import PendingCall

Json = dict[str, Any]


class Policy(StrEnum):
    """What becomes of a call that was started and has no result, its process being dead.

    `rerun` runs it again, under the same idempotency key. `transactional` does too: its effects committed with its
    result or not at all. `report` tells the model that the outcome is unknown. `ask` waits for a person to decide.
    """

    RERUN = "rerun"
    TRANSACTIONAL = "transactional"
    REPORT = "report"
    ASK = "ask"


class Outcome(StrEnum):
    """How a tool call came out, as its result and its message say.

    `ok` and `error` are the tool's own. `invalid`: it was never run, its arguments being none. `unknown`: it was
    started, and nobody knows whether it ran; such a call stays visible as uncertain.
    """

    OK = "ok"
    ERROR = "error"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Head:
    """A branch as the loop sees it. `pending` are the open turn's calls without result, in order of issue.

    `waiting` is false where it is known, at a turn's end, that no request waits.
    """

    turn_index: int
    sub_step: int
    turn_open: bool
    messages: Sequence[Json]
    pending: tuple[PendingCall, ...]
    state: Any
    waiting: bool = True


@dataclass(frozen=True)
class ToolCall:
    """A call in a model's reply. `arguments` is its text as it came, JSON or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ModelReply:
    """A model's whole reply.

    `provider` is its message verbatim, put together from the deltas; `calls` those it wants run by us, in order, and
    none that the provider has run itself. `finish_reason` is the provider's word, None where it gave none.
    """

    provider: Json
    content: str | None
    refusal: str | None
    calls: tuple[ToolCall, ...]
    finish_reason: str | None
    usage: Json | None


@dataclass(frozen=True)
class ModelRefused:
    """The model server will never answer this request: why, and its HTTP status."""

    message: str
    status: int | None = None


# -- effects


@dataclass(frozen=True)
class TakeRequest:
    """Begin the next turn with the oldest waiting request. Outcome: the `Head` then, or None if nothing waits."""

    state: Json


@dataclass(frozen=True)
class AskModel:
    """Have the model reply. `messages` and `tools` are what goes over the wire. Outcome: a reply or `ModelRefused`."""

    messages: Sequence[Json]
    tools: Sequence[Json]


@dataclass(frozen=True)
class Save:
    """Write a checkpoint. Outcome: the `Head` then.

    `results` answer `answers`, one each. With `final` the turn ends.
    """

    messages: Sequence[Json] = ()
    tool_calls: Sequence[Json] = ()
    tool_results: Sequence[Json] = ()
    answers: tuple[PendingCall, ...] = ()
    state: Json = field(default_factory=dict)
    final: bool = False


@dataclass(frozen=True)
class SaveStarted:
    """Write down that these calls are about to run. Outcome: the `Head` then."""

    calls: tuple[PendingCall, ...]


@dataclass(frozen=True)
class RunTool:
    """Start a tool; it runs beside the others. Outcome: None."""

    call: PendingCall
    name: str
    arguments: Mapping[str, Any]
    policy: Policy


@dataclass(frozen=True)
class Landed:
    """A tool call that has come to its end. `content` is what it gave: any JSON value."""

    call: PendingCall
    content: Any
    outcome: Outcome


@dataclass(frozen=True)
class AwaitTool:
    """Wait until any of the started tools has come to its end. Outcome: `Landed`."""


@dataclass(frozen=True)
class FailTurn:
    """Stop the turn where it stands, for a reason that trying again does not mend. Outcome: None; it is the last."""

    failure: Json


@dataclass(frozen=True)
class WaitForPerson:
    """Stop until a person has decided on these calls. Outcome: None; it is the last."""

    calls: tuple[PendingCall, ...]


@dataclass(frozen=True)
class HandBack:
    """Leave the branch to a worker whose code has these tools. Outcome: None; it is the last."""

    tools: tuple[str, ...]


Effect = TakeRequest | AskModel | Save | SaveStarted | RunTool | AwaitTool | FailTurn | WaitForPerson | HandBack
