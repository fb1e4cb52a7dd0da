"""A branch as a writer holds it: turns, sub-steps, leases."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from turnkeep import jsontext
from turnkeep.errors import (
    ConflictError,
    ConversationEndedError,
    CorruptionError,
    InvalidInputError,
    KeyReusedError,
    LeaseHeldError,
    LeaseLostError,
    NotFoundError,
    PendingCallsError,
    TurnOpenError,
    UnknownToolCallError,
)
from turnkeep.jsontext import decode
from turnkeep.model import FINAL_PHASE, Checkpoint, Lease, PendingCall, Saved
from turnkeep.store import _arguments, _rows, _tool_calls, _writes
from turnkeep.store._async_database import AsyncDatabase
from turnkeep.store._async_leases import lease_terms, release_lease, take_lease
from turnkeep.store._async_transaction import AsyncTransaction
from turnkeep.store._async_waiting import Lock
from turnkeep.store._writes import UNCHANGED, Content, Message

Wanted = tuple[uuid.UUID, int | None, int | None, int | None]
"""A checkpoint to read: conversation, branch (None: the current one), turn_index and sub_step (None: the head)."""

Place = tuple[str, int, int, int, bool]
"""What a write came to: outcome, branch, turn_index, sub_step, and whether a request waits where a turn has ended."""

Fetch = Callable[[str, Mapping[str, Any]], Awaitable[list[tuple[Any, ...]]]]
"""Something that runs the statement of a name with its parameters, and gives the rows."""


@dataclass(frozen=True)
class PreparedSave:
    """A save that is encoded and not yet sent. `named` says of each result which call it answers."""

    content: Content
    phase: str
    named: tuple[_tool_calls.Answer, ...]
    write_id: uuid.UUID | None


async def read_checkpoints(database: AsyncDatabase, wanted: Sequence[Wanted]) -> dict[int, Checkpoint]:
    """Read checkpoints whole in one round trip, by ordinal from 1; what does not exist is left out."""
    conversations, branches, turns, sub_steps = ([*column] for column in zip(*wanted, strict=True))
    rows = await database.fetch(
        "restore",
        {"conversations": conversations, "branches": branches, "turns": turns, "sub_steps": sub_steps},
    )
    return _rows.checkpoints(rows)


class AsyncBranch:
    """One line of turns of a conversation, and the place where the next write goes.

    Made by `AsyncStore.conversation` and `AsyncStore.fork`. Writes of one handle follow each other, also when
    several tasks call it. Two handles on one branch exclude each other: the second to write gets `ConflictError`
    and `refresh()` brings it up to date (G2). After a write that failed or was cancelled the handle stays where
    it was: the same call with the same `write_id` gives the outcome the first one had, whatever that was (G4).

    Attributes: `conversation_id` (UUID), `external_id` (the text it was asked for by), `branch` (its number),
    `agent_id`, and the head: `turn_index` (-1 before the first turn), `sub_step`, `turn_open`, `messages`, `state`,
    `pending`, `lease`. `suspect` says that its worker has died, and that it has made no progress since.
    """

    def __init__(self, database: AsyncDatabase, checkpoint: Checkpoint, agent_id: str | None = None) -> None:
        self._database = database
        self._lock = Lock()
        self._lease: Lease | None = None
        self.suspect = False
        self.agent_id = agent_id or checkpoint.agent_id
        self.conversation_id = checkpoint.conversation_id
        self.external_id = checkpoint.external_id
        self.branch = checkpoint.branch
        self._decoded: tuple[list[str], list[Any]] = [], []
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
    def lease(self) -> Lease | None:
        """The lease this handle writes under, as far as it knows."""
        return self._lease

    async def begin_turn(
        self,
        message: Message | Sequence[Message],
        *,
        key: str | None = None,
        state: object = UNCHANGED,
        write_id: uuid.UUID | None = None,
    ) -> Saved:
        """Open the next turn with its input, durable before any inference (G1).

        `message` is one JSON object or a list of them. Under a `key` (1 to 500 characters) the turn begins
        once: the same key gives that turn again, at its newest checkpoint, from any process (G4); with
        another body it raises `KeyReusedError`. Raises `TurnOpenError` while another turn is open.
        """
        messages: list[Message] = [*message] if isinstance(message, list | tuple) else [cast("Message", message)]
        if key is not None:
            _arguments.check_key(key)
        if not messages:
            raise InvalidInputError("message: a turn begins with at least one message")
        content = _writes.content(messages, None, None, state)
        digest = None if key is None else jsontext.digest(messages)
        self._database.check_usable()
        async with self._lock:
            try:
                place = await self._write(
                    content, "input", write_id, key=key, digest=digest, fetch=self._database.fetch
                )
            except TurnOpenError as error:
                names = ", ".join(map(str, self._pending)) or "none"
                raise TurnOpenError(
                    f"{self._name}: turn {self.turn_index} is open (pending calls: {names}): go on with it, or end it "
                    "with final=True, before a new one begins",
                    self._pending,
                ) from error
            outcome, branch, turn_index, _, _ = place
            if outcome == "key_reused":
                what = "was posted" if turn_index is None else f"has begun turn {turn_index}"
                raise KeyReusedError(f"{self._name}: key {key!r} {what} with another body")
            if outcome == "taken" and branch != self.branch:
                what = "was posted" if turn_index is None else f"has begun turn {turn_index}"
                raise KeyReusedError(
                    f"{self._name}: key {key!r} {what} on branch {branch}: go on there, "
                    "or begin another turn here under another key"
                )
            if outcome == "taken":
                return await self._turn_again(turn_index)
            return self._advance(place, content, "input", ())

    async def save(
        self,
        messages: Sequence[Message] = (),
        *,
        tool_calls: Sequence[object] | None = None,
        tool_results: Sequence[object] | None = None,
        answers: Sequence[PendingCall] | None = None,
        state: object = UNCHANGED,
        final: bool = False,
        write_id: uuid.UUID | None = None,
    ) -> Saved:
        """Append a sub-step to the open turn. It is durable when this returns (G1).

        `messages` are the new ones only. `tool_calls` become pending; each of `tool_results` answers a pending
        call: the first one with the same id (in `tool_call_id`, `tool_use_id`, `call_id` or `id`), or the one that
        `answers` names in its place. `state` is any JSON value, `UNCHANGED` the one before. `final` ends the turn,
        after all its calls have been answered (`PendingCallsError`). `write_id` makes a retry of your own harmless,
        from any process: the same id gives the first outcome (G4), and with other content `KeyReusedError`.

        Raises `UnstorableError` before anything else happens (G3), `ConflictError` if another writer was
        faster (G2), `LeaseHeldError` or `LeaseLostError` (G5), `TurnNotOpenError`.
        """
        prepared = self.prepared(messages, tool_calls, tool_results, answers, state, final, write_id)
        self._database.check_usable()
        return await self.perform(prepared, self._database.fetch)

    def prepared(
        self,
        messages: Sequence[Message],
        tool_calls: Sequence[object] | None,
        tool_results: Sequence[object] | None,
        answers: Sequence[PendingCall] | None,
        state: object,
        final: bool,
        write_id: uuid.UUID | None,
    ) -> PreparedSave:
        """Encode a save, without any I/O."""
        content = _writes.content(messages, tool_calls, tool_results, state)
        phase = FINAL_PHASE if final else _phase(content)
        return PreparedSave(content, phase, tuple(_tool_calls.named(tool_results or (), answers)), write_id)

    async def perform(self, save: PreparedSave, fetch: Fetch) -> Saved:
        """Make a save by means of `fetch`; when that has returned, the handle goes on from there."""
        final = save.phase == FINAL_PHASE
        async with self._lock:
            issued: list[PendingCall] = []
            if save.content.tool_calls is not None:
                issued = _rows.issued(
                    save.content.tool_calls, self.turn_index, self.sub_step + 1, self.branch, self.conversation_id
                )
            pending = (*self._pending, *issued)
            try:
                answered = _tool_calls.answered(save.named, pending)
                open_calls = tuple(call for call in pending if call not in answered)
                if final and open_calls:
                    names = ", ".join(map(str, open_calls))
                    raise PendingCallsError(
                        f"{self._name}: the turn can't end while tool calls have no result ({names}): save a result "
                        "for each; where the outcome is unknown, one that says so",
                        open_calls,
                    )
            except (PendingCallsError, UnknownToolCallError):
                # A retry from another handle: what it answers may have been answered by its first try.
                if save.write_id is not None and (first := await self.first_outcome(save.write_id, save.phase)):
                    return first
                raise
            answers = [number for call in answered for number in call.place]
            place = await self._write(save.content, save.phase, save.write_id, answers=answers, fetch=fetch)
            return self._advance(place, save.content, save.phase, open_calls)

    async def mark_started(self, calls: Sequence[PendingCall], *, write_id: uuid.UUID | None = None) -> Saved:
        """Write down that these pending calls are about to run, before they do.

        After a crash `attempts` of a call tells whether it can have run. Raises what `save` raises.
        """
        content = _writes.content((), None, None, UNCHANGED)
        self._database.check_usable()
        async with self._lock:
            if not calls or any(call.place not in [one.place for one in self._pending] for call in calls):
                names = ", ".join(map(str, self._pending)) or "none"
                raise UnknownToolCallError(f"calls: pending are {names}, and at least one of them is needed", calls)
            places = [call.place for call in calls]
            numbers = [number for one in places for number in one]
            place = await self._write(content, "started", write_id, answers=numbers, fetch=self._database.fetch)
            pending = tuple(
                replace(call, attempts=call.attempts + 1) if call.place in places else call for call in self._pending
            )
            return self._advance(place, content, "started", pending)

    async def take_request(self, *, state: object = UNCHANGED) -> Saved | None:
        """Begin the next turn with the oldest request that waits on this branch, or give None where none does.

        The turn is begun and the request taken in one statement (G1). Raises what `begin_turn` raises.
        """
        content = _writes.content((), None, None, state)
        self._database.check_usable()
        lease = self._lease
        async with self._lock:
            ((outcome, turn_index, sub_step, lease_until, _, body),) = await self._database.fetch(
                "take",
                {
                    **self._head,
                    "token": lease.token if lease else 0,
                    "lease_seconds": lease.seconds if lease else 0.0,
                    "write_id": uuid.uuid4(),
                    "agent": self.agent_id,
                    "state": content.state,
                },
            )
            if outcome == "none":
                return None
            self._refuse(outcome, turn_index, sub_step, lease_until)
            if lease is not None and outcome == "saved":
                self._lease = replace(lease, until=lease_until)
            if outcome == "saved" and body.startswith("{"):
                content.messages.append(body)
                return self._advance((outcome, self.branch, turn_index, sub_step, False), content, "input", ())
            await self._read_head()  # several messages, or a first try of ours has been there
            return Saved(self.branch, self.turn_index, self.sub_step, outcome != "saved", False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Open a transaction whose effects commit together with a save, or not at all (G6)::

            async with branch.transaction() as transaction:
                await transaction.connection.execute("UPDATE account SET …")
                await transaction.save([message], tool_results=[…])

        It takes one of the store's connections (`pool_size`) while it is open. Without a `save` it rolls back.
        """
        transaction = AsyncTransaction(self, self._database)
        try:
            await transaction.begin()
            yield transaction
        finally:
            try:
                await transaction.close()
            except BaseException:
                await transaction.close()  # interrupted before its first instruction, perhaps
                raise

    async def refresh(self) -> Checkpoint:
        """Read the head again and go on from there. Gives the checkpoint, with its messages."""
        self._database.check_usable()
        async with self._lock:
            return await self._read_head()

    async def claim(self, *, owner: str | None = None, seconds: float = 15.0) -> Lease:
        """Take a lease on the branch and go on from its head; every later write carries and renews it (G5).

        `seconds` is how long it lives after each write or `renew()`, by the database's clock. `owner` is a name
        for people, by default host and process id. Raises `LeaseHeldError` while somebody else's is live.
        """
        owner, seconds = lease_terms(owner, seconds)
        self._database.check_usable()
        async with self._lock:
            lease = await take_lease(self._database, self.conversation_id, self.branch, owner, seconds, waiting=False)
            if lease == "not_found":
                raise NotFoundError(f"{self._name} is not there any more")
            if lease == "ended":
                raise ConversationEndedError(f"{self._name} has ended: reopen it first")
            if not isinstance(lease, Lease):
                raise LeaseHeldError(f"{self._name}: {lease}")
            self._lease = lease
            await self._read_head()
            return self._lease

    @classmethod
    def claimed(
        cls, database: AsyncDatabase, checkpoint: Checkpoint, lease: Lease, agent_id: str, *, suspect: bool
    ) -> AsyncBranch:
        """A handle that holds a lease already. `suspect` says that its workers have died before."""
        branch = cls(database, checkpoint, agent_id)
        branch._lease = lease
        branch.suspect = suspect
        return branch

    async def renew(self) -> Lease:
        """Let the lease live for its full length from now, also one that has expired, if nobody has used that.

        Raises `LeaseLostError` where somebody has claimed the branch or written to it since.
        """
        lease = self._held_lease()
        ((until,),) = await self._database.fetch(
            "renew", {**self._place, "token": lease.token, "lease_seconds": lease.seconds}
        )
        if until is None:
            raise LeaseLostError(f"{self._name}: the lease of {lease.owner} was lost: claim it again before writing")
        renewed = replace(lease, until=until)
        if self._lease is not None and self._lease.token == lease.token:
            self._lease = renewed
        return renewed

    async def release(self, *, delay: float = 0.0, failure: Mapping[str, Any] | None = None) -> bool:
        """Hand the lease back. False if it was lost, or had expired.

        A branch with an open turn or a waiting request is then ready for the next worker, `delay` seconds from now.
        With a `failure`, a JSON object with `type` and `message`, it is `failed` and waits for `AsyncStore.resume`;
        where the type is "waiting", it waits for a person to answer its pending calls.
        """
        lease = self._held_lease()
        delay = _arguments.delay_seconds(delay)
        text = stopped = None
        if failure is not None:
            text = jsontext.encode(failure, "failure")
            stopped = "waiting" if failure.get("type") == "waiting" else "failed"
        self._database.check_usable()
        async with self._lock:
            released = await release_lease(
                self._database, self.conversation_id, self.branch, lease, delay=delay, stopped=stopped, failure=text
            )
            self._lease = None
            return released

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
        self._pending = checkpoint.pending
        self._texts = texts
        self._state = checkpoint.state_text

    def _advance(self, place: Place, content: Content, phase: str, pending: tuple[PendingCall, ...]) -> Saved:
        outcome, _, turn_index, sub_step, waiting = place
        if (turn_index, sub_step) == self._next_place(phase):
            self.turn_index, self.sub_step, self._phase, self._pending = turn_index, sub_step, phase, pending
            self.suspect = self.suspect and phase == "started"
            self._texts += content.messages
            self._state = self._state if content.state is None else content.state
        return Saved(self.branch, turn_index, sub_step, outcome == "repeated", phase == FINAL_PHASE, waiting)

    def _next_place(self, phase: str) -> tuple[int, int]:
        return (self.turn_index + 1, 0) if phase == "input" else (self.turn_index, self.sub_step + 1)

    async def _read_head(self) -> Checkpoint:
        found = await read_checkpoints(self._database, [(self.conversation_id, self.branch, None, None)])
        if 1 not in found:
            raise NotFoundError(f"{self._name} is not there any more")
        self._take(found[1])
        return found[1]

    async def _turn_again(self, turn_index: int) -> Saved:
        """The newest checkpoint of a turn that its key has begun before."""
        await self._read_head()
        ((sub_step, phase),) = await self._database.fetch("turn_head", {**self._place, "turn": turn_index})
        return Saved(self.branch, turn_index, sub_step, True, phase == FINAL_PHASE)

    async def first_outcome(self, write_id: uuid.UUID, phase: str) -> Saved | None:
        """What a write of that id and phase came to on this branch, if it was made."""
        rows = await self._database.fetch("written", {**self._place, "write_id": write_id})
        for turn_index, sub_step, stored_phase in rows:
            if stored_phase == phase:
                return Saved(self.branch, turn_index, sub_step, True, phase == FINAL_PHASE)
        return None

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
        fetch: Fetch,
    ) -> Place:
        lease = self._lease
        given = _writes.check_write_id(write_id)
        ((outcome, branch, turn_index, sub_step, lease_until, waiting),) = await fetch(
            "save",
            {
                **self._head,
                "token": lease.token if lease else 0,
                "lease_seconds": lease.seconds if lease else 0.0,
                "write_id": given or uuid.uuid4(),
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
            },
        )
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
            case "ended":
                raise ConversationEndedError(f"{self._name} has ended; nothing was written: store.reopen lets it go on")
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


def _phase(content: Content) -> str:
    if content.tool_calls is not None:
        return "tool_calls"
    return "step" if content.tool_results is None else "tool_results"
