"""What extensions of the server know, where it has them: how long saves take, and what tables waste."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from turnkeep.errors import DatabaseError, UnavailableError
from turnkeep.store._reader import Reader

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore

_FILE = "sql/extensions.sql"


@dataclass(frozen=True)
class SaveTimes:
    """How long the saves since the last reset took on the server, in milliseconds, by pg_stat_statements.

    It keeps no percentiles. What its mean and deviation allow are bounds that hold whatever the distribution is.
    """

    calls: int
    total_ms: float
    min_ms: float
    max_ms: float
    deviation_ms: float

    @property
    def mean_ms(self) -> float:
        """The mean."""
        return self.total_ms / self.calls

    @property
    def p50_at_most_ms(self) -> float:
        """What half of the saves stayed below: the median is within one deviation of the mean."""
        return self.share_at_most_ms(0.5)

    @property
    def p95_at_most_ms(self) -> float:
        """What 95 of 100 saves stayed below, by Cantelli's inequality. The true value may be far smaller."""
        return self.share_at_most_ms(0.95)

    def share_at_most_ms(self, share: float) -> float:
        """A time that at least this share of the saves did not exceed."""
        return min(self.max_ms, self.mean_ms + self.deviation_ms * sqrt(share / (1 - share)))


async def read_save_times(store: AsyncStore) -> SaveTimes | None:
    """Ask pg_stat_statements. None where it is not there, may not be read, or has seen no save."""
    where = await _schema_of(store, "pg_stat_statements", "pg_stat_statements.track")
    if where is None:
        return None
    reader = Reader(store, _FILE, where)
    called = f"{sql.Identifier(reader.schema).as_string(None)}.save_v1("
    try:
        ((calls, *times),) = await reader.fetch("save_times", {"called": called})
    except UnavailableError:
        raise
    except DatabaseError:  # it was dropped a moment ago, or is of another release than those we know
        return None
    return None if calls is None else SaveTimes(calls, *map(float, times))


async def read_waste(store: AsyncStore) -> dict[str, dict[str, Any]]:
    """Bytes that are dead and free by table, where pgstattuple is there and may be asked."""
    where = await _schema_of(store, "pgstattuple", "search_path")
    if where is None:
        return {}
    reader = Reader(store, _FILE, where)
    try:
        rows = await reader.fetch("waste", {"schema": reader.schema})
    except DatabaseError as error:
        if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            return {}
        raise
    return {name: {"dead_bytes": dead, "free_bytes": free} for name, dead, free in rows}


async def _schema_of(store: AsyncStore, name: str, setting: str) -> str | None:
    """The schema of an extension that works: one whose library is loaded has a setting of its own."""
    rows = await Reader(store, _FILE).fetch("extension", {"name": name, "setting": setting})
    return next((where for where, loaded in rows if loaded), None)
