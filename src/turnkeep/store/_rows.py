"""Rows of the `restore` statement become checkpoints."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from turnkeep.errors import CorruptionError
from turnkeep.jsontext import decode_names
from turnkeep.model import BranchSummary, Checkpoint, Conversation, ConversationSummary, PendingCall

# The parts of the statement, in its order.
_HEAD, _STATE, _TOOL_CALLS, _TOOL_RESULTS, _OPEN_TURN, _MESSAGE = range(6)


TIMESTAMPTZ: Final = 1184  # its oid
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECONDS: Final = Struct(">q")


class UtcLoader(Loader):
    """Times in UTC: those of a zone with summer time differ by the clock on the wall, which is not always the truth."""

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        """Microseconds since 2000, as they come over the wire."""
        return _EPOCH + timedelta(microseconds=_MICROSECONDS.unpack(data)[0])


class _Parts:
    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.state: str | None = None
        self.tool_calls: str | None = None
        self.tool_results: str | None = None
        self.open_turn: list[tuple[int, int, str]] = []
        self.messages: list[str] = []


def checkpoints(rows: Iterable[tuple[Any, ...]]) -> dict[int, Checkpoint]:
    """Put checkpoints together, by the ordinal (from 1) of what was asked for.

    What was asked for and does not exist is not in the result. Raises `CorruptionError` where rows are
    missing: less than what was saved is never given back (G1).
    """
    found: dict[int, Checkpoint] = {}
    for item, group in groupby(rows, key=itemgetter(0)):
        parts = _collect(group)
        if parts.head["phase"] is not None or not parts.head["earlier"]:
            found[item] = _checkpoint(parts)
    return found


def _collect(rows: Iterable[tuple[Any, ...]]) -> _Parts:
    parts = _Parts()
    for _, part, ord_, position, content in rows:
        match part:
            case 5:  # by far the most
                parts.messages.append(content)
            case 0:
                parts.head = json.loads(content)
            case 1:
                parts.state = content
            case 2:
                parts.tool_calls = content
            case 3:
                parts.tool_results = content
            case 4:
                parts.open_turn.append((ord_, position, content))
    return parts


def _checkpoint(parts: _Parts) -> Checkpoint:
    head = parts.head
    place = f"conversation {head['conversation_id']}, branch {head['branch']}, turn {head['turn_index']}"
    if head["phase"] is None and head["turn_index"] >= 0:
        raise CorruptionError(f"{place}: checkpoint {head['turn_index']}.{head['sub_step']} is missing")
    spans: list[int] = head["spans"] or []
    if len(spans) % 3 or any(start >= stop for start, stop in zip(spans[1::3], spans[2::3], strict=True)):
        raise CorruptionError(f"{place}: the spans {spans} of its messages are none")
    expected = sum(spans[2::3]) - sum(spans[1::3])
    if expected != len(parts.messages):
        raise CorruptionError(f"{place}: {expected} messages were saved, {len(parts.messages)} are there")
    parent = tuple(head["parent"])
    return Checkpoint(
        conversation_id=uuid.UUID(head["conversation_id"]),
        external_id=head["external_id"],
        agent_id=head["agent_id"] or head["conversation_agent"],
        branch=head["branch"],
        branch_name=head["name"],
        turn_index=head["turn_index"],
        sub_step=head["sub_step"],
        phase=head["phase"],
        parent=None if parent[0] is None else parent,
        created_at=_time(head["created_at"]),
        write_id=None if head["write_id"] is None else uuid.UUID(head["write_id"]),
        status=head["status"],
        lease_owner=head["lease_owner"],
        lease_until=_time(head["lease_until"]),
        failure=head["failure"],
        pending=_pending(parts.open_turn, head["turn_index"], head["branch"], uuid.UUID(head["conversation_id"])),
        message_texts=tuple(parts.messages),
        state_text=parts.state,
        tool_calls_text=parts.tool_calls,
        tool_results_text=parts.tool_results,
    )


def conversation(row: Sequence[Any]) -> Conversation:
    """A row of `describe`."""
    conversation_id, external_id, agent_id, tenant, title, tags, metadata, *rest = row
    return Conversation(conversation_id, external_id, agent_id, tenant, title, tuple(tags), json.loads(metadata), *rest)


def summaries(rows: Iterable[Sequence[Any]]) -> list[ConversationSummary]:
    """Rows of `list` and `interrupted`."""
    return [ConversationSummary(*[*row[:-2], tuple(row[-2]), row[-1]]) for row in rows]


def branches(rows: Iterable[Sequence[Any]]) -> list[BranchSummary]:
    """Rows of `branches`."""
    return [BranchSummary(*[*row[:6], tuple(row[6]) or None, *row[7:]]) for row in rows]


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


def _pending(
    open_turn: Sequence[tuple[int, int, str]], turn_index: int, branch: int, conversation_id: uuid.UUID
) -> tuple[PendingCall, ...]:
    """The calls of a turn minus those its checkpoints answer.

    Content is what was answered, a space, the conversation and the branch that a checkpoint was copied from, a line
    break, calls; a plus before the answers says that those calls were started.
    """
    pending: dict[tuple[int, int, int], PendingCall] = {}
    for sub_step, issuer, content in open_turn:
        first_line, _, tool_calls = content.partition("\n")
        numbers_text, origin_conversation, origin_branch = first_line.split(" ")
        if tool_calls:
            for call in issued(
                tool_calls,
                turn_index,
                sub_step,
                int(origin_branch or issuer),
                uuid.UUID(origin_conversation) if origin_conversation else conversation_id,
                uncertain=bool(origin_conversation) or issuer != branch,
            ):
                pending[call.place] = call
        numbers = [int(number) for number in numbers_text.strip("+{}").split(",") if number]
        for place in zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=True):
            if numbers_text.startswith("+"):
                pending[place] = replace(pending[place], attempts=pending[place].attempts + 1)
            else:
                pending.pop(place, None)
    return tuple(pending.values())


def issued(
    tool_calls: str, turn_index: int, sub_step: int, branch: int, conversation_id: uuid.UUID, *, uncertain: bool = False
) -> list[PendingCall]:
    """The calls of one checkpoint, from the text of its `tool_calls`."""
    count = len(decode_names(tool_calls))
    return [
        PendingCall(turn_index, sub_step, index, branch, 0, uncertain, tool_calls, conversation_id)
        for index in range(count)
    ]
