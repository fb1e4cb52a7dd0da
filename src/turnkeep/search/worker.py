"""The search's worker: fills the text of turns that have ended, and gives it embeddings."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from turnkeep.errors import (
    DatabaseError,
    EmbeddingDimensionsError,
    EmbeddingUnavailableError,
    InvalidInputError,
    PermissionDeniedError,
    PoolExhaustedError,
    SchemaError,
    TurnkeepError,
    UnavailableError,
)
from turnkeep.model import check_text
from turnkeep.search.documents import FIRST_DELAY, MOST_TRIES, Filler, Retries, delay
from turnkeep.search.embedding import Batch, try_any_text
from turnkeep.search.provider import Provider
from turnkeep.search.text import KINDS, USUAL, Kind
from turnkeep.store import AsyncStore
from turnkeep.store._documents import Claimed, Documents, Failure
from turnkeep.store._vectors import MOST_MODEL_CHARACTERS

log = logging.getLogger("turnkeep.search")

_FILLED_AT_ONCE = 50
_REQUEUED_AT_ONCE = 500
_CLAIM_SECONDS = 180.0
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 60.0
_PATIENCE = 3  # failures in a row after which a worker that was to come to an end gives up
_MOST_BATCH = 2048
_TOO_MANY = 429


@dataclass(frozen=True)
class Progress:
    """What has been done: turns filled, chunks embedded, chunks queued for another model, failures of both stages."""

    filled: int = 0
    embedded: int = 0
    requeued: int = 0
    failed: int = 0

    def __bool__(self) -> bool:
        return self != Progress()

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            self.filled + other.filled,
            self.embedded + other.embedded,
            self.requeued + other.requeued,
            self.failed + other.failed,
        )


class EmbedWorker:
    """Fills documents, and with a `provider` makes their embeddings.

    Any number of workers may do so at once, in any number of processes: each row is claimed by one of them, and what
    a killed one has left is taken up when its claim has run out. `include` says whose words are searched (see
    `turnkeep.search.text.KINDS`), `batch` how many chunks are embedded at once. A text that fails is tried
    `most_tries` times, at growing intervals from `first_delay` seconds, and is a dead letter then. Chunks that have an
    embedding of another model are given one of this provider's when nothing else is left to do: all workers of a
    schema should have the same. It looks for work about every `poll_seconds`.
    """

    def __init__(
        self,
        store: AsyncStore,
        provider: Provider | None = None,
        *,
        include: Iterable[Kind] = USUAL,
        batch: int = 64,
        most_tries: int = MOST_TRIES,
        first_delay: float = FIRST_DELAY,
        poll_seconds: float = 1.0,
    ) -> None:
        include = frozenset(include)
        if unknown := sorted(include - set(KINDS)):
            raise InvalidInputError(f"include: {unknown[0]!r} is none of {', '.join(KINDS)}")
        for name, number, most in (("batch", batch, _MOST_BATCH), ("most_tries", most_tries, 1000)):
            if not isinstance(number, int) or not 1 <= number <= most:
                raise InvalidInputError(f"{name}: expected a number from 1 to {most}, got {number!r}")
        model = None
        if provider is not None:
            model = check_text(provider.name, "provider.name", MOST_MODEL_CHARACTERS)
        self._retries = Retries(most_tries, first_delay)
        self._provider = provider
        self._model = model
        self._documents = Documents(store)
        self._filler = Filler(store, include=include, model=model, retries=self._retries)
        self._largest = batch
        self._size = batch
        self._poll_seconds = poll_seconds
        self._stopping = asyncio.Event()
        self._heard = False
        self._failures = 0
        self._rest_until = 0.0
        self._unreported = Progress()
        self._turned_down: dict[tuple[object, ...], int] = {}

    def stop(self) -> None:
        """Let `run` come to its end: what is claimed is handed back."""
        self._stopping.set()

    async def retry_dead(self) -> int:
        """Let all dead letters be tried as if they never had been, and count them."""
        count = 0
        while some := await self._documents.retry_dead(_REQUEUED_AT_ONCE):
            count += some
        return count

    async def run(self, *, drain: bool = False, tell: Callable[[Progress], None] | None = None) -> Progress:
        """Work until `stop` is called; with `drain`, until nothing is due. `tell` hears of each round's progress.

        A database or a provider that goes away is waited for; with `drain`, the provider not for long. Raises what no
        waiting mends: `ConfigurationError`, `SchemaError`, `EmbeddingDimensionsError`.
        """
        done = Progress()
        while not self._stopping.is_set():
            try:
                made = await self.run_once()
            except (SchemaError, PermissionDeniedError):
                raise
            except EmbeddingDimensionsError:
                known = self._documents.dimensions
                await self._documents.look_again()
                if self._documents.dimensions <= known:
                    raise
                continue
            except DatabaseError as error:
                if drain:
                    raise
                log.warning("no documents can be made: %s", error)
                made = Progress()
                await self._look_again(error)
            except EmbeddingUnavailableError as error:
                if drain and self._failures >= _PATIENCE:
                    raise
                log.warning("no embeddings for %.1f s: %s", self._rest_until - time.monotonic(), error)
                made = Progress()
            done += made
            if made and tell is not None:
                tell(made)
            if not made and drain and self._failures == 0:
                break
            if not made:
                await self._pause()
        return done

    async def _look_again(self, error: DatabaseError) -> None:
        """See whether the column of embeddings has changed, where the database is there and does not take them."""
        if not isinstance(error, UnavailableError | PoolExhaustedError):
            with suppress(UnavailableError):
                await self._documents.look_again()

    async def run_once(self) -> Progress:
        """Do one round: fill some turns, embed some chunks; nothing to do is a `Progress` that is false.

        Raises `EmbeddingUnavailableError` where no embeddings can be had at the moment; nothing is lost by it.
        """
        filled, failed = await self._filler.fill(_FILLED_AT_ONCE)
        done, self._unreported = self._unreported + Progress(filled=filled, failed=failed), Progress()
        if self._provider is None or self._model is None or time.monotonic() < self._rest_until:
            return done
        try:
            if self._failures:
                await self._ask_again(self._provider)
            done += await self._embed(self._provider, 1, lapsed=True)
            done += await self._embed(self._provider, self._size, lapsed=False)
        except EmbeddingUnavailableError:
            if not done:
                raise
            return done
        if not done and not self._stopping.is_set():
            done += Progress(requeued=await self._documents.requeue(self._model, _REQUEUED_AT_ONCE))
        return done

    async def _embed(self, provider: Provider, limit: int, *, lapsed: bool) -> Progress:
        if self._stopping.is_set():
            return Progress()
        claimed = await self._documents.claim_embed(limit, _CLAIM_SECONDS, lapsed=lapsed)
        if not claimed:
            return Progress()
        batch = Batch(self._documents, provider, self._retries)
        try:
            await self._unless_stopped(batch, claimed)
        except EmbeddingUnavailableError as error:
            self._unreported += Progress(embedded=batch.embedded, failed=batch.failed)
            # A text that was alone when a provider failed that had just answered may be what it fails of.
            guilty = len(claimed) == 1 and self._heard and (error.status != _TOO_MANY or self._suspected(claimed[0]))
            await self._back_off(error, batch.left, str(error) if guilty else None)
            raise
        except BaseException:
            await self._hand_back(batch.left)
            raise
        if batch.left:
            await self._hand_back(batch.left)
        else:
            self._heard, self._failures = True, 0
            self._size = min(self._largest, self._size * 2)
        return Progress(embedded=batch.embedded, failed=batch.failed)

    def _suspected(self, document: Claimed) -> bool:
        """Whether a text has been turned down as one too many so often, alone, that others are not the reason."""
        place = (document.conversation_id, document.branch, document.turn_index, document.chunk)
        if len(self._turned_down) > _REQUEUED_AT_ONCE:
            self._turned_down.clear()
        self._turned_down[place] = times = self._turned_down.get(place, 0) + 1
        if times < _PATIENCE:
            return False
        del self._turned_down[place]
        return True

    async def _unless_stopped(self, batch: Batch, claimed: Sequence[Claimed]) -> None:
        """Embed a batch, or give it up when told to stop."""
        embedding = asyncio.ensure_future(batch.run(claimed))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({embedding, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not embedding.done():
                embedding.cancel()
                with suppress(asyncio.CancelledError):
                    await embedding
        if not embedding.cancelled():
            embedding.result()

    async def _ask_again(self, provider: Provider) -> None:
        """See whether a provider that had none gives embeddings again, before anything is claimed."""
        try:
            await try_any_text(provider, self._documents.dimensions)
        except EmbeddingUnavailableError as error:
            await self._back_off(error)
            raise
        self._heard, self._failures = True, 0

    async def _back_off(
        self, error: EmbeddingUnavailableError, left: Sequence[Claimed] = (), reason: str | None = None
    ) -> None:
        """Rest, and put off what was not done; for a `reason`, it is to blame. The next batch is of one text."""
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(self._failures, 30)) * random.uniform(0.75, 1.0)
        wait = max(wait, error.retry_after or 0.0)
        self._heard = False
        self._failures += 1
        self._size = 1
        self._rest_until = time.monotonic() + wait * 1.1  # what is put off is due by then
        failures = [
            Failure(one, reason, wait if reason is None else delay(one.tries, self._retries.first_delay))
            for one in left
        ]
        await self._documents.put_off(failures, self._retries.most)

    async def _hand_back(self, left: Sequence[Claimed]) -> None:
        """Give claims back at once, whatever has happened."""
        with suppress(TurnkeepError):
            await self._documents.put_off([Failure(one, None, 0.0) for one in left], self._retries.most)

    async def _pause(self) -> None:
        """Wait for the next look, or until told to stop."""
        seconds = self._poll_seconds * random.uniform(0.5, 1.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
