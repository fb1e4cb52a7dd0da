"""Waiting for a state of the server, and holding it in one: races and kills are made, never hoped for."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from types import TracebackType
from typing import Any, Final, LiteralString, Self, TypeVar

import psycopg
from psycopg import sql

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

PATIENCE = 60.0
_LOOK_AGAIN = 0.003
_LONGEST_HELD: Final = "5min"


async def until(look: Callable[[], T], what: str) -> T:
    """Look until there is something to see, and give it. The event loop runs meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while not (seen := look()):
        assert time.monotonic() < deadline, f"never seen: {what}"
        await asyncio.sleep(_LOOK_AGAIN)
    return seen


async def end_of(pid: int) -> None:
    """Wait until a process has gone, and its parent knows."""

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    await until(gone, f"the end of process {pid}")


class Observer:
    """A connection from which a test looks at the other ones of its database."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True, application_name="observer")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def rows(self, query: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._connection.execute(query, parameters).fetchall()

    def waiting(self) -> list[int]:
        """The backends of this database that wait for a lock."""
        return [
            pid
            for (pid,) in self.rows(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        ]

    async def see_waiting(self, count: int) -> list[int]:
        """Wait until that many backends wait for a lock."""
        return await until(lambda: len(pids := self.waiting()) >= count and pids, f"{count} lock waits") or []

    def in_transaction(self) -> list[tuple[Any, ...]]:
        """The clients of this database whose transaction is open, the observer left out."""
        return self.rows(
            "SELECT pid, state, query FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
        )

    def counts(self) -> dict[str, int]:
        """How many rows each table of the schema has."""
        tables = self.rows(
            "SELECT table_name FROM information_schema.tables"
            " WHERE table_schema = 'turnkeep' AND table_type = 'BASE TABLE' ORDER BY 1"
        )
        count = sql.SQL("SELECT count(*) FROM {}")
        return {
            name: self._connection.execute(count.format(sql.Identifier("turnkeep", name))).fetchall()[0][0]
            for (name,) in tables
        }

    def traces(self, conversations: Collection[uuid.UUID], text: str = "") -> dict[str, int]:
        """The tables that have rows with any of these ids, or with this text, anywhere in them, and how many."""
        wanted = [*map(str, conversations), *([text] if text else [])]
        count = sql.SQL("SELECT count(*) FROM {} AS t WHERE t::text ILIKE ANY (%s)")
        found = {
            name: self._connection.execute(
                count.format(sql.Identifier("turnkeep", name)), ([f"%{one}%" for one in wanted],)
            ).fetchall()[0][0]
            for name in (self.counts() if wanted else ())
        }
        return {name: rows for name, rows in found.items() if rows}

    def heads(self) -> list[tuple[Any, ...]]:
        """Every branch row as it stands."""
        return self.rows("SELECT * FROM turnkeep.branch ORDER BY conversation_id, branch")


@contextmanager
def transaction(dsn: str) -> Iterator[Connection]:
    """A connection in a transaction that is rolled back at the end unless the test ends it before.

    The server ends one that is held too long: then whoever waits for it without end goes on, and its test fails.
    """
    with closing(psycopg.connect(dsn, application_name="holder")) as connection:
        connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{_LONGEST_HELD}'")
        yield connection
        with suppress(psycopg.OperationalError):  # its server may have been lost meanwhile
            connection.rollback()


async def in_order(observer: Observer, held: AbstractContextManager[None], *calls: Awaitable[object]) -> list[Any]:
    """Run calls that wait for a lock, one behind the other, and give what they come to."""
    tasks = []
    with held:
        for count, call in enumerate(calls, 1):
            tasks.append(asyncio.ensure_future(call))
            await observer.see_waiting(count)
    return await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def branches_held(dsn: str, conversation_id: uuid.UUID, branch: int | None = None) -> Iterator[None]:
    """Lock the branch rows of a conversation, or one of them: whoever writes there waits."""
    with transaction(dsn) as holder:
        holder.execute(
            "SELECT FROM turnkeep.branch WHERE conversation_id = %s AND branch = coalesce(%s, branch)"
            " ORDER BY branch FOR UPDATE",
            (conversation_id, branch),
        )
        yield


@contextmanager
def conversation_held(dsn: str, conversation_id: uuid.UUID) -> Iterator[None]:
    """Lock the row of a conversation: whoever changes it, removes it or makes something of it waits."""
    with transaction(dsn) as holder:
        holder.execute("SELECT FROM turnkeep.conversation WHERE conversation_id = %s FOR UPDATE", (conversation_id,))
        yield


@contextmanager
def gate(dsn: str, table: LiteralString, event: LiteralString) -> Iterator[None]:
    """Stop whoever comes to a statement of that kind on a table, right before it touches a row."""
    with closing(psycopg.connect(dsn, application_name="holder", autocommit=True)) as holder:
        holder.execute("SELECT pg_advisory_lock(4711)")
        holder.execute(
            "CREATE OR REPLACE FUNCTION public.gate() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$"
        )
        name = sql.Identifier(*table.split("."))
        holder.execute(
            sql.SQL("CREATE TRIGGER gate BEFORE {} ON {} EXECUTE FUNCTION public.gate()").format(sql.SQL(event), name)
        )
        yield
        holder.execute("SELECT pg_advisory_unlock(4711)")
    with closing(psycopg.connect(dsn, application_name="holder", autocommit=True)) as holder:
        holder.execute("DROP FUNCTION public.gate() CASCADE")


@contextmanager
def table_held(dsn: str, table: LiteralString, mode: LiteralString = "SHARE") -> Iterator[None]:
    """Lock a table: by default whoever would change it waits."""
    with transaction(dsn) as holder:
        holder.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(sql.Identifier(*table.split(".")), sql.SQL(mode)))
        yield
