"""What the command line asks beside the store: is the server there, and what is it like."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from turnkeep.errors import UnavailableError
from turnkeep.settings import check_schema_name
from turnkeep.store._failures import is_missing_schema, parsed, translated
from turnkeep.store._health import Health, Observed, read_health, read_observed
from turnkeep.store._statements import statements

_PINGS = 5


@dataclass(frozen=True)
class Server:
    """A server as a session of ours finds it. Times are in seconds.

    `clock_ahead` is by how much the server's clock is ahead of this machine's, `clock_error` how far off that may be.
    """

    address: str
    connected_in: float
    round_trip: float
    clock_ahead: float
    clock_error: float
    pooled: bool
    version_number: int
    version: str
    encoding: str
    in_recovery: bool
    read_only: bool
    role_name: str
    database_name: str
    may_create: bool
    vector_available: bool


@dataclass(frozen=True)
class Setting:
    """A setting of the session, and where it was made, as pg_settings has it, such as `default` or `user`."""

    value: str
    source: str


@dataclass(frozen=True)
class Override:
    """A setting made for a role, a database, or a role in a database, as `name=value`."""

    database_name: str | None
    role_name: str | None
    setting: str


@dataclass(frozen=True)
class Cluster:
    """The whole server. A limit is -1 where there is none; which standbys are synchronous only some roles may see."""

    connections: int
    prepared: int
    oldest_prepared: datetime | None
    standbys: int
    synchronous_standbys: int
    may_see_standbys: bool
    transaction_age: int
    database_limit: int
    role_limit: int | None


@dataclass(frozen=True)
class Rights:
    """What the role may not do in the schema, such as `INSERT on message`, and what is wrong with indexes.

    `reads_only` says that it may read every table and write to none, as a reader may.
    """

    may_use: bool
    missing_on_tables: tuple[str, ...]
    missing_on_functions: tuple[str, ...]
    invalid_indexes: tuple[str, ...]
    reads_only: bool = False


@dataclass(frozen=True)
class Leases:
    """Numbers of branches: running under a live lease, running under an expired one, in the middle of a turn
    that no live lease holds. Of expired leases also the oldest's end, and whose agents they are, up to ten.
    `clock_ahead` is by how many seconds the schema's own clock, which tests put forward, is ahead of the server's."""

    live: int
    expired: int
    interrupted: int
    oldest_expired: datetime | None
    agents_of_expired: tuple[str, ...]
    clock_ahead: float


@dataclass(frozen=True)
class Examination:
    """What was found. `rights` is None where there is no schema, `leases` and `health` where they could not be read."""

    server: Server
    settings: dict[str, Setting]
    overrides: tuple[Override, ...]
    cluster: Cluster
    observed: Observed
    rights: Rights | None
    leases: Leases | None
    health: Health | None


def real_clock(schema: str) -> str:
    """The SQL that puts a schema's own clock right again."""
    return (
        f'CREATE OR REPLACE FUNCTION "{schema}".clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS '
        "'SELECT pg_catalog.clock_timestamp()'"
    )


async def check_reachable(conninfo: str, schema: str, seconds: float) -> None:
    """Connect once. Raises `UnavailableError` with the reason at once, or after `seconds`."""
    async with _session(conninfo, schema, seconds):
        pass


async def examine(conninfo: str, schema: str, seconds: float, *, deep: bool = False) -> Examination:
    """Look at the server and the schema without changing anything. Raises `UnavailableError`.

    With `deep` every conversation is looked at, however long that takes.
    """
    async with _session(conninfo, schema, seconds, lasting=deep) as session:
        return Examination(
            server=await session.server(),
            settings={
                row.pop("name"): Setting(row["setting"], row["source"]) for row in await session.fetch("settings")
            },
            overrides=tuple(Override(**row) for row in await session.fetch("overrides")),
            cluster=Cluster(**(await session.fetch("cluster"))[0]),
            observed=await read_observed(session.fetch_health),
            rights=await session.rights(),
            leases=await session.leases(),
            health=await session.health(deep=deep),
        )


@dataclass
class _Session:
    connection: AsyncConnection[dict[str, Any]]
    schema: str
    connected_in: float

    async def fetch(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        cursor = await self.connection.execute(statements(self.schema, "sql/doctor.sql")[name], parameters or {})
        return await cursor.fetchall()

    async def fetch_health(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        cursor = await self.connection.execute(statements(self.schema, "sql/health.sql")[name], parameters or {})
        return await cursor.fetchall()

    async def server(self) -> Server:
        (row,) = await self.fetch("server")
        pings = [await self._ping() for _ in range(_PINGS)]
        fastest, ahead = min(pings)
        info = self.connection.info
        return Server(
            address=info.host if info.host.startswith("/") else f"{info.host or 'this machine'}:{info.port}",
            connected_in=self.connected_in,
            round_trip=median(taken for taken, _ in pings),
            clock_ahead=ahead,
            clock_error=fastest / 2,
            # A pooler hands out a process id of its own making.
            pooled=row.pop("backend_pid") != info.backend_pid,
            **{**row, "read_only": row["read_only"] == "on"},
        )

    async def _ping(self) -> tuple[float, float]:
        """How long a round trip took, and how far the server's clock was then ahead of the middle of it."""
        began, start = time.time(), time.perf_counter()
        (row,) = await self.fetch("ping")
        taken = time.perf_counter() - start
        return taken, row["server_time"].timestamp() - (began + taken / 2)

    async def rights(self) -> Rights | None:
        rows = await self.fetch("rights", {"schema": self.schema})
        if not rows:
            return None
        row = rows[0]
        return Rights(
            may_use=row["may_use"],
            missing_on_tables=tuple(row["missing_on_tables"]),
            missing_on_functions=tuple(row["missing_on_functions"]),
            invalid_indexes=tuple(row["invalid_indexes"]),
            reads_only=row["reads_only"],
        )

    async def leases(self) -> Leases | None:
        try:
            (row,) = await self.fetch("leases")
        except psycopg.Error as error:
            if _is_unreadable(error):
                return None
            raise
        return Leases(**{**row, "agents_of_expired": tuple(row["agents_of_expired"])})

    async def health(self, *, deep: bool) -> Health | None:
        try:
            return await read_health(self.fetch_health, self.schema, deep=deep)
        except psycopg.Error as error:
            if _is_unreadable(error):
                return None
            raise


def _is_unreadable(error: psycopg.Error) -> bool:
    """Whether a schema is not there, of another release, or not for this role: others say so already."""
    other = psycopg.errors.UndefinedFunction | psycopg.errors.UndefinedColumn | psycopg.errors.InsufficientPrivilege
    return is_missing_schema(error) or isinstance(error, other)


@asynccontextmanager
async def _session(conninfo: str, schema: str, seconds: float, *, lasting: bool = False) -> AsyncIterator[_Session]:
    """A connection outside any transaction block, whose failures are errors of ours. A lasting one has no end."""
    check_schema_name(schema)
    parsed(conninfo)
    start = time.perf_counter()
    try:
        async with asyncio.timeout(seconds) as limit:
            connection = await AsyncConnection.connect(
                conninfo, autocommit=True, prepare_threshold=None, client_encoding="UTF8", row_factory=dict_row
            )
            if lasting:
                limit.reschedule(None)
            async with connection:
                yield _Session(connection, schema, time.perf_counter() - start)
    except TimeoutError as error:
        raise UnavailableError(f"the database did not answer within {seconds:g} s") from error
    except psycopg.Error as error:
        raise translated(error, schema) from error
