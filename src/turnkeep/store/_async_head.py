"""The head of a branch, as a writer knows it and goes on from it."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from turnkeep.errors import (
    ConflictError,
    ConversationEndedError,
    CorruptionError,
    KeyReusedError,
    LeaseHeldError,
    LeaseLostError,
    NotFoundError,
)
from turnkeep.jsontext import decode
from turnkeep.model import FINAL_PHASE, Checkpoint, Lease, PendingCall, Saved
from turnkeep.store import _rows, _tool_calls, _writes
from turnkeep.store._async_database import AsyncDatabase
from turnkeep.store._async_waiting import Lock
from turnkeep.store._writes import Content

Wanted = tuple[uuid.UUID, int | None, int | None, int | None]
"""A checkpoint to read: conversation, branch (None: the current one), turn_index and sub_step (None: the head)."""

Place = tuple[str, int, int, int, bool]
"""What a write came to: outcome, branch, turn_index, sub_step, and whether a request waits where a turn has ended."""

Fetch = Callable[[str, Mapping[str, Any]], Awaitable[list[tuple[Any, ...]]]]
"""Something that runs the statement of a name with its parameters, and gives the rows."""


@dataclass(frozen=True)
class PreparedSave:
    """A save that is encoded and not yet sent. `named` says of each result which call it answers.

    `whole` says that its messages are the whole list, not the new ones only.
    """

    content: Content
    phase: str
    named: tuple[_tool_calls.Answer, ...]
    write_id: uuid.UUID | None
    whole: bool = False


_NOT_SAID = -2  # as in the statement


async def read_checkpoints(database: AsyncDatabase, wanted: Sequence[Wanted]) -> dict[int, Checkpoint]:
    """Read checkpoints whole in one round trip, by ordinal from 1; what does not exist is left out."""
    conversations, *places = zip(*wanted, strict=True)
    branches, turns, sub_steps = ([_NOT_SAID if one is None else one for one in column] for column in places)
    rows = await database.fetch(
        "restore",
        {"conversations": [*conversations], "branches": branches, "turns": turns, "sub_steps": sub_steps},
    )
    return _rows.checkpoints(rows)


class AsyncHead:
    """What a handle knows of its branch's head, and how it goes on from there."""

    def __init__(self, database: AsyncDatabase, checkpoint: Checkpoint, agent_id: str | None = None) -> None:
        self._database = database
        self._lock = Lock()
        self._lease: Lease | None = None
        self.suspect = False
        self.taken_from: str | None = None
        self.agent_id = agent_id or checkpoint.agent_id
        self.conversation_id = checkpoint.conversation_id
        self.external_id = checkpoint.external_id
        self.branch = checkpoint.branch
        self._decoded: tuple[list[str], list[Any]] = [], []
        self._sent: uuid.UUID | None = None
        self._take(checkpoint)

    def __repr__(self) -> str:
        return f"<AsyncBranch {self.external_id!r} branch {self.branch} at {self.turn_index}.{self.sub_step}>"

    @property
    def turn_open(self) -> bool:
        """Whether a turn is open at the head."""
        return self._phase is not None and self._phase != FINAL_PHASE

    @property
    def messages(self) -> list[Any]:
        """All messages up to the head, in order, those saved through this handle included: what an inference needs."""
        texts, (decoded, values) = self._texts, self._decoded
        values = [*values] if decoded is texts else []
        known = len(values)
        values += [decode(text, f"messages[{i}]") for i, text in enumerate(texts[known:], known)]
        self._decoded = texts, values
        return list(values)

    @property
    def state(self) -> Any:
        """The state at the head, or None where none was ever saved."""
        return None if self._state is None else decode(self._state, "state")

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The tool calls of the open turn that have no result yet, in the order of issue."""
        return self._pending

    @property
    def redacts(self) -> bool:
        """Whether what is stored may be other than what is passed."""
        return self._database.redact is not None

    @property
    def lease(self) -> Lease | None:
        """The lease this handle writes under, as far as it knows."""
        return self._lease

    @property
    def _name(self) -> str:
        return f"conversation {self.external_id!r}, branch {self.branch}"

    @property
    def _place(self) -> dict[str, Any]:
        return {"conversation": self.conversation_id, "branch": self.branch}

    @property
    def _head(self) -> dict[str, Any]:
        return {**self._place, "turn": self.turn_index, "sub_step": self.sub_step}

    def _held_lease(self) -> Lease:
        if self._lease is None:
            raise LeaseLostError(f"{self._name}: this handle holds no lease: claim one first")
        return self._lease

    def _take(self, checkpoint: Checkpoint) -> None:
        texts = list(checkpoint.message_texts)  # whatever can be interrupted comes before the first change
        self.turn_index = checkpoint.turn_index
        self.sub_step = checkpoint.sub_step
        self._phase = checkpoint.phase
        self._seen = checkpoint.write_id
        self._pending = checkpoint.pending
        self._texts = texts
        self._state = checkpoint.state_text

    async def _advance(
        self,
        place: Place,
        content: Content,
        phase: str,
        pending: tuple[PendingCall, ...],
        whole: Sequence[str] | None = None,
    ) -> Saved:
        outcome, _, turn_index, sub_step, waiting = place
        at_next = (turn_index, sub_step) == self._next_place(phase)
        if at_next and outcome == "repeated" and phase == "input":
            # A turn may have begun behind more sub-steps of the one before than this handle has seen.
            self._take(await self._read_at(turn_index, sub_step))
            self.suspect = False
        elif at_next:
            self.turn_index, self.sub_step, self._phase, self._pending = turn_index, sub_step, phase, pending
            self._seen = self._sent
            self.suspect = self.suspect and phase == "started"
            if whole is None:
                self._texts += content.messages
            else:
                self._texts = [*whole]
            self._state = self._state if content.state is None else content.state
        return Saved(self.branch, turn_index, sub_step, outcome == "repeated", phase == FINAL_PHASE, waiting)

    def _take_turn(self, turn_index: int, content: Content, whole: Sequence[str]) -> None:
        """Go on from behind a turn that was begun and ended at once."""
        texts = [*whole]
        self.turn_index, self.sub_step, self._phase, self._pending = turn_index, 1, FINAL_PHASE, ()
        self._seen = self._sent
        self.suspect = False
        self._texts = texts
        self._state = self._state if content.state is None else content.state

    async def _as_it_is(self) -> Saved:
        """The head's place, if this handle may write there: what a save that changes nothing comes to."""
        rows = await self._database.fetch("head", self._place)
        if not rows:
            self._refuse("not_found", 0, 0, None)
        ((turn_index, sub_step, write_id, status, token, until, live),) = rows
        if self._lease is not None and not (live and token == self._lease.token):
            self._refuse("lease_lost", turn_index, sub_step, until)
        if self._lease is None and live:
            self._refuse("lease_held", turn_index, sub_step, until)
        if status == "ended":
            raise ConversationEndedError(f"{self._name} has ended: reopen it before it goes on")
        if (turn_index, sub_step, write_id) != (self.turn_index, self.sub_step, self._seen):
            self._refuse("conflict", turn_index, sub_step, None)
        return Saved(self.branch, self.turn_index, self.sub_step, True, not self.turn_open)

    def _next_place(self, phase: str) -> tuple[int, int]:
        return (self.turn_index + 1, 0) if phase == "input" else (self.turn_index, self.sub_step + 1)

    async def _read_head(self) -> Checkpoint:
        head = await self._read_at(None, None)
        self._take(head)
        return head

    async def _read_at(self, turn_index: int | None, sub_step: int | None) -> Checkpoint:
        found = await read_checkpoints(self._database, [(self.conversation_id, self.branch, turn_index, sub_step)])
        if 1 not in found:
            raise NotFoundError(f"{self._name} is not there any more")
        return found[1]

    async def first_outcome(self, write_id: uuid.UUID, phase: str) -> Saved | None:
        """What a write of that id and phase came to on this branch, if it was made."""
        for turn_index, sub_step, stored_phase in await self._written(write_id):
            if stored_phase == phase:
                return Saved(self.branch, turn_index, sub_step, True, phase == FINAL_PHASE)
        return None

    async def _written(self, write_id: uuid.UUID) -> list[tuple[int, int, str]]:
        """Where a write id stands on this branch, and as what; or nothing."""
        rows = await self._database.fetch("written", {**self._place, "write_id": write_id})
        return [(turn_index, sub_step, phase) for turn_index, sub_step, phase in rows]

    async def _write(
        self,
        content: Content,
        phase: str,
        write_id: uuid.UUID | None,
        *,
        answers: list[int] | None = None,
        key: str | None = None,
        digest: bytes | None = None,
        parts: list[int] | None = None,
        whole_turn: bool = False,
        fetch: Fetch,
    ) -> Place:
        lease = self._lease
        given = _writes.check_write_id(write_id)
        self._sent = given or uuid.uuid4()
        parameters = {
            **self._head,
            "first_id": opening_id(self._sent) if whole_turn else None,
            "token": lease.token if lease else 0,
            "lease_seconds": lease.seconds if lease else 0.0,
            "write_id": self._sent,
            "repeatable": given is not None,
            "phase": phase,
            "agent": self.agent_id,
            "count": len(content.messages),
            "messages": content.messages_text,
            "tool_calls": content.tool_calls,
            "tool_results": content.tool_results,
            "answers": answers or None,
            "state": content.state,
            "key": key,
            "digest": digest,
            "parts": parts,
            "seen": self._seen,
            "embedding": content.embedding,
            "model": content.model,
        }
        rows = await (fetch("save_turn", parameters) if whole_turn else fetch("save", parameters))
        ((outcome, branch, turn_index, sub_step, lease_until, waiting),) = rows
        self._refuse(outcome, turn_index, sub_step, lease_until)
        if lease is not None and outcome == "saved":
            self._lease = replace(lease, until=lease_until)
        return outcome, branch, turn_index, sub_step, bool(waiting)

    def _refuse(self, outcome: str, turn_index: int, sub_step: int, lease_until: datetime | None) -> None:
        match outcome:
            case "not_found":
                raise NotFoundError(f"{self._name} is not there any more; nothing was written")
            case "lease_lost":
                raise LeaseLostError(f"{self._name}: the lease was lost; nothing was written. Claim it again first")
            case "lease_held":
                raise LeaseHeldError(
                    f"{self._name}: somebody else holds a lease until {lease_until}; nothing was written"
                )
            case "write_id_reused":
                raise KeyReusedError(
                    f"{self._name}: this write_id stands at {turn_index}.{sub_step} with other content; "
                    "nothing was written"
                )
            case "conflict":
                raise ConflictError(
                    f"{self._name}: its head is {turn_index}.{sub_step} now, not {self.turn_index}.{self.sub_step}; "
                    "nothing was written. Call refresh() and decide again"
                )
            case "saved" | "repeated" | "taken" | "key_reused":
                return
            case _:
                raise CorruptionError(
                    f"{self._name}: the database answered {outcome!r}, which is no outcome of a write"
                )


def opening_id(write_id: uuid.UUID) -> uuid.UUID:
    """The write id of the turn's beginning where one call begins and ends a turn."""
    return uuid.uuid5(write_id, "input")
