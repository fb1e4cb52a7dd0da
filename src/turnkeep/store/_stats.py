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
    """A schema in numbers. `statuses` is of branches and `agents` of conversations, the most frequent first."""

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
    tables: tuple[TableSize, ...]


async def read_stats(store: AsyncStore, *, exact: bool = False) -> Stats:
    """Count. With `exact` every row is looked at, however many there are."""
    reader = Reader(store, "sql/stats.sql")
    tables = await reader.fetch("tables", {"schema": reader.quoted_schema})
    estimates: dict[str, int | None] = {
        name: None if exact or rows <= _COUNTED else int(rows) for name, rows, _, _ in tables
    }

    async def by(rows: list[tuple[Any, int]], estimate: int | None) -> tuple[tuple[Any, Number], ...]:
        factor = 1.0 if estimate is None else estimate / max(sum(row[1] for row in rows), 1)
        return tuple((name, Number(round(number * factor), estimate is None)) for name, number in rows)

    def part(table: str) -> Mapping[str, float]:
        estimate = estimates.get(table)
        return {"percent": 100.0 if estimate is None else min(100.0, 100.0 * _SAMPLED / estimate), "limit": _AGENTS}

    async def number(table: str) -> Number:
        estimate = estimates.get(table)
        if estimate is not None:
            return Number(estimate, False)
        match table:
            case "conversation":
                rows = await reader.fetch("conversations")
            case "checkpoint":
                rows = await reader.fetch("checkpoints")
            case _:
                rows = await reader.fetch("messages")
        return Number(rows[0][0], True)

    ((live, oldest_turn, expired, oldest_expired),) = await reader.fetch("activity")
    ((waiting, oldest_request),) = await reader.fetch("requests")
    return Stats(
        conversations=await number("conversation"),
        checkpoints=await number("checkpoint"),
        messages=await number("message"),
        statuses=await by(await reader.fetch("statuses", part("branch")), estimates.get("branch")),
        agents=await by(await reader.fetch("agents", part("conversation")), estimates.get("conversation")),
        live_leases=live,
        oldest_live_turn=oldest_turn,
        expired_leases=expired,
        oldest_expired_lease=oldest_expired,
        waiting_requests=waiting,
        oldest_request=oldest_request,
        tables=tuple(TableSize(name, table, index) for name, _, table, index in tables),
    )
