"""Documents filled: the text of turns that have ended, cut into chunks."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turnkeep.errors import (
    CorruptionError,
    DatabaseError,
    InvalidInputError,
    PermissionDeniedError,
    SchemaError,
    UnavailableError,
)
from turnkeep.model import conversation_uuid
from turnkeep.search.chunks import CHUNK, MOST_CHUNKS, cut
from turnkeep.search.text import USUAL, Kind, words
from turnkeep.store import AsyncStore
from turnkeep.store._documents import Claimed, Documents, Failure, Turn

MOST_TRIES = 8
FIRST_DELAY = 5.0
LONGEST_DELAY = 3600.0

CLAIM_SECONDS = 60.0
_READ_AT_ONCE = 4 * 1024 * 1024
_ENOUGH_CHARACTERS = CHUNK * MOST_CHUNKS
_LONG = 256 * 1024  # bytes of JSON that are not worth holding everything else up for


@dataclass(frozen=True)
class FillReport:
    """What a call of `fill_documents` has come to. `left` says how many turns still wait for their text."""

    filled: int
    failed: int
    left: int


async def fill_documents(
    store: AsyncStore,
    limit: int = 100,
    *,
    conversation: str | uuid.UUID | None = None,
    include: Iterable[Kind] = USUAL,
    model: str | None = None,
    take_over: bool = False,
) -> FillReport:
    """Fill the text of turns that have ended, at most `limit`: those that have waited longest; of one `conversation`.

    `include` says whose words count (see `turnkeep.search.text.KINDS`). With a `model`, the chunks then wait for their
    embedding by it. With `take_over`, those of the conversation are filled too that a worker is at or has put off.
    """
    if take_over and conversation is None:
        raise InvalidInputError("take_over: name the conversation as well")
    named = None if conversation is None else conversation_uuid(conversation)
    filler = Filler(store, include=include, model=model)
    filled, failed = await filler.fill(limit, conversation=named, take_over=take_over)
    left = await filler.left(named)
    return FillReport(filled, failed, left)


@dataclass(frozen=True)
class Retries:
    """How often a document is tried that fails, and the seconds before the second try."""

    most: int = MOST_TRIES
    first_delay: float = FIRST_DELAY


class Filler:
    """Fills documents: claims them, reads their turns, and writes their text."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        include: Iterable[Kind] = USUAL,
        model: str | None = None,
        retries: Retries | None = None,
    ) -> None:
        self._documents = Documents(store)
        self._include = frozenset(include)
        self._model = model
        self._retries = retries or Retries()

    async def fill(
        self, limit: int, *, conversation: uuid.UUID | None = None, take_over: bool = False
    ) -> tuple[int, int]:
        """Fill at most `limit` turns. Gives how many were, and how many failed.

        One that a worker has died over is taken up alone: it may have been the cause.
        """
        if conversation is not None:
            claimed = await self._documents.claim_fill_of(conversation, limit, CLAIM_SECONDS, over=take_over)
            return await self.fill_claimed(claimed)
        alone = await self.fill_claimed(await self._documents.claim_fill(1, CLAIM_SECONDS, lapsed=True))
        rest = limit - sum(alone)
        others = await self.fill_claimed(await self._documents.claim_fill(rest, CLAIM_SECONDS)) if rest else (0, 0)
        return alone[0] + others[0], alone[1] + others[1]

    async def fill_claimed(self, claimed: Sequence[Claimed]) -> tuple[int, int]:
        """Fill these. Gives how many were, and how many failed."""
        done = [await self._fill_one(document) for document in claimed]
        return done.count(True), done.count(False)

    async def left(self, conversation: uuid.UUID | None) -> int:
        """How many turns wait for their text."""
        return await self._documents.unfilled(conversation)

    async def _fill_one(self, document: Claimed) -> bool:
        """Fill one turn. False where that has failed: it is tried again, or given up."""
        try:
            if document.tries >= self._retries.most:
                raise CorruptionError(f"{document.tries} workers have not come to an end with it")
            turn = await self._documents.turn(document, _READ_AT_ONCE)
            text, unread = ("", 0) if turn is None else await self._text(document, turn)
            parts = cut(text)
            created_at = None if turn is None else turn.created_at
            await self._documents.fill(document, parts.chunks, parts.left_out + unread, created_at, self._model)
        except (UnavailableError, SchemaError, PermissionDeniedError):
            raise
        except DatabaseError as error:
            wait = delay(document.tries, self._retries.first_delay)
            await self._documents.put_off([Failure(document, str(error), wait)], self._retries.most)
            return False
        return True

    async def _text(self, document: Claimed, turn: Turn) -> tuple[str, int]:
        """The words of a turn, and how many bytes of its messages were not looked at for want of room."""
        texts: list[str] = []
        characters = unread = 0
        for message in turn.messages:
            if characters > _ENOUGH_CHARACTERS:
                unread += message.size
                continue
            body = message.text if message.text is not None else await self._documents.body(document, message)
            found = words(body, self._include) if len(body) < _LONG else await self._in_thread(body)
            texts += [found] if found else []
            characters += len(found)
        return "\n\n".join(texts), unread

    async def _in_thread(self, body: str) -> str:
        return await asyncio.to_thread(words, body, self._include)


def delay(tries: int, first: float) -> float:
    """Seconds until the next try after so many that failed, with jitter."""
    return float(min(LONGEST_DELAY, first * 2.0 ** min(tries, 30)) * random.uniform(0.75, 1.0))
