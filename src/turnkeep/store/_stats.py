"""What `turnkeep stats` counts: exactly where that is cheap, else by the planner's estimates and a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from turnkeep.store._reader import Reader

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore

_COUNTED = 1_000_000  # rows that are counted one by one
_SAMPLED = 100_000
_AGENTS = 10


@dataclass(frozen=True)
class Number:
    """How many there are, and whether that was counted."""

    value: int
    exact: bool


@dataclass(frozen=True)
class TableSize:
    """What a table takes on disk, in bytes."""

    name: str
    table_bytes: int
    index_bytes: int


@dataclass(frozen=True)
class Stats:
    """A schema in numbers. `statuses` is of branches and `agents` of conversations, the most frequent first.

    `uncertain_calls` are those pending ones that may have run: started without a result, or inherited by a fork.
    """

    conversations: Number
    checkpoints: Number
    messages: Number
    statuses: tuple[tuple[str, Number], ...]
    agents: tuple[tuple[str | None, Number], ...]
    live_leases: int
    oldest_live_turn: datetime | None
    expired_leases: int
    oldest_expired_lease: datetime | None
    waiting_requests: int
    oldest_request: datetime | None
    pending_calls: int
    uncertain_calls: int
    tables: tuple[TableSize, ...]


async def read_stats(store: AsyncStore, *, exact: bool = False) -> Stats:
    """Count. With `exact` every row is looked at, however many there are."""
    reader = Reader(store, "sql/stats.sql")
    tables = await reader.fetch("tables", {"schema": reader.schema})
    large = {} if exact else {name: int(rows) for name, rows, _, _ in tables if rows > _COUNTED}
    statuses = await reader.fetch("statuses", _part(large.get("branch")))
    agents = await reader.fetch("agents", {**_part(large.get("conversation")), "limit": _AGENTS})
    ((live, oldest_turn, expired, oldest_expired),) = await reader.fetch("activity")
    ((waiting, oldest_request),) = await reader.fetch("requests")
    ((pending, uncertain),) = await reader.fetch("pending")
    return Stats(
        conversations=_number(
            large.get("conversation"), await reader.fetch("conversations", _unless(large, "conversation"))
        ),
        checkpoints=_number(large.get("checkpoint"), await reader.fetch("checkpoints", _unless(large, "checkpoint"))),
        messages=_number(large.get("message"), await reader.fetch("messages", _unless(large, "message"))),
        statuses=_shares(statuses, large.get("branch")),
        agents=_shares(agents, large.get("conversation")),
        live_leases=live,
        oldest_live_turn=oldest_turn,
        expired_leases=expired,
        oldest_expired_lease=oldest_expired,
        waiting_requests=waiting,
        oldest_request=oldest_request,
        pending_calls=pending,
        uncertain_calls=uncertain,
        tables=tuple(TableSize(name, table, index) for name, _, table, index in tables),
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
