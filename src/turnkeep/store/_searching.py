"""What a search asks of the database: words, vectors near to one, and what is not indexed yet."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql

from turnkeep.errors import InvalidInputError
from turnkeep.store import _details
from turnkeep.store._async_opened import BranchId, Id, no_conversation
from turnkeep.store._documents import Claimed
from turnkeep.store._search_statements import SMALL, Ground, fitting, quoted, read_ground, statement

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore
    from turnkeep.store._async_waiting import Connection

_MOST_COUNTED = 10_000
_MOST_SCANNED = 100_000  # of others' documents, where the scope is narrower than all of them
_WINDOW = 1_000  # chunks with a word that are looked at, the newest of them
_LIKELY = 500  # chunks whose words are weighed one by one
_LONGEST_AGO = timedelta(days=36_525)
_FURTHER = 8  # times as many, where that was too few
_MORE_CHUNKS = 2  # are read than turns are wanted: a turn may have several of the nearest
_LEAST_LOOKED_AT = 200  # of the nearest chunks, whatever the conditions
_MOST_LOOKED_AT = 20_000  # before all that fit the conditions are looked at instead
_NARROWEST, _WIDEST = 400, 1_000  # hnsw.ef_search: of 100,000 vectors without any order, 200 gave 0.95 of the nearest


class Chunk(NamedTuple):
    """A piece of a turn's text."""

    conversation_id: uuid.UUID
    branch: int
    turn_index: int
    chunk: int


@dataclass(frozen=True)
class Scope:
    """Which turns a search is about: what none of the conditions excludes."""

    agent: str | None = None
    tenant: str | None = None
    conversation: uuid.UUID | None = None
    other_than: uuid.UUID | None = None
    tags: list[str] | None = None
    metadata: str | None = None
    since: datetime | None = None
    line_branches: list[int] | None = None
    line_lasts: list[int] | None = None

    @property
    def narrow(self) -> bool:
        """Whether anything but one conversation is excluded."""
        return any(value is not None for name, value in asdict(self).items() if name != "other_than")


@dataclass(frozen=True)
class NotIndexed:
    """Numbers of turns that a search could not find yet, each of at least 10,000 that were looked at.

    `text` are those whose text is not there yet, or was not when they were archived, `embeddings` those without a
    vector of the model, `dead` those given up, whose reason `document.error` holds. `at_least` says that so many turns
    have no text that not all were looked at: of those that the search is about there may be more than `text`.
    """

    text: int = 0
    embeddings: int = 0
    dead: int = 0
    at_least: bool = False

    def __bool__(self) -> bool:
        return bool(self.text or self.embeddings or self.dead or self.at_least)


