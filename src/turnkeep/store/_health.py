"""How a schema is kept: space, snapshots, archives, documents, and whether what belongs together is there."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

Fetch: TypeAlias = Callable[..., Awaitable[list[dict[str, Any]]]]

MOST = 100_000  # of what is counted one by one
_SAMPLE = 1_000
_BATCH = 500
_FIRST = uuid.UUID(int=0)


@dataclass(frozen=True)
class Observed:
    """What the server tells of itself: pg_stat_statements, this package's connections, WAL archiving, autovacuum."""

    statements_created: bool
    statements_loaded: bool
    statements_available: bool
    connections: int
    archiving: bool
    archive_failures: int
    archive_failed_at: datetime | None
    archived_at: datetime | None
    autovacuum: bool

    @property
    def enabling(self) -> str:
        """The SQL that puts autovacuum on."""
        return "ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf();"


@dataclass(frozen=True)
class Vacuumed:
    """A table: its rows as the server's statistics have them, and the dead rows at which autovacuum begins."""

    name: str
    autovacuum: bool
    live_rows: int
    dead_rows: int
    vacuumed_at: datetime | None
    threshold: int


@dataclass(frozen=True)
class Holder:
    """Who keeps dead rows from being removed. `transactions` is how many have begun since."""

    kind: str
    name: str
    since: datetime | None
    transactions: int

    @property
    def ending(self) -> str:
        """The SQL that ends it, and when not to."""
        name = self.name.replace("'", "''")
        match self.kind:
            case "session":
                return f"SELECT pg_terminate_backend({self.name}), if it is not a dump that will end by itself"
            case "prepared":
                return f"COMMIT PREPARED '{name}' or ROLLBACK PREPARED '{name}'"
            case _:
                return f"SELECT pg_drop_replication_slot('{name}'), if its standby or reader does not come back"


@dataclass(frozen=True)
class Letters:
    """Documents that are due, dead ones, and the reasons most often given for those. At most `MOST` are counted."""

    due: int
    oldest_due: datetime | None
    dead: int
    reasons: tuple[str, ...]
    now: datetime


@dataclass(frozen=True)
class Kept:
    """Conversations that ended over 30 days ago and are not archived, the first one's end, and workers at work."""

    old: int
    oldest_end: datetime | None
    workers: int


@dataclass(frozen=True)
class Vectors:
    """Documents that have a vector, at most `MOST`, and how many indexes there are to find them by."""

    vectors: int
    indexes: int


@dataclass(frozen=True)
class Broken:
    """A conversation, or a branch of it, that lacks something."""

    conversation_id: uuid.UUID
    branch: int | None
    problem: str


@dataclass(frozen=True)
class Consistency:
    """How many branches were looked at, whether these were all, and the first ones that lack something."""

    branches: int
    all_of_them: bool
    broken: tuple[Broken, ...]


@dataclass(frozen=True)
class Health:
    """Everything about how a schema is kept."""

    tables: tuple[Vacuumed, ...]
    holders: tuple[Holder, ...]
    letters: Letters
    kept: Kept
    vectors: Vectors
    consistency: Consistency


async def read_observed(fetch: Fetch) -> Observed:
    """Ask the server."""
    return Observed(**(await fetch("observed"))[0])


async def read_health(fetch: Fetch, schema: str, *, deep: bool) -> Health:
    """Look at a schema, with `deep` at every conversation of it, else at some hundred that stand together by chance."""
    (letters,) = await fetch("letters", {"most": MOST})
    return Health(
        tables=tuple(Vacuumed(**row) for row in await fetch("vacuumed", {"schema": schema})),
        holders=tuple(Holder(**row) for row in await fetch("holders")),
        letters=Letters(**{**letters, "reasons": tuple(letters["reasons"])}),
        kept=Kept(**(await fetch("kept", {"most": MOST}))[0]),
        vectors=Vectors(**(await fetch("vectors", {"most": MOST, "schema": schema}))[0]),
        consistency=await (_read_all(fetch) if deep else _read_some(fetch)),
    )


async def _read_some(fetch: Fetch) -> Consistency:
    """Look at what follows a random key, and at the beginning where that is not enough."""
    place = {"conversation": uuid.uuid4(), "branch": -1, "limit": _SAMPLE}
    heads = await _heads(fetch, place)
    if len(heads) < _SAMPLE:
        place["conversation"] = _FIRST
        heads = await _heads(fetch, place)
    looked = sum(row["branch"] is not None for row in heads)
    return Consistency(looked, len(heads) < _SAMPLE, _broken([*heads, *await _whole(fetch, place)]))


async def _read_all(fetch: Fetch) -> Consistency:
    """Look at every branch and every checkpoint, a number of conversations at a time."""
    looked = 0
    broken: tuple[Broken, ...] = ()
    place: dict[str, Any] = {"conversation": _FIRST, "branch": -1, "limit": _BATCH}
    while rows := await _heads(fetch, place):
        looked += len(rows)
        broken += _broken(rows)
        there = list({row["conversation_id"] for row in rows})
        known = {one.conversation_id for one in broken}
        broken += tuple(
            Broken(row["conversation_id"], None, "messages of an older checkpoint are missing")
            for row in await fetch("spanned", {"conversations": there})
            if row["conversation_id"] not in known
        )
        place = {**place, "conversation": rows[-1]["conversation_id"], "branch": rows[-1]["branch"]}
    place = {**place, "conversation": _FIRST}
    while rows := await _whole(fetch, place):
        broken += _broken(rows)
        place = {**place, "conversation": rows[-1]["conversation_id"]}
    return Consistency(looked, True, broken)


async def _heads(fetch: Fetch, place: Mapping[str, Any]) -> list[dict[str, Any]]:
    return await fetch("heads", place)


async def _whole(fetch: Fetch, place: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**row, "branch": None} for row in await fetch("whole", place)]


def _broken(rows: list[dict[str, Any]]) -> tuple[Broken, ...]:
    return tuple(Broken(row["conversation_id"], row["branch"], row["problem"]) for row in rows if row["problem"])
