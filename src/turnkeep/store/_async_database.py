"""Statements to the database and back: pool, pooler, deadlines and retries."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from turnkeep.errors import PoolExhaustedError, TurnkeepError, UnavailableError, UsageError
from turnkeep.redaction import Redact
from turnkeep.store import _async_waiting as waiting
from turnkeep.store._failures import Remedy, parsed, remedy_for, translated
from turnkeep.store._rows import TIMESTAMPTZ, UtcLoader
from turnkeep.store._statements import statements
from turnkeep.store._vectors import EMBEDDING_DIMENSIONS

Result = TypeVar("Result")

_FIRST_DELAY = 0.02
_LONGEST_DELAY = 1.0
_LONGEST_RECONNECT_DELAY = 0.25
_LEAST_SHARE = 0.05  # of the deadline: a statement that waited longer for its connection is not begun

# What a connection gets unless the conninfo says otherwise. Nothing here needs a session (G10).
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "fallback_application_name": "turnkeep",
}


def _connection_arguments(conninfo: str) -> dict[str, Any]:
    given = parsed(conninfo)
    return {
        **{key: value for key, value in _DEFAULTS.items() if key not in given},
        "autocommit": True,
        "client_encoding": "UTF8",
        "prepare_threshold": None,
    }


# Its warnings are for programs that set logging up, and not for the standard error of those that don't.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class AsyncDatabase:
    """A pool of connections that repeats what fails for want of a server, until a deadline.

    Every statement is sent alone, outside any transaction block. It may be repeated, so it must be harmless
    when it is (G4). Behind a pooler nothing is prepared and nothing depends on a session (G10).
    """

    def __init__(
        self,
        conninfo: str,
        schema: str,
        *,
        pool_size: int,
        timeout: float,
        revive: Callable[[], None] | None = None,
    ) -> None:
        self.conninfo = conninfo
        self.schema = schema
        self.timeout = timeout
        self.pooled = False
        self.dimensions = EMBEDDING_DIMENSIONS
        self.redact: Redact | None = None
        self._statements = {**statements(schema), **statements(schema, "sql/pruning.sql")}
        self._revive = revive
        self._home: object = None
        self._closed = False
        # One connection is left to the calls that transactions wait for.
        self.transactions = waiting.Slots(max(pool_size - 1, 1))
        self.pool_size = pool_size
        self._healing = waiting.Background()
        self._refusal: psycopg.Error | None = None
        self._pool = AsyncConnectionPool(
            conninfo,
            connection_class=self._persistent_connection(),
            kwargs=_connection_arguments(conninfo),
            min_size=1,
            max_size=pool_size,
            open=False,
            name="turnkeep",
            configure=self._recognise_pooler,
        )

    async def open(self) -> None:
        """Connect. Raises `ConfigurationError` if the server turns us down, `UnavailableError` if there is none."""
        self._home = waiting.here()
        try:
            await waiting.within(self.timeout, self._connect_once)
        except TimeoutError as error:
            why = self._refusal or "no answer"
            raise UnavailableError(f"the database can't be reached within {self.timeout:g} s: {why}") from (
                self._refusal or error
            )
        except psycopg.Error as error:
            raise translated(error, self.schema) from error
        await self._pool.open()

    async def _connect_once(self) -> None:
        first = await self._pool.connection_class.connect(self.conninfo, **_connection_arguments(self.conninfo))
        await first.close()

    @waiting.undisturbed
    async def close(self) -> None:
        """Close all connections. A statement under way loses its connection."""
        if waiting.is_copy(self._home):
            return
        self._closed = True
        self._healing.stop()
        await self._pool.close()

    async def learn_revision(self) -> int | None:
        """Learn how many dimensions an embedding has, and give the newest numbered migration."""
        ((have, dimensions),) = await self.fetch("revision", {"schema": self.schema})
        self.dimensions = dimensions or EMBEDDING_DIMENSIONS
        return None if have is None else int(have)

    async def fetch(
        self, name: str, parameters: Mapping[str, Any] | None = None, *, read_committed: bool = False
    ) -> list[tuple[Any, ...]]:
        """Run the statement of that name and give its rows, repeating it within the deadline where that can help.

        With `read_committed` it sees what others have committed while it waited for them, whatever isolation level the
        database's transactions have by default.

        Raises `UnavailableError` or `PoolExhaustedError` at the deadline, and the error that stands for the
        statement's own failure at once. A cancelled call has ended in the server when it returns, unless the
        network is gone too.
        """

        async def run(connection: waiting.Connection) -> list[tuple[Any, ...]]:
            if not read_committed:
                return await self.rows(connection, self._statements[name], parameters or {})
            await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
            async with connection.transaction():
                return await self.rows(connection, self._statements[name], parameters or {})

        return await self.attempt(run)

    async def rows(
        self,
        connection: AsyncConnection[Any],
        statement: bytes,
        parameters: Mapping[str, Any],
        *,
        prepare: bool | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement once, on this connection, and give its rows. Their times are in UTC.

        One that is not to be prepared is planned for its parameters each time.
        """
        cursor = connection.cursor(binary=True)
        cursor.adapters.register_loader(TIMESTAMPTZ, UtcLoader)
        await cursor.execute(statement, parameters, prepare=prepare)
        return await cursor.fetchall()

    @waiting.undisturbed
    async def attempt(
        self,
        action: Callable[[waiting.Connection], Awaitable[Result]],
        *,
        keep: Callable[[waiting.Connection, Result], None] | None = None,
        bounded: bool = True,
    ) -> Result:
        """Do something with a connection, again within the deadline where that can help, as `fetch` says.

        `keep` is given the connection, with the result, where the action succeeds; it goes back by `give_back` then.
        Where it is not `bounded`, the action bounds each of its statements itself, and the deadline is for what comes
        after its first failure.
        """
        self.check_usable()
        deadline = monotonic() + self.timeout
        delay = _FIRST_DELAY
        last: psycopg.Error | None = None
        while True:
            try:
                connection = await waiting.take(self._pool, deadline - monotonic())
                kept = False
                try:
                    if deadline - monotonic() < self.timeout * _LEAST_SHARE:
                        raise self._no_connection(last)
                    if bounded:
                        async with waiting.until(deadline, connection):
                            result = await action(connection)
                    else:
                        result = await action(connection)
                    if keep is not None:
                        keep(connection, result)
                        kept = True
                    return result
                finally:
                    if not kept:
                        await self.give_back(connection)
            except (PoolTimeout, TooManyRequests) as error:
                raise self._no_connection(last) from (last or self._refusal or error)
            except PoolClosed as error:
                raise UsageError("the store was closed while a call was waiting for a connection") from error
            except TimeoutError as error:
                raise self._too_late(last) from (last or error)
            except psycopg.Error as error:
                remedy = remedy_for(error)
                if remedy is Remedy.GIVE_UP:
                    raise translated(error, self.schema) from error
                if last is None and not bounded:
                    deadline = monotonic() + self.timeout
                last = error
                if remedy is Remedy.RECONNECT:
                    self._healing.start(self._bring_back)
            if monotonic() + delay >= deadline:
                raise self._too_late(last) from last
            await waiting.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, _LONGEST_DELAY)

    def statement(self, name: str) -> bytes:
        """The statement of that name, for a transaction."""
        return self._statements[name]

    async def give_back(self, connection: waiting.Connection) -> None:
        """Give a connection back to the pool."""
        await waiting.give_back(self._pool, connection)

    async def _recognise_pooler(self, connection: waiting.Connection) -> None:
        # A pooler hands out a process id of its own making; the server's is only known inside.
        cursor = await connection.execute("SELECT pg_catalog.pg_backend_pid()")
        row = await cursor.fetchone()
        self.pooled = row is None or row[0] != connection.info.backend_pid
        connection.prepare_threshold = None if self.pooled else 2

    def _persistent_connection(self) -> type[waiting.Connection]:
        """A class whose `connect` goes on trying while the server is away.

        The pool's own tries are seconds apart, and further with each: it would be late by as much as a server was away.
        """
        database = self

        class PersistentConnection(waiting.Connection):
            @classmethod
            async def connect(cls, *args: Any, **kwargs: Any) -> Self:
                delay = _FIRST_DELAY
                while True:
                    try:
                        connection = await super().connect(*args, **kwargs)
                    except psycopg.OperationalError as error:
                        database._refusal = error
                        if database._closed or remedy_for(error) is Remedy.GIVE_UP:
                            raise
                    else:
                        database._refusal = None
                        return connection
                    await waiting.sleep(delay * random.uniform(0.5, 1.0))
                    delay = min(delay * 2, _LONGEST_RECONNECT_DELAY)

        return PersistentConnection

    def check_usable(self) -> None:
        """Raise `UsageError` if this store is closed, or belongs to another event loop than the running one."""
        if self._closed or self._home is None:
            raise UsageError("this store is closed: open another with turnkeep.open()")
        if waiting.here() != self._home:
            raise UsageError(waiting.ELSEWHERE)

    async def _bring_back(self) -> None:
        """Replace the broken connections of the pool, all at once rather than one a retry."""
        if self._revive is not None:
            await waiting.in_thread(self._revive)
        await self._pool.check()

    def _no_connection(self, last: psycopg.Error | None) -> TurnkeepError:
        if last is not None or self._refusal is not None:
            return self._too_late(last or self._refusal)
        waiting = self._pool.get_stats().get("requests_waiting", 0)
        return PoolExhaustedError(
            f"all {self._pool.max_size} connections were busy for {self.timeout:g} s, with {waiting} calls waiting: "
            "open the store with a larger pool_size"
        )

    def _too_late(self, last: psycopg.Error | None) -> TurnkeepError:
        if isinstance(last, psycopg.errors.DiskFull):
            return translated(last, self.schema)
        why = f": {str(last).strip()}" if last is not None else ""
        return UnavailableError(
            f"the database did not answer within {self.timeout:g} s{why}. If this was a write, it may have been done: "
            "repeat it with the same write_id, or restore"
        )
