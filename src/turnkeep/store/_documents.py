"""Documents as work: claimed, filled, given embeddings, put off, counted. What is decided of them is the search's.

A claim is a time until which nobody else takes a row up, and an id without which nothing is written back. Every
statement stands alone and may be sent twice (G4): what a lost answer had claimed comes up again when its time is over.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from turnkeep.errors import CorruptionError
from turnkeep.store._reader import Reader
from turnkeep.store._vectors import Vector

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore


@dataclass(frozen=True, order=True)
class Claimed:
    """A document under a claim. `tries` counts those that failed, and those of workers that died of it."""

    conversation_id: uuid.UUID
    branch: int
    turn_index: int
    chunk: int
    tries: int
    text: str | None = field(repr=False)
    model: str | None
    claim: uuid.UUID = field(repr=False)


@dataclass(frozen=True)
class TurnMessage:
    """A message that a turn has added. `text` is its exact JSON text, None where it has not been read."""

    branch: int
    position: int
    size: int
    text: str | None = field(repr=False)


@dataclass(frozen=True)
class Turn:
    """A turn that has ended, and what it has added."""

    created_at: datetime
    messages: tuple[TurnMessage, ...]


@dataclass(frozen=True)
class Failure:
    """Why a document was not done, and in how many seconds it is tried again. None: it was not its fault."""

    document: Claimed
    error: str | None
    seconds: float


@dataclass(frozen=True)
class Lag:
    """What is left to do: turns without their text, chunks without their embedding, and dead letters of both kinds.

    `archived` are turns that went into the archive without their text: nothing is done for them until they are back.
    """

    to_fill: int
    oldest_to_fill: datetime | None
    to_embed: int
    oldest_to_embed: datetime | None
    dead_texts: int
    dead_embeddings: int
    archived: int = 0


@dataclass(frozen=True)
class DeadLetter:
    """A document that has been given up, and why."""

    conversation_id: uuid.UUID
    branch: int
    turn_index: int
    chunk: int
    tries: int
    error: str


class Documents:
    """The documents of an open store."""

    def __init__(self, store: AsyncStore) -> None:
        self._reader = Reader(store, "sql/documents.sql")
        self._store = store

    @property
    def dimensions(self) -> int:
        """How many dimensions the column of embeddings has, as far as is known."""
        return self._store.dimensions

    async def look_again(self) -> None:
        """Learn how many dimensions the column has now. Raises `SchemaError`."""
        await self._store.check_revision()

    async def claim_fill(self, limit: int, seconds: float, *, lapsed: bool = False) -> list[Claimed]:
        """Claim turns whose text is to be filled; with `lapsed`, those that somebody has claimed and not done."""
        given = _claim(limit, seconds)
        return _claimed(await self._reader.fetch("claim_fill", {**given, "lapsed": lapsed}), given)

    async def claim_fill_of(
        self, conversation: uuid.UUID, limit: int, seconds: float, *, over: bool = False
    ) -> list[Claimed]:
        """Claim turns of a conversation whose text is to be filled; with `over`, those too that somebody is at."""
        given = _claim(limit, seconds)
        asked = {**given, "conversation": conversation, "over": over}
        return _claimed(await self._reader.fetch("claim_fill_of", asked), given)

    async def claim_embed(self, limit: int, seconds: float, *, lapsed: bool = False) -> list[Claimed]:
        """Claim chunks to be given an embedding; with `lapsed`, those that somebody has claimed and not done."""
        given = _claim(limit, seconds)
        return _claimed(await self._reader.fetch("claim_embed", {**given, "lapsed": lapsed}), given)

    async def turn(self, document: Claimed, most_bytes: int) -> Turn | None:
        """What a turn has added, None where its end is not there (any more). Texts up to so many bytes are read."""
        rows = await self._reader.fetch("turn", {**_turn(document), "most": most_bytes})
        if not rows:
            return None
        if any(position is not None and size is None for _, _, position, size, _ in rows):
            raise CorruptionError(f"{_named(document)}: messages that its checkpoint holds are not there")
        return Turn(rows[0][0], tuple(TurnMessage(*row[1:]) for row in rows if row[2] is not None))

    async def body(self, document: Claimed, message: TurnMessage) -> str:
        """The text of a message that was too large to come with the others."""
        rows = await self._reader.fetch(
            "body",
            {"conversation": document.conversation_id, "branch": message.branch, "position": message.position},
        )
        if not rows:
            raise CorruptionError(f"{_named(document)}: a message that its checkpoint holds is not there")
        return str(rows[0][0])

    async def fill(
        self, document: Claimed, chunks: Sequence[str], left_out: int, created_at: datetime | None, model: str | None
    ) -> bool:
        """Keep a turn's text; chunks that are not of this `model` then wait for their embedding. False: it is not ours.

        Where the branch is not there, because its conversation is archived, nothing is left to be done for now.
        """
        parameters = {
            **_turn(document),
            "claim": document.claim,
            "chunks": [*chunks],
            "left_out": left_out,
            "created": created_at,
            "model": model,
        }
        ((outcome,),) = await self._reader.fetch("fill", parameters)
        if outcome == "lost":
            await self.settle([document])
        return bool(outcome == "filled")

    async def embedded(self, documents: Sequence[Claimed], vectors: Sequence[Vector], model: str) -> int:
        """Keep embeddings, and count those that were still ours to keep. All vectors are of one length."""
        pairs = sorted(zip(documents, vectors, strict=True), key=lambda pair: pair[0])
        parameters = {
            **_places([document for document, _ in pairs]),
            "vectors": [number for _, vector in pairs for number in vector],
            "model": model,
        }
        ((count,),) = await self._reader.fetch("embedded", parameters)
        return int(count)

    async def put_off(self, failures: Sequence[Failure], most_tries: int) -> int:
        """Give claims back, to be tried again later, and count those that have been tried too often: dead letters."""
        if not failures:
            return 0
        failures = sorted(failures, key=lambda failure: failure.document)
        parameters = {
            **_places([failure.document for failure in failures]),
            "errors": [failure.error for failure in failures],
            "seconds": [failure.seconds for failure in failures],
            "most": most_tries,
        }
        return sum(dead for (dead,) in await self._reader.fetch("put_off", parameters))

    async def settle(self, documents: Sequence[Claimed]) -> None:
        """Say that nothing is left to be done for these."""
        if documents:
            await self._reader.fetch("settle", _places(sorted(documents)))

    async def requeue(self, model: str, limit: int) -> int:
        """Let chunks that have no embedding of this model, and for which nothing is to be done, wait for one."""
        return len(await self._reader.fetch("requeue", {"model": model, "limit": limit}))

    async def retry_dead(self, limit: int) -> int:
        """Let some dead letters be tried as if they never had been, and count them."""
        return len(await self._reader.fetch("retry_dead", {"limit": limit}))

    async def unfilled(self, conversation: uuid.UUID | None) -> int:
        """How many turns wait for their text, of a conversation or of all."""
        ((count,),) = await self._reader.fetch("unfilled", {"conversation": conversation})
        return int(count)


async def read_lag(store: AsyncStore, model: str | None = None) -> Lag:
    """Count what is left to do; with a `model`, those chunks too whose embedding is of another one."""
    reader = Reader(store, "sql/documents.sql")
    ((to_fill, oldest_to_fill),) = await reader.fetch("lag_fill")
    ((to_embed, oldest_to_embed),) = await reader.fetch("lag_embed", {"model": model})
    ((dead_texts, dead_embeddings),) = await reader.fetch("lag_dead")
    ((archived,),) = await reader.fetch("lag_archived")
    return Lag(to_fill, oldest_to_fill, to_embed, oldest_to_embed, dead_texts, dead_embeddings, archived)


async def read_dead(store: AsyncStore, limit: int = 100) -> list[DeadLetter]:
    """Some of the dead letters, and why each was given up."""
    rows = await Reader(store, "sql/documents.sql").fetch("dead", {"limit": limit})
    return [DeadLetter(*row) for row in rows]


def _claim(limit: int, seconds: float) -> dict[str, Any]:
    return {"limit": limit, "seconds": seconds, "claim": uuid.uuid4()}


def _claimed(rows: Sequence[Sequence[Any]], given: dict[str, Any]) -> list[Claimed]:
    return [Claimed(*[*row, given["claim"]]) for row in rows]


def _turn(document: Claimed) -> dict[str, Any]:
    return {"conversation": document.conversation_id, "branch": document.branch, "turn": document.turn_index}


def _places(documents: Sequence[Claimed]) -> dict[str, Any]:
    """Documents of one claim, in columns."""
    return {
        "claim": documents[0].claim,
        "conversations": [document.conversation_id for document in documents],
        "branches": [document.branch for document in documents],
        "turns": [document.turn_index for document in documents],
        "chunks": [document.chunk for document in documents],
    }


def _named(document: Claimed) -> str:
    return f"conversation {document.conversation_id}, branch {document.branch}, turn {document.turn_index}"
