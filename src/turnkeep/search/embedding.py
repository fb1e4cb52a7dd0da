"""One batch of chunks given their embeddings, whatever the provider makes of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from turnkeep.errors import (
    ConfigurationError,
    DatabaseError,
    EmbeddingDimensionsError,
    EmbeddingError,
    EmbeddingRefusedError,
    EmbeddingUnavailableError,
    PermissionDeniedError,
    PoolExhaustedError,
    SchemaError,
    UnavailableError,
)
from turnkeep.search.documents import Retries, delay
from turnkeep.search.provider import Provider, checked
from turnkeep.store._documents import Claimed, Documents, Failure
from turnkeep.store._vectors import Vector

log = logging.getLogger("turnkeep.search")

_ANY_TEXT = "turnkeep"
_BROKEN = 500  # a server that answers so may have stumbled over one text


class Batch:
    """Chunks under one claim, on their way to their embeddings.

    A provider that is away is nobody's fault: nothing is counted. A batch that is refused is halved until the text that
    is to blame is found, and only that one counts; but where any other text is refused as well, it is the provider that
    is to blame.
    """

    def __init__(self, documents: Documents, provider: Provider, retries: Retries) -> None:
        self._documents = documents
        self._provider = provider
        self._retries = retries
        self._others_pass = False
        self.left: list[Claimed] = []
        self.embedded = 0
        self.failed = 0

    async def run(self, claimed: Sequence[Claimed]) -> None:
        """Embed them. What is still to be done, whatever is raised, is `left`.

        Raises `EmbeddingUnavailableError`, `ConfigurationError` and `EmbeddingDimensionsError`.
        """
        self.left = list(claimed)
        await self._settle()
        await self._embed(self.left[:])

    async def _settle(self) -> None:
        """Drop what needs nothing, and what has been tried too often."""
        done = [one for one in self.left if one.model == self._provider.name]
        dead = [one for one in self.left if one not in done and one.tries >= self._retries.most]
        await self._documents.settle(done)
        await self._give_up([Failure(one, f"{one.tries} workers have not come to an end with it", 0) for one in dead])
        self.left = [one for one in self.left if one not in done and one not in dead]

    async def _embed(self, part: Sequence[Claimed]) -> None:
        if not part:
            return
        try:
            vectors = await self._ask([str(one.text) for one in part])
        except (ConfigurationError, EmbeddingDimensionsError):
            raise
        except EmbeddingUnavailableError as error:
            if error.status != _BROKEN:
                raise
            await self._blame(part, error)
        except EmbeddingError as error:
            await self._blame(part, error)
        else:
            self._others_pass = True
            await self._keep(part, vectors)

    async def _keep(self, part: Sequence[Claimed], vectors: Sequence[Vector]) -> None:
        """Write embeddings. Where the database refuses one of them, the others are kept, and that one counts."""
        try:
            self.embedded += await self._documents.embedded(part, vectors, self._provider.name)
        except (UnavailableError, PoolExhaustedError, SchemaError, PermissionDeniedError):
            raise
        except DatabaseError as error:
            if len(part) > 1:
                half = len(part) // 2
                await self._keep(part[:half], vectors[:half])
                await self._keep(part[half:], vectors[half:])
                return
            await self._refused(part[0], error)
        else:
            self._drop(part)

    async def _refused(self, document: Claimed, error: Exception) -> None:
        log.warning("%s: no embedding: %s", _named(document), error)
        await self._give_up([Failure(document, str(error), delay(document.tries, self._retries.first_delay))])

    async def _blame(self, part: Sequence[Claimed], error: EmbeddingError) -> None:
        """Find out which text is to blame, if one is."""
        if not self._others_pass:
            await try_any_text(self._provider, self._documents.dimensions, error)
            self._others_pass = True
        if len(part) > 1:
            half = len(part) // 2
            await self._embed(part[:half])
            await self._embed(part[half:])
            return
        await self._refused(part[0], error)

    async def _ask(self, texts: Sequence[str]) -> list[Vector]:
        vectors = await self._provider.embed(texts)
        return checked(vectors, len(texts), self._documents.dimensions, self._provider.name)

    async def _give_up(self, failures: Sequence[Failure]) -> None:
        await self._documents.put_off(failures, self._retries.most)
        self.failed += len(failures)
        self._drop([failure.document for failure in failures])

    def _drop(self, done: Sequence[Claimed]) -> None:
        self.left = [one for one in self.left if one not in done]


async def try_any_text(provider: Provider, dimensions: int, cause: Exception | None = None) -> None:
    """Raise `EmbeddingUnavailableError` if the provider has no embedding of use for any text."""
    try:
        checked(await provider.embed([_ANY_TEXT]), 1, dimensions, provider.name)
    except EmbeddingRefusedError as error:
        raise EmbeddingUnavailableError(f"no text is taken: {error}", status=error.status) from (cause or error)
    except (EmbeddingUnavailableError, EmbeddingDimensionsError):
        raise
    except EmbeddingError as error:
        raise EmbeddingUnavailableError(f"no text gets a vector of use: {error}") from (cause or error)


def _named(document: Claimed) -> str:
    place = f"conversation {document.conversation_id}, branch {document.branch}, turn {document.turn_index}"
    return f"{place}, chunk {document.chunk}"
