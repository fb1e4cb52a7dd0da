"""What `turnkeep stats` counts: exactly where that is cheap, else by the planner's estimates and a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from turnkeep.store._reader import Reader
from turnkeep.store._save_times import SaveTimes, read_save_times, read_waste

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore

_COUNTED = 200_000  # rows that are counted one by one
_SAMPLED = 50_000
_MOST = 100_000  # of what waits: more is not counted


@dataclass(frozen=True)
class Number:
    """How many there are, and whether that was counted."""

    value: int
    exact: bool


@dataclass(frozen=True)
class TableSize:
    """What a table takes on disk, in bytes, and how much of it is dead.

    `live_rows` and `dead_rows` are the server's own estimates, those of values stored out of line included.
    `dead_bytes` and `free_bytes` are measured, where the extension pgstattuple is there and that was asked for.
    """

    name: str
    table_bytes: int
    index_bytes: int
    live_rows: int
    dead_rows: int
    vacuumed_at: datetime | None
    dead_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def dead_share(self) -> float:
        """How much of its rows is dead, from 0 to 1."""
        return self.dead_rows / max(self.live_rows + self.dead_rows, 1)


@dataclass(frozen=True)
class DocumentLag:
    """Documents that something is to be done about. `capped` says that there are more than were counted."""

    to_fill: int
    to_embed: int
    dead_letters: int
    oldest_due: datetime | None
    capped: bool


@dataclass(frozen=True)
class Stats:
    """A schema in numbers. `statuses` is of branches and `agents` of conversations, the most frequent first.

    `uncertain_calls` are those pending ones that may have run: started without a result, or inherited by a fork. Where
    there are very many branches, those of idle and ended ones are not among them.
    `saves_drawn` counts the numbers that saves have drawn from their sequence, None where this role may not see it;
    `requests_inserted` is the server's own count, `turns_begun` that of branches whose newest turn began since the look
    before, or within a minute. Times are the database's.
    """

    taken_at: datetime
    server_started_at: datetime
    conversations: Number
    checkpoints: Number
    messages: Number
    archived: Number
    statuses: tuple[tuple[str, Number], ...]
    agents: tuple[tuple[str | None, Number], ...]
    live_leases: int
    oldest_live_turn: datetime | None
    expired_leases: int
    oldest_expired_lease: datetime | None
    oldest_open_turn: datetime | None
    waiting_requests: int
    oldest_request: datetime | None
    pending_calls: int
    uncertain_calls: int
    documents: DocumentLag
    connections: int
    connection_limit: int
    saves_drawn: int | None
    requests_inserted: int
    turns_begun: int
    save_times: SaveTimes | None
    tables: tuple[TableSize, ...]


@dataclass(frozen=True)
class Rates:
    """What happened a second between two looks, and how long a save took in the mean, in milliseconds."""

    seconds: float
    saves: float | None
    turns: float
    requests: float
    save_mean_ms: float | None


def rates(before: Stats, after: Stats) -> Rates | None:
    """What happened between two looks. None where the server was started, or set back, in between."""
    seconds = (after.taken_at - before.taken_at).total_seconds()
    drawn = None
    if before.saves_drawn is not None and after.saves_drawn is not None:
        drawn = after.saves_drawn - before.saves_drawn
    inserted = after.requests_inserted - before.requests_inserted
    if seconds <= 0 or before.server_started_at != after.server_started_at or (drawn or 0) < 0 or inserted < 0:
        return None
    calls, total = _timed(after)
    calls, total = calls - _timed(before)[0], total - _timed(before)[1]
    return Rates(
        seconds=seconds,
        saves=None if drawn is None else drawn / seconds,
        turns=after.turns_begun / seconds,
        requests=inserted / seconds,
        save_mean_ms=total / calls if calls > 0 else None,
    )


def _timed(look: Stats) -> tuple[int, float]:
    """How many saves have been timed by then, and how long they took together."""
    return (0, 0.0) if look.save_times is None else (look.save_times.calls, look.save_times.total_ms)


async def read_stats(
    store: AsyncStore, *, exact: bool = False, agents: int = 10, since: datetime | None = None
) -> Stats:
    """Count. With `exact` every row is looked at, however many there are, and pgstattuple is asked where it is there.

    `since` is when the look before was taken.
    """
    reader = Reader(store, "sql/stats.sql")
    tables = await reader.fetch("tables", {"schema": reader.schema})
    large = {} if exact else {name: int(rows) for name, rows, *_ in tables if rows > _COUNTED}
    statuses = await reader.fetch("statuses", _part(large.get("branch")))
    named = await reader.fetch("agents", {**_part(large.get("conversation")), "limit": agents})
    ((taken_at, started_at, connections, limit),) = await reader.fetch("stats_moment")
    ((drawn, inserted),) = await reader.fetch("drawn", {"schema": reader.schema})
    ((live, oldest_turn, expired, oldest_expired),) = await reader.fetch("activity")
    ((begun, oldest_open),) = await reader.fetch("begun", {"since": since, "most": _MOST})
    ((waiting, oldest_request),) = await reader.fetch("requests")
    ((pending, uncertain),) = await reader.fetch("pending", {"all": "branch" not in large})
    ((to_fill, to_embed, oldest_due, dead),) = await reader.fetch("documents", {"most": _MOST})
    sizes = tuple(TableSize(name, *sizes) for name, _, *sizes in tables)
    waste = await read_waste(store) if exact else {}
    return Stats(
        taken_at=taken_at,
        server_started_at=started_at,
        conversations=_number(
            large.get("conversation"), await reader.fetch("conversations", _unless(large, "conversation"))
        ),
        checkpoints=_number(large.get("checkpoint"), await reader.fetch("checkpoints", _unless(large, "checkpoint"))),
        messages=_number(large.get("message"), await reader.fetch("messages", _unless(large, "message"))),
        archived=_number(large.get("archive"), await reader.fetch("archived_conversations", _unless(large, "archive"))),
        statuses=_shares(statuses, large.get("branch")),
        agents=_shares(named, large.get("conversation")),
        live_leases=live,
        oldest_live_turn=oldest_turn,
        expired_leases=expired,
        oldest_expired_lease=oldest_expired,
        oldest_open_turn=oldest_open,
        waiting_requests=waiting,
        oldest_request=oldest_request,
        pending_calls=pending,
        uncertain_calls=uncertain,
        documents=DocumentLag(to_fill, to_embed, dead, oldest_due, capped=_MOST in (to_fill, to_embed, dead)),
        connections=connections,
        connection_limit=limit,
        saves_drawn=drawn,
        requests_inserted=inserted,
        turns_begun=begun,
        save_times=await read_save_times(store),
        tables=tuple(replace(one, **waste[one.name]) if one.name in waste else one for one in sizes),
    )


def _unless(large: Mapping[str, int], table: str) -> dict[str, bool]:
    """Whether a table is counted at all."""
    return {"wanted": table not in large}


def _number(estimate: int | None, counted: list[tuple[Any, ...]]) -> Number:
    return Number(counted[0][0], True) if estimate is None else Number(estimate, False)


def _part(estimate: int | None) -> dict[str, float]:
    """How much of a table is looked at, in percent."""
    return {"percent": 100.0 if estimate is None else 100.0 * _SAMPLED / estimate}


def _shares(rows: list[tuple[Any, ...]], estimate: int | None) -> tuple[tuple[Any, Number], ...]:
    """Numbers in a part of a table as they are in all of it."""
    if estimate is None:
        return tuple((name, Number(number, True)) for name, number, _ in rows)
    return tuple((name, Number(round(number * estimate / all_), False)) for name, number, all_ in rows)
