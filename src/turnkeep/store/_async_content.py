"""The rows of one conversation, read and written page by page in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, Final, TypeVar

import psycopg
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus

from turnkeep import transfer
from turnkeep._version import VERSION
from turnkeep.store import _async_waiting as waiting
from turnkeep.store._async_database import AsyncDatabase
from turnkeep.store._failures import translated
from turnkeep.store._statements import statements
from turnkeep.transfer import BRANCH, CHECKPOINT, CONVERSATION, DOCUMENT, MESSAGE, REQUEST, Content, Kind, Record

Result = TypeVar("Result")
Rows = list[tuple[Any, ...]]
Page = tuple[Kind, list[Record]]
"""Rows of one kind, as many as are read or written at once."""

_ROWS: Final = 1000
_BYTES: Final = 4 * 1024 * 1024
_PAGE: Final = {"rows": _ROWS, "bytes": _BYTES}


class AsyncContent:
    """One conversation in one transaction of ours. Each statement has the store's deadline, the whole has none."""

    def __init__(self, database: AsyncDatabase, connection: waiting.Connection, conversation: uuid.UUID) -> None:
        self._database = database
        self._connection = connection
        self._statements = {
            **statements(database.schema, "sql/transfer.sql"),
            **statements(database.schema, "sql/archive.sql"),
        }
        self.conversation = conversation

    # -- reading

    async def header(self, exported_at: datetime | None = None) -> Record | None:
        """The first line of the conversation, or None where there is none."""
        rows = await self._fetch(self._statement("conversation_rows"), {"exported_at": exported_at})
        return CONVERSATION.record([transfer.FORMAT, VERSION, *rows[0]]) if rows else None

    async def pages(self, *, documents: bool) -> AsyncIterator[Page]:
        """All rows that belong to it, in the order of the format."""
        sources = [
            (BRANCH, self._statement("branch_rows")),
            (MESSAGE, self._statement("message_rows")),
            (CHECKPOINT, self._statement("checkpoint_rows")),
            (REQUEST, self._statement("request_rows")),
        ]
        for kind, statement in sources:
            async for page in self._pages(kind, statement):
                yield page
        if documents:
            async for page in self.documents():
                yield page

    def documents(self) -> AsyncIterator[Page]:
        """Its documents alone."""
        return self._pages(DOCUMENT, self._statement("document_rows"))

    async def _pages(self, kind: Kind, statement: bytes) -> AsyncIterator[Page]:
        after = start = {
            "branch": -1,
            "position": -1,
            "turn_index": -1,
            "sub_step": -1,
            "number": -(2**63),
            "chunk": -1,
        }
        while rows := await self._fetch(statement, {**_PAGE, **after}):
            yield kind, [kind.record(row) for row in rows]
            after = {**start, **dict(zip(kind.columns, rows[-1], strict=True))}

    async def digest(self, *, local: bool = False) -> bytes | None:
        """The digest of what it holds, or None where there is none."""
        header = await self.header()
        if header is None:
            return None
        content = Content(local=local)
        content.add(CONVERSATION, header)
        async for kind, records in self.pages(documents=False):
            await waiting.in_thread(content.add, kind, *records)
        return content.digest()

    async def is_archived(self) -> bool | None:
        """Whether it is in the archive; None where there is none."""
        rows = await self._fetch(self._statement("presence"), {})
        return bool(rows[0][0]) if rows else None

    # -- writing

    async def put_all(self, header: Record, rows: Iterator[tuple[Kind, Record]], *, back: bool = False) -> bool:
        """Insert all rows, and the conversation itself unless they go back under the numbers they had here.

        False, and the transaction is to be rolled back, where there is one of that id. What reads the rows may block.
        """
        first = not back
        if first and "parent_conversation_id" in header:
            # Held until this commits, as where a child is made: an erasure of the parent then finds its child.
            await self._run(self._statement("hold_parent"), {"parent": header["parent_conversation_id"]})
        pages = paged(rows)
        while (page := await waiting.in_thread(next, pages, None)) is not None:
            kind, records = page
            if not await self._put(kind, records, back=back):
                return False
            # Branches first: whoever makes a conversation does it in this order.
            if first and not await self._fetch(self._statement("put_conversation"), {"lines": _array([header])}):
                return False
            first = False
        return True

    async def _put(self, kind: Kind, records: Sequence[Record], *, back: bool) -> bool:
        """Insert rows of a kind. False where a branch is there already."""
        lines = {"lines": _array(records)}
        match kind.name:
            case "branch":
                return len(await self._fetch(self._statement("put_branches"), lines)) == len(records)
            case "message":
                statement = self._statement("put_messages")
            case "checkpoint" if back:
                statement = self._statement("put_checkpoints_back")
            case "checkpoint":
                statement = self._statement("put_checkpoints")
            case "request" if back:
                statement = self._statement("put_requests_back")
            case "request":
                statement = self._statement("put_requests")
            case _:
                statement = self._statement("put_documents")
        await self._run(statement, lines)
        return True

    async def put_pointers(self) -> None:
        """Have the turns indexed that have no document."""
        await self._run(self._statement("put_pointers"), {})

    # -- the archive

    async def close(self, ended_seconds: float | None, idle_seconds: float | None) -> tuple[Any, ...]:
        """Lock it so that nobody writes to it: whether it may be archived, and what stands in the way."""
        age = {"ended_seconds": ended_seconds, "idle_seconds": idle_seconds}
        return (await self._fetch(self._statement("archive_close"), age))[0]

    async def open(self) -> bool | None:
        """Lock it: whether it is archived; None where there is none."""
        rows = await self._fetch(self._statement("archive_open"), {})
        return bool(rows[0][0]) if rows else None

    async def payload(self) -> tuple[Any, ...] | None:
        """Its row in the archive."""
        rows = await self._fetch(self._statement("archive_payload"), {})
        return rows[0] if rows else None

    async def move(self, row: Mapping[str, Any]) -> None:
        """Put a payload in the place of its rows."""
        await self._run(self._statement("archive_move"), row)

    async def size(self) -> tuple[Any, ...] | None:
        """What its row in the archive comes to."""
        rows = await self._fetch(self._statement("archive_size"), {})
        return rows[0] if rows else None

    async def take_out(self) -> None:
        """Remove the payload whose rows are back."""
        await self._run(self._statement("archive_take_out"), {})

    # -- statements

    def _statement(self, name: str) -> bytes:
        return self._statements[name]

    async def _fetch(self, statement: bytes, parameters: Mapping[str, Any]) -> Rows:
        async with waiting.until(monotonic() + self._database.timeout, self._connection):
            return await self._database.rows(
                self._connection, statement, {"conversation": self.conversation, **parameters}
            )

    async def _run(self, statement: bytes, parameters: Mapping[str, Any]) -> None:
        async with waiting.until(monotonic() + self._database.timeout, self._connection):
            await self._connection.execute(statement, {"conversation": self.conversation, **parameters})


