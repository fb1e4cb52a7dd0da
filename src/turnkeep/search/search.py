"""Search over the turns of all conversations: by words, by meaning, or both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from turnkeep.errors import (
    ConfigurationError,
    EmbeddingDimensionsError,
    EmbeddingError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
)
from turnkeep.search.documents import CLAIM_SECONDS, Filler
from turnkeep.search.fusion import fused
from turnkeep.search.hits import Hit, SearchResult
from turnkeep.search.provider import Provider, checked
from turnkeep.search.query import Wanted, as_words, checked_query
from turnkeep.search.query import wanted as wanted_of
from turnkeep.search.snippets import snippet
from turnkeep.store import _arguments
from turnkeep.store._searching import Chunk, Scope, Searching, scope_of

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore
    from turnkeep.store._async_opened import BranchId, Id
    from turnkeep.store._search_statements import Ground

MODES: Final = ("text", "semantic", "hybrid")

_FILLED_FIRST: Final = 50
_DEPTH: Final = 100  # of each ranking, at least, before they are made into one
NO_PROVIDER: Final = "no provider of embeddings was given"
_STRICT: Final = "a phrase, and what is excluded, is a matter of words"
_NO_VECTORS: Final = "the schema has no pgvector: `turnkeep doctor` says what to do"

Ranking = list[tuple[Chunk, float]]


class Search:
    """Finds turns. `provider` makes the vectors of queries; without one a search is by words.

    `store` is an open store, or one tenant's view of one, whose conversations alone are searched then.
    """

    def __init__(self, store: AsyncStore, provider: Provider | None = None) -> None:
        self._store = store
        self._provider = provider

    async def search(
        self,
        query: str,
        *,
        mode: str | None = None,
        limit: int = 10,
        agent: str | None = None,
        since: datetime | timedelta | None = None,
        conversation: Id | None = None,
        branch: BranchId | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
    ) -> SearchResult:
        """Give the turns that fit a query best, at most `limit` (1 to 1,000), one hit a turn.

        `query` is what people write into a web search: words, "a phrase", or, -without. Turns that have all of its
        words come first, then, unless it has quotes or excludes something, those that have some. `mode` is `text`,
        `semantic` or `hybrid`, which makes one ranking of both (reciprocal rank fusion); by default hybrid where there
        are a provider and pgvector, else text. What a hybrid search can't do by vectors it does by words, and
        `text_only` of the result says why.

        Only turns of that `agent`'s conversations, of one `conversation`, of one `branch` of it with what that
        inherits, of conversations that have all of `tags` and whose metadata contain `metadata`, and that ended
        `since` a time, or within a time until now. As many as fit are found, up to the limit, however few there are.

        Some turns whose text is not there yet are indexed first; `not_indexed` of the result says what is left. Raises
        `InvalidInputError` for a query that looks for nothing, `ConfigurationError` for a semantic search without
        provider or pgvector, and what the provider raises.
        """
        checked_query(query)
        _arguments.page(limit)
        if mode is not None and mode not in MODES:
            raise InvalidInputError(f"mode: {mode!r} is none of {', '.join(MODES)}")
        scope = await scope_of(
            self._store,
            agent=agent,
            since=since,
            conversation=conversation,
            branch=branch,
            metadata=metadata,
            tags=tags,
        )
        looking = _Looking(self._store, self._provider, scope, limit)
        return await looking.search(query, mode)

    async def similar(
        self,
        conversation: Id,
        *,
        limit: int = 10,
        agent: str | None = None,
        since: datetime | timedelta | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
    ) -> SearchResult:
        """Give the conversations that have a turn near to the middle of this one, at most `limit`, each by that turn.

        The middle is the mean of the conversation's vectors: what it is about as a whole. Needs vectors of the
        provider's model, and asks the provider nothing. Raises `NotFoundError` where there is no such conversation, or
        no vector of it yet, and `ConfigurationError` as `search` does.
        """
        _arguments.page(limit)
        described = await self._store.describe(conversation)
        scope = await scope_of(self._store, agent=agent, since=since, metadata=metadata, tags=tags)
        scope = replace(scope, other_than=described.conversation_id)
        looking = _Looking(self._store, self._provider, scope, limit)
        return await looking.similar(described.conversation_id, str(conversation))


class _Looking:
    """One search under way."""

    def __init__(self, store: AsyncStore, provider: Provider | None, scope: Scope, limit: int) -> None:
        self._store = store
        self._provider = provider
        self._scope = scope
        self._limit = limit
        self._searching = Searching(store)
        self._model = None if provider is None else provider.name
        self._exact = True
        self._all_words = True
        self._left_out: tuple[str, ...] = ()

    async def search(self, query: str, mode: str | None) -> SearchResult:
        ground = await self._searching.ground(self._model)
        why = NO_PROVIDER if self._provider is None else _NO_VECTORS if ground is None else None
        if mode == "semantic" and why is not None:
            raise ConfigurationError(f"a semantic search can't be made: {why}")
        wanted = wanted_of(query, await self._searching.words(as_words(query)))
        if mode != "semantic" and wanted.words and not wanted.some:
            why = why or _STRICT
        if not wanted.words and (mode == "text" or why is not None):
            raise InvalidInputError(f"query: {query!r} has no word to look for")
        await self._fill_some()
        rankings: dict[str, Ranking] = {}
        depth = self._limit if mode in ("text", "semantic") or why else max(2 * self._limit, _DEPTH)
        if mode != "semantic" and wanted.words:
            rankings["text"] = await self._by_words(wanted, depth)
        if mode != "text" and why is None and self._provider is not None and ground is not None:
            try:
                rankings["semantic"] = await self._by_meaning(query, self._provider, ground, depth)
            except EmbeddingDimensionsError:
                raise
            except EmbeddingError as error:
                if mode == "semantic" or not wanted.words:
                    raise
                why = f"no embedding of the query can be had: {error}"
        best = one_ranking(list(rankings.values()))[: self._limit]
        done = "hybrid" if "semantic" in rankings and mode != "semantic" else next(iter(rankings))
        return await self._result(best, wanted.lexemes, done, None if mode == "text" else why)

    async def similar(self, conversation: Any, named: str) -> SearchResult:
        ground = await self._searching.ground(self._model)
        if self._provider is None or ground is None:
            why = NO_PROVIDER if self._provider is None else _NO_VECTORS
            raise ConfigurationError(f"similar conversations can't be found: {why}")
        middle = await self._searching.middle(conversation, self._provider.name, ground)
        if middle is None:
            raise NotFoundError(
                f"conversation {named!r} has no vector of {self._provider.name!r} yet: `turnkeep embed` makes them"
            )
        best, self._exact = await self._searching.nearest(
            middle, self._provider.name, ground, self._scope, limit=self._limit, whole=True
        )
        return await self._result([(chunk, 1 - far) for chunk, far in best], (), "semantic", None)

    async def _fill_some(self) -> None:
        """Index some turns that are not, if any: what has just been said is found then."""
        found = await self._searching.not_indexed(None, self._scope)
        # Who may only read has to wait for the worker; `not_indexed` says so.
        if not (found.text or found.at_least) or await self._searching.read_only():
            return
        filler = Filler(self._store, model=self._model)
        with suppress(PermissionDeniedError):
            if self._scope.narrow:
                claimed = await self._searching.claim_within(self._scope, _FILLED_FIRST, CLAIM_SECONDS)
                await filler.fill_claimed(claimed)
            else:
                await filler.fill(_FILLED_FIRST)

    async def _by_words(self, wanted: Wanted, depth: int) -> Ranking:
        self._left_out = wanted.left_out
        found, self._all_words = await self._searching.matching(
            wanted.words, wanted.lexemes, self._scope, limit=depth, some=wanted.some
        )
        return found

    async def _by_meaning(self, query: str, provider: Provider, ground: Ground, depth: int) -> Ranking:
        made = await provider.embed([query], query=True)
        (vector,) = checked(made, 1, ground.dimensions, provider.name)
        text = f"[{','.join(map(repr, vector))}]"
        best, self._exact = await self._searching.nearest(text, provider.name, ground, self._scope, limit=depth)
        return [(chunk, 1 - far) for chunk, far in best]

    async def _result(self, best: Ranking, wanted: Collection[str], mode: str, text_only: str | None) -> SearchResult:
        scores = [score for _, score in best]
        rows = await self._searching.details([chunk for chunk, _ in best]) if best else []
        model = None if mode == "text" else self._model
        return SearchResult(
            hits=tuple(_hit(row, scores[row[0] - 1], wanted) for row in rows),
            mode=mode,
            model=model,
            text_only=text_only,
            exact=self._exact,
            all_words=self._all_words,
            not_indexed=await self._searching.not_indexed(model, self._scope),
            left_out=self._left_out,
        )


def one_ranking(rankings: Sequence[Ranking]) -> Ranking:
    """One ranking of turns out of several: each by the chunk that the first of them found it by."""
    if len(rankings) < 2:
        return rankings[0] if rankings else []
    chunks: dict[tuple[Any, ...], Chunk] = {}
    for ranking in rankings:
        for chunk, _ in ranking:
            chunks.setdefault(chunk[:3], chunk)
    turns = fused([[chunk[:3] for chunk, _ in ranking] for ranking in rankings])
    return [(chunks[turn], score) for turn, score in turns]


def _hit(row: tuple[Any, ...], score: float, wanted: Collection[str]) -> Hit:
    _, conversation_id, external_id, title, agent_id, branch, turn, chunk, text, created_at, archived_at, current = row
    part = snippet(text or "", wanted)
    return Hit(
        conversation_id=conversation_id,
        external_id=external_id,
        title=title,
        agent_id=agent_id,
        branch=branch,
        turn_index=turn,
        chunk=chunk,
        score=score,
        snippet=part.text,
        marks=part.marks,
        created_at=created_at,
        archived=archived_at is not None,
        current_branch=current,
    )
