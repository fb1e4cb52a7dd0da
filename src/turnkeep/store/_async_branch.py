"""A branch as a writer holds it: turns, sub-steps, leases."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from turnkeep import jsontext, spans
from turnkeep.errors import (
    EmbeddingDimensionsError,
    InvalidInputError,
    KeyReusedError,
    LeaseHeldError,
    LeaseLostError,
    NotFoundError,
    PendingCallsError,
    TurnOpenError,
    UnknownToolCallError,
)
from turnkeep.model import FINAL_PHASE, Checkpoint, Lease, PendingCall, Saved
from turnkeep.store import _arguments, _redacting, _rows, _tool_calls, _vectors, _writes
from turnkeep.store._async_database import AsyncDatabase
from turnkeep.store._async_head import AsyncHead, Fetch, PreparedSave, opening_id
from turnkeep.store._async_leases import lease_terms, release_lease, take_lease
from turnkeep.store._async_transaction import AsyncTransaction
from turnkeep.store._writes import UNCHANGED, Content, Message


class AsyncBranch(AsyncHead):
    """One line of turns of a conversation, and the place where the next write goes.

    Made by `AsyncStore.conversation` and `AsyncStore.fork`. Writes of one handle follow each other, also when
    several tasks call it. Two handles on one branch exclude each other: the second to write gets `ConflictError`
    and `refresh()` brings it up to date (G2). After a write that failed or was cancelled the handle stays where
    it was: the same call with the same `write_id` gives the outcome the first one had, whatever that was (G4).

    Attributes: `conversation_id` (UUID), `external_id` (the text it was asked for by), `branch` (its number),
    `agent_id`, and the head: `turn_index` (-1 before the first turn), `sub_step`, `turn_open`, `messages`, `state`,
    `pending`, `lease`. `suspect` says that its worker has died, and that it has made no progress since,
    `taken_from` whose lease had expired when this handle claimed it.
    """

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
        if self._database.redact is not None:
            messages, state = self._redacted(messages, "message"), _redacting.state(self._database.redact, state)
        content = _writes.content(messages, None, None, state)
        digest = None if key is None else jsontext.digest_list(messages, "message")
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
            return await self._advance(place, content, "input", ())

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
        embedding: Sequence[float] | None = None,
        embedding_model: str | None = None,
    ) -> Saved:
        """Append a sub-step to the open turn. It is durable when this returns (G1).

        `messages` are the new ones only. `tool_calls` become pending; each of `tool_results` answers a pending
        call: the first one with the same id (in `tool_call_id`, `tool_use_id`, `call_id` or `id`), or the one that
        `answers` names in its place. `state` is any JSON value, `UNCHANGED` the one before. `final` ends the turn,
        after all its calls have been answered (`PendingCallsError`). `write_id` makes a retry of your own harmless,
        from any process: the same id gives the first outcome (G4), and with other content `KeyReusedError`. With
        `final`, an `embedding` of the turn by `embedding_model` commits with it, padded with zeros to the column's
        dimensions; without one, a search's worker makes it. A retry under the same `write_id` is not compared by its
        embedding: the first one stays.

        Raises `UnstorableError`, and `EmbeddingDimensionsError` for a vector longer than the column, before anything
        else happens (G3), `ConflictError` if another writer was faster (G2), `LeaseHeldError` or `LeaseLostError`
        (G5), `TurnNotOpenError`.
        """
        given = (messages, tool_calls, tool_results, answers, state, final, write_id, embedding, embedding_model)
        prepared = await self._prepared(given)
        return await self.perform(prepared, self._database.fetch)

    async def save_all(
        self,
        messages: Sequence[Message],
        *,
        tool_calls: Sequence[object] | None = None,
        tool_results: Sequence[object] | None = None,
        answers: Sequence[PendingCall] | None = None,
        state: object = UNCHANGED,
        final: bool = False,
        write_id: uuid.UUID | None = None,
        embedding: Sequence[float] | None = None,
        embedding_model: str | None = None,
    ) -> Saved:
        """Save the whole list of messages, and store only what is new in it (G8).

        For those who hold a list and append to it, shorten it or rewrite parts of it: messages are compared by their
        values with those at the head, and those that were there are not stored again. Where no turn is open, one
        begins, and with `final` it ends at once, in two sub-steps, both or none. Where nothing at all has changed and
        no `write_id` is given, nothing is written, and the head's place is given as `repeated`. All else is as in
        `save`, and so are the errors.
        """
        given = (messages, tool_calls, tool_results, answers, state, final, write_id, embedding, embedding_model)
        prepared = await self._prepared(given, whole=True)
        async with self._lock:
            if again := await self._made_before(prepared):
                return again
            if final and not self.turn_open:
                return await self._whole_turn(prepared)
            return await self._perform(prepared, self._database.fetch)

    async def _prepared(self, given: tuple[Any, ...], *, whole: bool = False) -> PreparedSave:
        """Encode a save. The column of embeddings may have become longer since it was looked at: then once more."""
        try:
            prepared = self.prepared(*given, whole=whole)
        except EmbeddingDimensionsError:
            self._database.check_usable()
            await self._database.learn_revision()
            prepared = self.prepared(*given, whole=whole)
        self._database.check_usable()
        return prepared

    def prepared(
        self,
        messages: Sequence[Message],
        tool_calls: Sequence[object] | None,
        tool_results: Sequence[object] | None,
        answers: Sequence[PendingCall] | None,
        state: object,
        final: bool,
        write_id: uuid.UUID | None,
        embedding: Sequence[float] | None,
        embedding_model: str | None,
        *,
        whole: bool = False,
    ) -> PreparedSave:
        """Encode a save, without any I/O."""
        if self._database.redact is not None:
            messages, tool_calls, tool_results, state = (
                self._redacted(messages, "messages"),
                self._redacted(tool_calls, "tool_calls"),
                self._redacted(tool_results, "tool_results"),
                _redacting.state(self._database.redact, state),
            )
        content = _writes.content(messages, tool_calls, tool_results, state, whole=whole)
        if embedding is not None or embedding_model is not None:
            vector, model = _vectors.given(embedding, embedding_model, self._database.dimensions, final=final)
            content = replace(content, embedding=vector, model=model)
        phase = FINAL_PHASE if final else _phase(content)
        return PreparedSave(content, phase, tuple(_tool_calls.named(tool_results or (), answers)), write_id, whole)

    async def perform(self, save: PreparedSave, fetch: Fetch) -> Saved:
        """Make a save by means of `fetch`; when that has returned, the handle goes on from there."""
        async with self._lock:
            return await self._perform(save, fetch)

    async def _perform(self, save: PreparedSave, fetch: Fetch) -> Saved:
        content, phase, whole, parts = save.content, save.phase, None, None
        if save.whole:
            whole = content.messages
            content, parts, same = self._parts(content)
            phase = phase if self.turn_open else "input"
            if same and save.write_id is None and self._says_nothing_new(content, phase):
                return await self._as_it_is()
        try:
            answered, open_calls = self._settled(save, content, phase, self._next_place(phase))
        except (PendingCallsError, UnknownToolCallError):
            # A retry from another handle: what it answers may have been answered by its first try, which the
            # database compares it with.
            if save.write_id is None or save.whole or not await self.first_outcome(save.write_id, phase):
                raise
            answered, open_calls = [], self._pending
        numbers = [number for call in answered for number in call.place]
        place = await self._write(content, phase, save.write_id, answers=numbers, parts=parts, fetch=fetch)
        return await self._advance(place, content, phase, open_calls, whole)

    def _settled(
        self, save: PreparedSave, content: Content, phase: str, at: tuple[int, int]
    ) -> tuple[list[PendingCall], tuple[PendingCall, ...]]:
        """The calls that a save at a place answers, and those that wait for a result after it."""
        issued: list[PendingCall] = []
        if content.tool_calls is not None:
            issued = _rows.issued(content.tool_calls, *at, self.branch, self.conversation_id)
        pending = (*self._pending, *issued)
        answered = _tool_calls.answered(save.named, pending)
        open_calls = tuple(call for call in pending if call not in answered)
        if phase == FINAL_PHASE and open_calls:
            names = ", ".join(map(str, open_calls))
            raise PendingCallsError(
                f"{self._name}: the turn can't end while tool calls have no result ({names}): save a result "
                "for each; where the outcome is unknown, one that says so",
                open_calls,
            )
        return answered, open_calls

    def _parts(self, content: Content) -> tuple[Content, list[int] | None, bool]:
        """A whole list as what is new in it, the parts it is made of, and whether it is the one at the head."""
        made = spans.parts(self._texts, content.messages)
        new = replace(content, messages=_writes.checked([content.messages[index] for index in made.new], "messages"))
        return new, None if made.is_longer(len(self._texts)) else made.numbers, made.is_same(len(self._texts))

    async def _whole_turn(self, save: PreparedSave) -> Saved:
        """Begin a turn with a whole list and end it, in one statement."""
        content, parts, same = self._parts(save.content)
        at = self._next_place("input")
        answered, _ = self._settled(save, content, FINAL_PHASE, at)
        if same and save.write_id is None and self._says_nothing_new(content, "input"):
            return await self._as_it_is()
        place = await self._write(
            content,
            FINAL_PHASE,
            save.write_id,
            answers=[number for call in answered for number in call.place],
            parts=parts,
            whole_turn=True,
            fetch=self._database.fetch,
        )
        self._take_turn(at[0], content, save.content.messages)
        return Saved(self.branch, *place[2:4], place[0] == "repeated", True, place[4])

    def _says_nothing_new(self, content: Content, phase: str) -> bool:
        """Whether a save of an unchanged list changes nothing else either."""
        return (
            phase != FINAL_PHASE
            and content.tool_calls is None
            and content.tool_results is None
            and content.state in (None, self._state)
        )

    async def _made_before(self, save: PreparedSave) -> Saved | None:
        """What a save of a whole list came to, if it was made: its list has then to be the same (G4).

        Which of its messages were new depends on the head of the time, so the lists are compared here.
        """
        rows = [] if save.write_id is None else await self._written(save.write_id)
        if not rows:
            return None
        ((turn_index, sub_step, phase),) = rows
        found = await self._read_at(turn_index, sub_step)
        calls = found.tool_calls_text
        if phase == FINAL_PHASE and calls is None and save.content.tool_calls is not None and save.write_id is not None:
            opening = await self.first_outcome(opening_id(save.write_id), "input")
            # Where that has been pruned, what it held is taken for the same.
            calls = (await self._read_at(opening.turn_index, 0)).tool_calls_text if opening else save.content.tool_calls
        stored = (found.message_texts, _listed(calls), _listed(found.tool_results_text))
        given = (save.content.messages, _listed(save.content.tool_calls), _listed(save.content.tool_results))
        if (phase == FINAL_PHASE) != (save.phase == FINAL_PHASE) or not all(map(spans.same_values, stored, given)):
            self._refuse("write_id_reused", turn_index, sub_step, None)
        if (turn_index, sub_step) == self._next_place(phase):
            self._take(found)
        return Saved(self.branch, turn_index, sub_step, True, phase == FINAL_PHASE)

    async def mark_started(self, calls: Sequence[PendingCall], *, write_id: uuid.UUID | None = None) -> Saved:
        """Write down that these pending calls are about to run, before they do.

        After a crash `attempts` of a call tells whether it can have run. Raises what `save` raises.
        """
        content = _writes.content((), None, None, UNCHANGED)
        self._database.check_usable()
        async with self._lock:
            known = calls and all(call.place in [one.place for one in self._pending] for call in calls)
            if not known and (write_id is None or not await self.first_outcome(write_id, "started")):
                names = ", ".join(map(str, self._pending)) or "none"
                raise UnknownToolCallError(f"calls: pending are {names}, and at least one of them is needed", calls)
            places = [call.place for call in calls]
            numbers = [number for one in places for number in one]
            place = await self._write(content, "started", write_id, answers=numbers, fetch=self._database.fetch)
            pending = tuple(
                replace(call, attempts=call.attempts + 1) if call.place in places else call for call in self._pending
            )
            return await self._advance(place, content, "started", pending)

    async def take_request(self, *, state: object = UNCHANGED) -> Saved | None:
        """Begin the next turn with the oldest request that waits on this branch, or give None where none does.

        The turn is begun and the request taken in one statement (G1). Raises what `begin_turn` raises.
        """
        content = _writes.content((), None, None, _redacting.state(self._database.redact, state))
        self._database.check_usable()
        lease = self._lease
        async with self._lock:
            self._sent = uuid.uuid4()
            ((outcome, turn_index, sub_step, lease_until, _, body),) = await self._database.fetch(
                "take",
                {
                    **self._head,
                    "token": lease.token if lease else 0,
                    "lease_seconds": lease.seconds if lease else 0.0,
                    "write_id": self._sent,
                    "agent": self.agent_id,
                    "state": content.state,
                    "seen": self._seen,
                },
            )
            if outcome == "none":
                return None
            self._refuse(outcome, turn_index, sub_step, lease_until)
            if lease is not None and outcome == "saved":
                self._lease = replace(lease, until=lease_until)
            if outcome == "saved" and body.startswith("{"):
                content.messages.append(body)
                return await self._advance((outcome, self.branch, turn_index, sub_step, False), content, "input", ())
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
            if not isinstance(lease, Lease):
                raise LeaseHeldError(f"{self._name}: {lease}")
            self._lease = lease
            await self._read_head()
            return self._lease

    @classmethod
    def claimed(
        cls,
        database: AsyncDatabase,
        checkpoint: Checkpoint,
        lease: Lease,
        agent_id: str,
        *,
        suspect: bool,
        taken_from: str | None,
    ) -> AsyncBranch:
        """A handle that holds a lease already.

        `suspect` says that its workers have died before, `taken_from` who has let the lease expire, if anybody has.
        """
        branch = cls(database, checkpoint, agent_id)
        branch._lease = lease
        branch.suspect = suspect
        branch.taken_from = taken_from
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
            shown = failure if self._database.redact is None else self._redacted([failure], "failure")[0]
            text = _writes.readable_text(shown, "failure")
            stopped = "waiting" if failure.get("type") == "waiting" else "failed"
        self._database.check_usable()
        async with self._lock:
            released = await release_lease(
                self._database, self.conversation_id, self.branch, lease, delay=delay, stopped=stopped, failure=text
            )
            self._lease = None
            return released

    def _redacted(self, values: Any, name: str) -> Any:
        """What is stored in the place of these."""
        return _redacting.values(self._database.redact, values, name)

    async def _turn_again(self, turn_index: int) -> Saved:
        """The newest checkpoint of a turn that its key has begun before."""
        await self._read_head()
        rows = await self._database.fetch("turn_head", {**self._place, "turn": turn_index})
        for sub_step, phase in rows:
            return Saved(self.branch, turn_index, sub_step, True, phase == FINAL_PHASE)
        raise NotFoundError(f"{self._name} is not there any more")


def _phase(content: Content) -> str:
    if content.tool_calls is not None:
        return "tool_calls"
    return "step" if content.tool_results is None else "tool_results"


def _listed(text: str | None) -> list[str]:
    """A list of JSON values, if there is one, as a list of the one text."""
    return [] if text is None else [text]