def paged(rows: Iterator[tuple[Kind, Record]]) -> Iterator[Page]:
    """The rows, as many of a kind as a statement takes."""
    records: list[Record] = []
    of: Kind | None = None
    size = 0
    for kind, record in rows:
        if of is not None and (kind is not of or len(records) == _ROWS or size > _BYTES):
            yield of, records
            records, size = [], 0
        of = kind
        records.append(record)
        size += sum(len(value) for value in record.values() if isinstance(value, str | list))
    if of is not None:
        yield of, records


def _array(records: Sequence[Record]) -> str:
    return f"[{b','.join(transfer.text(record) for record in records).decode()}]"


async def in_transaction(
    database: AsyncDatabase,
    conversation: uuid.UUID,
    action: Callable[[AsyncContent], Awaitable[Result]],
    *,
    snapshot: bool = False,
    repeatable: bool = True,
) -> Result:
    """Do something with a conversation's rows in one transaction, READ COMMITTED or on a snapshot that it only reads.

    It is done again where a server was lost, or a statement was unlucky; unless what it has done outside of the
    database can't be done twice.
    """
    level = IsolationLevel.REPEATABLE_READ if snapshot else IsolationLevel.READ_COMMITTED

    async def run(connection: waiting.Connection) -> Result:
        begun = False
        try:
            async with waiting.until(monotonic() + database.timeout, connection):
                await connection.set_isolation_level(level)
                await connection.set_read_only(snapshot)
                block = connection.transaction()
                await block.__aenter__()
            begun = True
            try:
                result = await action(AsyncContent(database, connection, conversation))
            except BaseException as failure:
                if connection.info.transaction_status in _BETWEEN_STATEMENTS:
                    await block.__aexit__(type(failure), failure, failure.__traceback__)
                raise
            try:
                async with waiting.until(monotonic() + database.timeout, connection):
                    await block.__aexit__(None, None, None)
            except psycopg.Error:
                if not snapshot:
                    raise  # else all has been read, and nothing is to be committed: once more would be once too often
            return result
        except psycopg.Error as error:
            if repeatable or not begun:
                raise
            raise translated(error, database.schema) from error
        finally:
            if connection.info.transaction_status == TransactionStatus.IDLE:
                await connection.set_read_only(None)

    return await database.attempt(run, bounded=False)


_BETWEEN_STATEMENTS = (TransactionStatus.IDLE, TransactionStatus.INTRANS, TransactionStatus.INERROR)
