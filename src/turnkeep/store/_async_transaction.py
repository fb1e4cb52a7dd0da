"""A transaction of a caller's own that commits together with a save: its effects and the save, or neither."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncConnection, AsyncCursor, IsolationLevel
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from turnkeep.errors import DatabaseError, PoolExhaustedError, UnavailableError, UncertainOutcomeError, UsageError
from turnkeep.model import PendingCall, Saved
from turnkeep.store import _async_waiting as waiting
from turnkeep.store._async_database import AsyncDatabase
from turnkeep.store._failures import Remedy, remedy_for, translated
from turnkeep.store._writes import UNCHANGED, Message

if TYPE_CHECKING:
    from turnkeep.store._async_branch import AsyncBranch

_BETWEEN_STATEMENTS = (TransactionStatus.IDLE, TransactionStatus.INTRANS, TransactionStatus.INERROR)

Rows = list[tuple[Any, ...]]
Block = AbstractAsyncContextManager[psycopg.AsyncTransaction]


class AsyncTransaction:
    """An open READ COMMITTED transaction on a connection of the store, made by `AsyncBranch.transaction`.

    `connection` is a psycopg `AsyncConnection` whose `commit()` and `rollback()` are refused: `save` commits, and
    leaving without it rolls back. Schema names are the connection's own affair.
    """

    def __init__(self, branch: AsyncBranch, database: AsyncDatabase) -> None:
        self._branch = branch
        self._database = database
        self._connection: waiting.Connection | None = None
        self._block: Block | None = None
        self._id = ""
        self._slot = False

    @property
    def connection(self) -> AsyncConnection[Any]:
        """The connection, as long as the transaction is open."""
        if self._connection is None or self._block is None:
            raise UsageError("this transaction has ended: its connection belongs to others now")
        return self._connection

    @property
    def lost(self) -> bool:
        """Whether its connection is lost, as long as it is open: then it is rolled back."""
        return self.connection.info.transaction_status == TransactionStatus.UNKNOWN

    @waiting.undisturbed
    async def begin(self) -> None:
        """Open it. A connection that a lost server has left behind is replaced, until the store's deadline.

        Waits while all connections but one are in transactions: the last one is for the calls they wait for.
        """
        try:
            await self._database.transactions.take(self._database.timeout)
        except TimeoutError as error:
            raise PoolExhaustedError(
                f"{self._branch!r}: as many transactions as pool_size ({self._database.pool_size}) allows were open "
                f"for {self._database.timeout:g} s: open the store with a larger one"
            ) from error
        self._slot = True
        await self._database.attempt(self._begin, keep=self._keep)

    async def check(self) -> None:
        """Raise `UncertainOutcomeError` if an SQL COMMIT or ROLLBACK of the caller's has ended the transaction.

        Raises `UnavailableError` if its connection is lost, and `DatabaseError` if one of its statements has failed:
        nothing of it is kept then.
        """
        connection = self._tidied(self.connection)
        match connection.info.transaction_status:
            case TransactionStatus.INTRANS:
                try:
                    current = await self._current_id(connection)
                except psycopg.Error as error:
                    raise translated(error, self._database.schema) from error
            case TransactionStatus.UNKNOWN:
                raise UnavailableError(
                    f"{self._branch!r}: the transaction's connection was lost, and nothing of it stands"
                )
            case TransactionStatus.INERROR:
                raise DatabaseError("a statement of the transaction has failed: nothing of it is kept")
            case _:
                current = ""
        if current != self._id:
            raise UncertainOutcomeError(
                f"{self._branch!r}: the transaction was ended by an SQL statement: what it did may stand or not. Leave "
                "COMMIT and ROLLBACK to the save"
            )

    async def committed(self) -> bool:
        """Whether what was done in it stands, after it has ended."""
        ((status,),) = await self._database.fetch("transaction_status", {"transaction": self._id})
        return bool(status == "committed")

    async def save(
        self,
        messages: Sequence[Message] = (),
        *,
        tool_calls: Sequence[object] | None = None,
        tool_results: Sequence[object] | None = None,
        answers: Sequence[PendingCall] | None = None,
        state: object = UNCHANGED,
        final: bool = False,
        embedding: Sequence[float] | None = None,
        embedding_model: str | None = None,
    ) -> Saved:
        """Save as `AsyncBranch.save` does, and commit: both stand when this returns, or neither (G1, G6).

        Raises what `AsyncBranch.save` raises, and `UncertainOutcomeError`; nothing has been committed then.
        """
        await self.check()
        write_id = uuid.uuid4()
        prepared = self._branch.prepared(
            messages, tool_calls, tool_results, answers, state, final, write_id, embedding, embedding_model
        )
        return await self._branch.perform(prepared, self._save)

    @waiting.undisturbed
    async def close(self) -> None:
        """Roll back what is still open, and give the connection back."""
        connection, block = self._connection, self._block
        self._connection = self._block = None
        if self._slot:
            self._slot = False
            self._database.transactions.give()
        if connection is None:
            return
        try:
            if block is not None and connection.info.transaction_status in _BETWEEN_STATEMENTS:
                await block.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)
            # Behind a pooler the session is not ours: there only SET LOCAL is safe.
            if not self._database.pooled and connection.info.transaction_status == TransactionStatus.IDLE:
                await self._tidied(connection).execute(self._database.statement("tidy_session"), prepare=False)
        except psycopg.Error:
            await connection.close()  # the server is gone, and with it what was open; or it is not fit for others
        finally:
            await self._database.give_back(connection)

    def _tidied(self, connection: AsyncConnection[Any]) -> AsyncConnection[Any]:
        """The connection with its own kind of rows and cursors, whatever the caller has chosen."""
        connection.row_factory = tuple_row
        connection.cursor_factory = AsyncCursor
        return connection

    async def _begin(self, connection: waiting.Connection) -> tuple[Block, str]:
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        block = connection.transaction()
        await block.__aenter__()
        return block, await self._current_id(connection)

    def _keep(self, connection: waiting.Connection, begun: tuple[Block, str]) -> None:
        self._connection, (self._block, self._id) = connection, begun

    async def _current_id(self, connection: AsyncConnection[Any]) -> str:
        cursor = await connection.execute(self._database.statement("transaction_id"))
        ((current,),) = await cursor.fetchall()
        return str(current)

    async def _save(self, name: str, parameters: Mapping[str, Any]) -> Rows:
        """Run the save's statement, and commit if it was done."""
        try:
            connection = self._tidied(self.connection)
            rows = await self._database.rows(connection, self._database.statement(name), parameters)
        except psycopg.Error as error:
            raise translated(error, self._database.schema) from error
        if rows[0][0] == "saved":
            await self._commit(parameters)
        return rows

    async def _commit(self, parameters: Mapping[str, Any]) -> None:
        block, self._block = self._block, None
        try:
            if block is not None:
                await block.__aexit__(None, None, None)
        except psycopg.Error as error:
            if remedy_for(error) is Remedy.GIVE_UP:  # a deferred constraint, for instance
                raise translated(error, self._database.schema) from error
            # A commit whose answer was lost may be under way still: it holds the branch's row until it has ended.
            place = {"conversation": self._branch.conversation_id, "branch": self._branch.branch}
            await self._database.fetch("lock", place)
            if await self._branch.first_outcome(parameters["write_id"], parameters["phase"]) is None:
                raise UnavailableError(f"{self._branch!r}: the commit failed, and nothing of it stands") from error