class Searching:
    """Runs the statements of a search on an open store. None is prepared: each is planned for its own conditions."""

    def __init__(self, store: AsyncStore) -> None:
        self._database = store._database
        self.schema = self._database.schema

    async def ground(self, model: str | None) -> Ground | None:
        """What there is to compare vectors with; None without pgvector."""
        return await read_ground(self._fetch, model)

    async def words(self, query: str) -> str:
        """A query as a tsquery's text: empty where nothing in it is looked for."""
        ((words,),) = await self._fetch("words_of_query", {"query": query})
        return str(words)

    async def matching(
        self, words: str, lexemes: Sequence[str], scope: Scope, *, limit: int, some: bool
    ) -> tuple[list[tuple[Chunk, float]], bool]:
        """Turns with all words of a tsquery, the best first; with `some` those with some of its lexemes behind them.

        As many as there are, up to `limit`; and whether all that match were looked at, rather than the newest.
        """
        terms = [quoted(lexeme) for lexeme in lexemes]
        # Without conditions nothing of the conversation is asked: planning so many parts takes its time.
        anything: dict[str, sql.Composable] = {} if scope.narrow else {"joined": sql.SQL(""), "scope": sql.SQL("true")}
        found = [self._newest_with(0, "words", anything)]
        if some:
            found += [self._newest_with(number, f"term_{number}", anything) for number in range(1, len(terms) + 1)]
        sent = self._statement("matching_text", found=sql.SQL(" UNION ALL ").join(found))
        asked = {
            **{f"term_{number}": term for number, term in enumerate(terms, start=1)},
            "words": words,
            "terms": terms,
            "lexemes": [*lexemes],
            "schema": self.schema,
            "limit": limit,
            **asdict(scope),
        }
        window, likely = max(_WINDOW, _MORE_CHUNKS * limit), max(_LIKELY, _MORE_CHUNKS * limit)
        while True:
            rows = await self._fetch_all(sent, {**asked, "window": window, "likely": likely})
            more = bool(rows) and rows[0][5]
            if len(rows) >= limit or not more:
                return [(Chunk(*row[:4]), row[4]) for row in rows], not more
            window, likely = window * _FURTHER, likely * _FURTHER

    def _newest_with(self, number: int, name: str, pieces: Mapping[str, sql.Composable]) -> sql.Composable:
        one = self._statement("newest_with", number=sql.Literal(number), words=sql.Placeholder(name), **pieces)
        return sql.SQL("({})").format(sql.SQL(one.decode()))

    async def nearest(
        self, vector: str, model: str, ground: Ground, scope: Scope, *, limit: int, whole: bool = False
    ) -> tuple[list[tuple[Chunk, float]], bool]:
        """The turns nearest to a vector, or with `whole` the conversations, and whether all were looked at.

        As many as there are, up to `limit`: where an index comes to its end early, all are looked at.
        """
        asked = {"vector": vector, "whole": whole, "limit": limit, **asdict(scope)}
        exact = not ground.indexed
        if not exact and scope.narrow:
            exact = await self.vectors(model, ground, SMALL + 1, scope) <= SMALL
        if not exact:
            rows = await self._by_index(asked, model, ground)
            if len(rows) == limit and rows[0][5]:
                return [(Chunk(*row[:4]), row[4]) for row in rows], False
        rows = await self._fetch("nearest_exact", asked, **fitting(model, ground))
        return [(Chunk(*row[:4]), row[4]) for row in rows], True

    async def vectors(self, model: str, ground: Ground, most: int, scope: Scope | None = None) -> int:
        """How many chunks have a vector of the model, up to a number."""
        asked = {"most": most, **asdict(scope or Scope())}
        ((count,),) = await self._fetch("matching_count", asked, **fitting(model, ground))
        return int(count)

    async def _by_index(self, asked: Mapping[str, Any], model: str, ground: Ground) -> list[tuple[Any, ...]]:
        """What is nearest among more and more of the nearest, until it is enough, or all had better be looked at."""
        nearest = self._statement("nearest_indexed", **fitting(model, ground, indexed=True))
        settings = self._statement("settings_of_index")

        async def run(connection: Connection) -> list[tuple[Any, ...]]:
            looked_at = max(_MORE_CHUNKS * asked["limit"], _LEAST_LOOKED_AT)
            width = str(min(max(looked_at, _NARROWEST), _WIDEST))
            # A transaction's own settings: behind a pooler no other client ever sees them (G10).
            async with connection.transaction():
                await self._rows(connection, settings, {"width": width, "iterates": ground.iterates})
                while True:
                    rows = await self._rows(connection, nearest, {**asked, "rows": looked_at})
                    looked_at *= _FURTHER
                    if len(rows) == asked["limit"] or looked_at > _MOST_LOOKED_AT:
                        return rows

        return await self._database.attempt(run)

    async def middle(self, conversation: uuid.UUID, model: str, ground: Ground) -> str | None:
        """The mean of a conversation's vectors, as pgvector writes it; None where it has none of the model."""
        ((middle,),) = await self._fetch("middle_of", {"conversation": conversation}, **fitting(model, ground))
        return None if middle is None else str(middle)

    async def details(self, chunks: Sequence[Chunk]) -> list[tuple[Any, ...]]:
        """What is to be said of chunks: their ordinal (from 1) first. What has been erased meanwhile is missing."""
        return await self._fetch(
            "hits",
            {
                "conversations": [chunk.conversation_id for chunk in chunks],
                "branches": [chunk.branch for chunk in chunks],
                "turns": [chunk.turn_index for chunk in chunks],
                "chunks": [chunk.chunk for chunk in chunks],
            },
        )

    async def not_indexed(self, model: str | None, scope: Scope) -> NotIndexed:
        """What a search within this scope can't find yet."""
        asked = {"model": model, "most": _most_looked_at(scope), **asdict(scope)}
        ((text, embeddings, dead),) = await self._fetch("not_indexed", asked)
        more = text >= _MOST_COUNTED
        if scope.narrow and not more:
            ((more,),) = await self._fetch("more_unfilled", asked)
        return NotIndexed(text, embeddings, dead, more)

    async def read_only(self) -> bool:
        """Whether nothing can be written to this server."""
        ((read_only,),) = await self._fetch("read_only", {})
        return bool(read_only)

    async def claim_within(self, scope: Scope, limit: int, seconds: float) -> list[Claimed]:
        """Claim turns within the scope whose text is to be filled, the newest of them."""
        claim = uuid.uuid4()
        asked = {"claim": claim, "limit": limit, "seconds": seconds, "most": _most_looked_at(scope), **asdict(scope)}
        return [Claimed(*[*row, claim]) for row in await self._fetch("claim_within", asked)]

    async def moment(self, ago: timedelta) -> datetime:
        """The time that was so long ago, by the database's clock."""
        ((moment,),) = await self._fetch("search_moment", {"ago": ago})
        assert isinstance(moment, datetime)
        return moment

    async def line(self, conversation: uuid.UUID, branch: int | None) -> tuple[list[int], list[int]]:
        """The branches whose turns a branch has, and the last turn it has of each."""
        rows = await self._fetch("line_of_branch", {"conversation": conversation, "branch": branch})
        return [row[0] for row in rows], [row[1] for row in rows]

    async def _fetch(self, name: str, parameters: Mapping[str, Any], **pieces: sql.Composable) -> list[tuple[Any, ...]]:
        return await self._fetch_all(self._statement(name, **pieces), parameters)

    async def _fetch_all(self, statement: bytes, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        async def run(connection: Connection) -> list[tuple[Any, ...]]:
            return await self._rows(connection, statement, parameters)

        return await self._database.attempt(run)

    def _statement(self, name: str, **pieces: sql.Composable) -> bytes:
        return statement(name, self.schema, **pieces)

    async def _rows(
        self, connection: Connection, statement: bytes, parameters: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        return await self._database.rows(connection, statement, parameters, prepare=False)


def _most_looked_at(scope: Scope) -> int:
    """How many documents that wait are looked at: more, where most of them may be others'."""
    return _MOST_SCANNED if scope.narrow else _MOST_COUNTED


async def scope_of(
    store: AsyncStore,
    *,
    agent: str | None,
    since: datetime | timedelta | None,
    conversation: Id | None = None,
    branch: BranchId | None = None,
    metadata: Mapping[str, Any] | None,
    tags: Sequence[str] | None,
) -> Scope:
    """What a search is about, checked; a branch looked up."""
    if branch is not None and conversation is None:
        raise InvalidInputError("branch: name the conversation as well")
    scope = Scope(
        agent=None if agent is None else _details.check_name(agent, "agent"),
        tenant=store._tenant,
        conversation=None if conversation is None else store._uuid(conversation),
        tags=None if tags is None else _details.check_tags(tags),
        metadata=None if metadata is None else _details.metadata_text(metadata),
        since=await _moment(store, since),
    )
    if scope.conversation is None or conversation is None:
        return scope
    await store.describe(conversation)
    if branch is None:
        return scope
    number = await store._number(conversation, branch)
    branches, lasts = await Searching(store).line(scope.conversation, number)
    if not branches and number is not None and (archived := await store._archived(conversation)) is not None:
        line = archived.line(number)
        branches, lasts = [one for one, _ in line], [last for _, last in line]
    if not branches:
        raise no_conversation(conversation, branch)
    return replace(scope, line_branches=branches, line_lasts=lasts)


async def _moment(store: AsyncStore, since: object) -> datetime | None:
    if since is None:
        return None
    if isinstance(since, timedelta):
        if not timedelta() <= since <= _LONGEST_AGO:
            raise InvalidInputError(f"since: {since} is no time to look back: up to {_LONGEST_AGO.days:,} days are")
        return await Searching(store).moment(since)
    if not isinstance(since, datetime):
        raise InvalidInputError(f"since: expected a datetime or a timedelta, got {type(since).__name__}")
    if since.tzinfo is None:
        raise InvalidInputError(f"since: {since.isoformat()} has no time zone: which moment is meant is not known")
    return since
