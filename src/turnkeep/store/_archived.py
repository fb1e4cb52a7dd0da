"""An archived conversation, read without being unarchived. Pure."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from turnkeep.errors import CorruptionError, TransferError
from turnkeep.model import FINAL_PHASE, BranchSummary, Checkpoint, CheckpointSummary
from turnkeep.spans import owner_of
from turnkeep.store import _rows
from turnkeep.store._payload import unpacked
from turnkeep.transfer import BRANCH, CHECKPOINT, CONVERSATION, MESSAGE, Kind, Reader, Record

_LEASE = {"lease_owner": None, "lease_until": None}


class Archived:
    """What is archived of a conversation. `row` is what the table has of it, its payload third."""

    def __init__(self, conversation: uuid.UUID, row: Sequence[Any]) -> None:
        self.conversation_id = conversation
        self._branches: dict[int, Record] = {}
        self._messages: dict[tuple[int, int], str] = {}
        self._checkpoints: dict[tuple[int, int, int], Record] = {}
        self._requests: list[Record] = []
        for kind, record in self.rows(conversation, row, with_header=True):
            if kind is CONVERSATION:
                self._head = record
            elif kind is BRANCH:
                self._branches[record["branch"]] = record
            elif kind is MESSAGE:
                self._messages[record["branch"], record["position"]] = record["body"]
            elif kind is CHECKPOINT:
                self._checkpoints[record["turn_index"], record["sub_step"], record["branch"]] = record
            else:
                self._requests.append(record)

    @staticmethod
    def is_whole(row: Sequence[Any] | None) -> bool:
        """Whether there is a payload, and it is what was stored."""
        return row is not None and hashlib.sha256(row[2]).digest() == row[1]

    @staticmethod
    def rows(
        conversation: uuid.UUID, row: Sequence[Any], *, with_header: bool = False
    ) -> Iterator[tuple[Kind, Record]]:
        """The rows of a payload, one by one, after the conversation itself if that is wanted."""
        _, digest, payload, *_ = row
        reader = Reader(unpacked(conversation, digest, payload), f"the archive of conversation {conversation}")
        try:
            header = reader.conversation()
            if header is None or header["conversation_id"] != str(conversation):
                raise reader.error("it holds another conversation")
            if with_header:
                yield CONVERSATION, header
            yield from reader.rows()
            if reader.conversation() is not None:
                raise reader.error("it holds more than one conversation")
        except TransferError as error:
            raise CorruptionError(f"{error}; nothing was changed. A backup has it as it was") from error

    def number_of(self, branch: int | str | None) -> int | None:
        """The number of a branch: the current one where none is named; None where there is none such."""
        if branch is None:
            return int(self._head["current_branch"])
        if isinstance(branch, int):
            return branch if branch in self._branches else None
        return next((number for number, row in self._branches.items() if row.get("name") == branch), None)

    def checkpoint(
        self, branch: int | str | None, turn: int | None = None, sub_step: int | None = None
    ) -> Checkpoint | None:
        """The checkpoint at a place, or at the head; None where there is none."""
        number = self.number_of(branch)
        if number is None:
            return None
        row = self._branches[number]
        turn = row["turn_index"] if turn is None else turn
        sub_step = row["sub_step"] if sub_step is None else sub_step
        found = self._at(row, turn, sub_step)
        rows: list[tuple[Any, ...]] = [(1, 0, 0, 0, json.dumps(self._head_of(row, turn, sub_step, found)))]
        for part, name in ((1, "state"), (2, "tool_calls"), (3, "tool_results")):
            if found is not None and name in found:
                rows.append((1, part, 0, 0, found[name]))
        if found is not None and found["phase"] != FINAL_PHASE:
            rows += self._open_turn(row, turn, sub_step)
        rows += [(1, 5, 0, 0, text) for text in self._texts(found)]
        return _rows.checkpoints(rows).get(1)

    def history(self, branch: int | str | None, limit: int, before: tuple[int, int] | None) -> list[CheckpointSummary]:
        """A branch's checkpoints with those it inherits, newest first."""
        number = self.number_of(branch)
        if number is None:
            return []
        lineage = self._branches[number]["lineage"]
        found = [
            row
            for (turn, sub_step, owner), row in self._checkpoints.items()
            if owner == owner_of(number, lineage, turn, sub_step) and (before is None or (turn, sub_step) < before)
        ]
        return [_summary(row) for row in sorted(found, key=_place, reverse=True)[:limit]]

    def line(self, branch: int) -> list[tuple[int, int]]:
        """The branches whose turns a branch has, each with the last turn it has of it: see `line_of_branch`."""
        if branch not in self._branches:
            return []
        lineage = self._branches[branch]["lineage"]
        found = [(branch, 2**31 - 1)]
        for i in range(0, len(lineage), 3):
            owner, turn, sub_step = lineage[i : i + 3]
            row = self._checkpoints.get((turn, sub_step, owner))
            found.append((owner, turn if row is not None and row["phase"] == FINAL_PHASE else turn - 1))
        return found

    def branches(self) -> list[BranchSummary]:
        """All branches by number."""
        return [
            BranchSummary(
                self.conversation_id,
                number,
                row.get("name"),
                row["status"],
                row["turn_index"],
                row["sub_step"],
                _triple(row["lineage"][-3:]),
                number == self._head["current_branch"],
                datetime.fromisoformat(row["turn_started_at"]),
                datetime.fromisoformat(row["updated_at"]),
                None,
                None,
            )
            for number, row in sorted(self._branches.items())
        ]

    def waiting(self, branch: int, limit: int) -> list[tuple[str, datetime, str]]:
        """Requests that wait on a branch, oldest first: key, time, text."""
        return [
            (row["key"], datetime.fromisoformat(row["received_at"]), row["body"])
            for row in self._requests
            if row["branch"] == branch and "taken_turn" not in row
        ][:limit]

    def _at(self, row: Record, turn: int, sub_step: int) -> Record | None:
        return self._checkpoints.get((turn, sub_step, owner_of(row["branch"], row["lineage"], turn, sub_step)))

    def _texts(self, found: Record | None) -> list[str]:
        spans = [] if found is None else found["spans"]
        return [
            self._messages[spans[i], position]
            for i in range(0, len(spans), 3)
            for position in range(spans[i + 1], spans[i + 2])
        ]

    def _head_of(self, row: Record, turn: int, sub_step: int, found: Record | None) -> dict[str, Any]:
        found = found or {}
        return {
            "conversation_id": str(self.conversation_id),
            "external_id": self._head["external_id"],
            "conversation_agent": self._head.get("agent_id"),
            "branch": row["branch"],
            "name": row.get("name"),
            "status": row["status"],
            "failure": json.loads(row["failure"]) if "failure" in row else None,
            **_LEASE,
            "turn_index": turn,
            "sub_step": sub_step,
            "phase": found.get("phase"),
            "agent_id": found.get("agent_id"),
            "earlier": (turn, sub_step) != (row["turn_index"], row["sub_step"]),
            "created_at": found.get("created_at"),
            "write_id": found.get("write_id"),
            "spans": found.get("spans"),
            "parent": [found.get(part) for part in ("parent_turn_index", "parent_sub_step", "parent_branch")],
        }

    def _open_turn(self, row: Record, turn: int, sub_step: int) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for number in range(sub_step + 1):
            one = self._at(row, turn, number)
            if one is not None and ("tool_calls" in one or "answers" in one):
                started = "+" if one["phase"] == "started" else ""
                answers = f"{{{','.join(map(str, one['answers']))}}}" if "answers" in one else ""
                origin = f"{one.get('origin_conversation', '')} {one.get('origin_branch', '')}"
                rows.append((1, 4, number, one["branch"], f"{started}{answers} {origin}\n{one.get('tool_calls', '')}"))
        return rows


def _place(row: Record) -> tuple[int, int]:
    return row["turn_index"], row["sub_step"]


def _triple(lineage: list[int]) -> tuple[int, int, int] | None:
    return (lineage[0], lineage[1], lineage[2]) if lineage else None


def _summary(row: Record) -> CheckpointSummary:
    spans = row["spans"]
    calls, results = (len(json.loads(row[name])) if name in row else 0 for name in ("tool_calls", "tool_results"))
    return CheckpointSummary(
        row["branch"],
        row["turn_index"],
        row["sub_step"],
        row["phase"],
        row.get("agent_id"),
        datetime.fromisoformat(row["created_at"]),
        uuid.UUID(row["write_id"]),
        sum(spans[2::3]) - sum(spans[1::3]),
        calls,
        results,
    )
