"""Conversations written to a file, and made from one."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, cast

import psycopg

from turnkeep.errors import ConflictError, CorruptionError, DatabaseError, InvalidInputError, TransferError
from turnkeep.model import Transferred
from turnkeep.store import _details
from turnkeep.store._archived import Archived
from turnkeep.store._async_archive import pack
from turnkeep.store._async_content import AsyncContent, in_transaction, paged
from turnkeep.store._async_opened import AsyncOpened, Id, no_conversation
from turnkeep.store._async_waiting import in_thread
from turnkeep.store._copies import copied
from turnkeep.store._statements import statements
from turnkeep.transfer import CONVERSATION, Content, Kind, Reader, Record, Writer

Progress = Callable[[int, int], None]
"""Is told how many conversations are done, and how many bytes of lines."""

_PAGE = 1000
_CHUNK = 1024 * 1024
_NAMED = 5
_AHEAD = timedelta(days=1)  # by how much the clock of another database may be


class AsyncTransfer(AsyncOpened):
    """The part of a store that exports and imports."""

    async def export(
        self,
        file: BinaryIO,
        conversations: Sequence[Id] | None = None,
        *,
        children: bool = False,
        agent_id: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        documents: bool = True,
        progress: Progress | None = None,
    ) -> Transferred:
        """Write conversations to a file as lines of JSON, exact and with their digests.

        Those given, with their `children` if that is said; else all that have the agent, all of the `tags`, and
        metadata that contain `metadata`. Each is written as it is at one moment, whoever writes to it meanwhile: leases
        are left out, and one that is being run is written as one that waits for a worker. `documents` says whether the
        texts and embeddings of a search come along. Archived ones are written from the archive, and say so.

        Raises `NotFoundError` for one that is not there, before anything is written. One whose archive is damaged is
        left out: `CorruptionError` names it when the others have been written, and the file is whole without it.
        """
        ids = None if conversations is None else await self._family(conversations, children=children)
        filters = {
            "agent": agent_id,
            "tags": None if tags is None else _details.check_tags(tags),
            "metadata": None if metadata is None else _details.metadata_text(metadata),
        }
        output = _Output(file)
        moment = await self._moment()
        damaged: list[uuid.UUID] = []
        async for conversation in self._chosen(ids, filters):
            if not await self._export_one(output, conversation, moment, documents):
                damaged.append(conversation)
            if progress is not None:
                progress(output.writer.conversations, output.writer.bytes)
        await in_thread(output.end)
        if damaged:
            raise CorruptionError(
                f"the archive of conversation {_some(list(map(str, damaged)))} is damaged or missing: left out, "
                f"{output.writer.conversations} others were written. A backup has it as it was",
                left_out=damaged,
            )
        counts = output.counts
        return Transferred(output.writer.conversations, 0, counts["message"], counts["checkpoint"], output.writer.bytes)

    async def count_matching(
        self,
        *,
        agent_id: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        """How many conversations `export` would write, by the same filters."""
        filters = {
            "agent": agent_id,
            "tenant": self._tenant,
            "tags": None if tags is None else _details.check_tags(tags),
            "metadata": None if metadata is None else _details.metadata_text(metadata),
        }
        ((found,),) = await self._ask(self._transfer_statement("count_matching"), filters)
        return int(found)

    async def import_(
        self,
        file: BinaryIO,
        *,
        name: str = "the file",
        as_copy: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Transferred:
        """Make the conversations of an export, each in one transaction: all of it or nothing.

        Each line is checked before it is stored. A conversation that is there already with the same content is left
        alone, so that the same file again, or the rest of one after a crash, does no harm (G4). One that is there with
        other content is left as it is, and `ConflictError` names it when the others have been imported.

        With `as_copy` each becomes a conversation of a new id, with nothing of the old one's work: what was open stays
        open there as in a fork, requests stay behind. The same file again gives the same copies.

        Raises `TransferError` where the file is damaged, cut off or of a newer format: the conversations before that
        line have been imported, the one that it belongs to has not. `name` is what it calls the file. A store of one
        tenant takes that tenant's conversations only. Conversations may come before their parents, or without them:
        `missing_parents` counts those that are not there at the end.
        """
        moment = await self._moment()
        reader = Reader(file, name, (moment + _AHEAD).astimezone(UTC))
        tally = {"made": 0, "there": 0, "message": 0, "checkpoint": 0}
        conflicts: list[str] = []
        parents: set[uuid.UUID] = set()
        while (header := await in_thread(reader.conversation)) is not None:
            self._check_tenant(reader, header)
            rows = _Rows(reader, await self._normal(reader, header), tally, as_copy=as_copy)
            try:
                outcome = await self._import_one(rows, dry_run=dry_run)
            except DatabaseError as error:
                raise _unstorable(reader, error, f"conversation {rows.conversation}") from error
            if outcome == "conflict":
                conflicts.append(rows.header["external_id"])
            else:
                tally[outcome] += 1
            if outcome == "made" and not dry_run and "parent_conversation_id" in rows.header:
                parents.add(uuid.UUID(rows.header["parent_conversation_id"]))
            if progress is not None:
                progress(tally["made"] + tally["there"], reader.position)
        if conflicts:
            raise ConflictError(
                f"{_some(list(map(repr, conflicts)))}: in the database with other content than in {name}; "
                f"left as they are there, {tally['made']} others were imported. Import them as copies (as_copy, "
                "`turnkeep import --as-copy`)"
            )
        missing = 0
        if parents:
            ((missing,),) = await self._ask(self._transfer_statement("missing"), {"conversations": list(parents)})
        counts = tally["made"], tally["there"], tally["message"], tally["checkpoint"], reader.position
        return Transferred(*counts, missing_parents=missing)

    def _check_tenant(self, reader: Reader, header: Record) -> None:
        tenant = header.get("tenant")
        if self._tenant is not None and tenant != self._tenant:
            whose = "no tenant" if tenant is None else f"tenant {tenant[:100]!r}"
            raise reader.error(
                f"conversation {header['external_id'][:100]!r} is of {whose}, and this store is of tenant "
                f"{self._tenant!r}: import it with a store of no tenant, where it stays what it is"
            )

    async def _normal(self, reader: Reader, header: Record) -> Record:
        """The first line with its metadata as the database gives them back, whatever they were written like."""
        if header["metadata"] == "{}":
            return header
        try:
            ((text,),) = await self._ask(self._transfer_statement("metadata_text"), {"metadata": header["metadata"]})
        except DatabaseError as error:
            raise _unstorable(reader, error, "metadata") from error
        return {**header, "metadata": text}

    # -- one conversation

    async def _export_one(self, output: _Output, conversation: uuid.UUID, moment: datetime, documents: bool) -> bool:
        """Write a conversation, unless it is gone. False where its archive is damaged, and nothing is written."""

        async def write(content: AsyncContent) -> bool:
            header = await content.header(moment)
            if header is None:
                return True  # erased meanwhile
            row = await content.payload() if "archived_at" in header else None
            if "archived_at" in header and not await in_thread(Archived.is_whole, row):
                return False
            try:
                output.add(CONVERSATION, [header])
                if row is not None:
                    archived = paged(Archived.rows(conversation, row))
                    while (page := await in_thread(next, archived, None)) is not None:
                        await in_thread(output.add, *page)
                    if documents:
                        async for page in content.documents():
                            await in_thread(output.add, *page)
                else:
                    async for page in content.pages(documents=documents):
                        await in_thread(output.add, *page)
            except (psycopg.Error, CorruptionError) as error:
                raise output.broken(error, conversation) from error
            await in_thread(output.end_conversation)
            return True

        return await in_transaction(self._database, conversation, write, snapshot=True)

    async def _import_one(self, rows: _Rows, *, dry_run: bool) -> str:
        """What has become of a conversation: made, there, or conflict."""
        conversation = rows.conversation

        async def put(content: AsyncContent) -> None:
            if dry_run and await content.is_archived() is not None:
                raise _ThereError
            if dry_run:
                await in_thread(rows.skip)
                return
            if not await content.put_all(rows.header, rows.all):
                raise _ThereError
            await content.put_pointers()
            if rows.archived_at is not None:
                await pack(content, rows.archived_at)

        try:
            await in_transaction(self._database, conversation, put, repeatable=False)
        except _ThereError:
            await in_thread(rows.skip)
        else:
            rows.count()
            return "made"
        there = await self._content_digest(conversation)
        return "there" if there == rows.digest() else "conflict"

    async def _content_digest(self, conversation: uuid.UUID) -> bytes | None:
        """The digest of what is there of a conversation, in the tables or in the archive."""

        async def look(content: AsyncContent) -> bytes | None:
            header = await content.header()
            if header is None or "archived_at" not in header:
                return await content.digest()
            row = await content.payload()
            return await in_thread(_digest, header, iter(()) if row is None else Archived.rows(conversation, row))

        return await in_transaction(self._database, conversation, look, snapshot=True)

    # -- which

    async def _family(self, conversations: Sequence[Id], *, children: bool) -> list[uuid.UUID]:
        """The ids that are given, each there, with their children if that is wanted; each once."""
        if isinstance(conversations, str | bytes):
            raise InvalidInputError("conversations: expected a list of ids")
        found: dict[uuid.UUID, None] = {}
        for one in conversations:
            rows = await self._ask(self._transfer_statement("family"), {"conversation": self._uuid(one)})
            if not rows:
                raise no_conversation(one)
            found.update(dict.fromkeys(row[0] for row in (rows if children else rows[:1])))
        return list(found)

    async def _chosen(self, ids: Sequence[uuid.UUID] | None, filters: dict[str, Any]) -> AsyncIterator[uuid.UUID]:
        if ids is not None:
            for one in ids:
                yield one
            return
        after = uuid.UUID(int=0)
        while True:
            page = await self._ask(
                self._transfer_statement("matching"),
                {**filters, "tenant": self._tenant, "after": after, "limit": _PAGE},
            )
            for (one,) in page:
                yield one
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    async def _moment(self) -> datetime:
        """The time, by the database's clock."""
        ((moment,),) = await self._ask(self._transfer_statement("transfer_moment"), {})
        return cast("datetime", moment)

    def _transfer_statement(self, name: str) -> bytes:
        return statements(self._schema, "sql/transfer.sql")[name]


_BY_CONTENT = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded)


def _unstorable(reader: Reader, error: DatabaseError, what: str) -> Exception:
    """What a failure means if it comes from what was to be stored: at the latest line that was read."""
    cause = error.__cause__
    if not isinstance(cause, _BY_CONTENT):
        return error
    return reader.error(f"{what} can't be stored: {cause.diag.message_primary}")


def _digest(header: Record, rows: Iterator[tuple[Kind, Record]]) -> bytes:
    content = Content()
    content.add(CONVERSATION, header)
    for kind, record in rows:
        content.add(kind, record)
    return content.digest()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


class _ThereError(Exception):
    """There is a conversation of that id: what was begun is rolled back."""


class _Output:
    """A file that lines go to, a chunk at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._chunk: list[bytes] = []
        self._size = 0
        self._written = False
        self.writer = Writer()
        self.counts = {"message": 0, "checkpoint": 0}

    def add(self, kind: Kind, records: Sequence[Record]) -> None:
        """Write rows."""
        for record in records:
            self._put(self.writer.row(kind, record))

    def end_conversation(self) -> None:
        """Write the line that ends a conversation."""
        self._put(self.writer.end())
        for name in self.counts:
            self.counts[name] += self.writer.counts[name]

    def end(self) -> None:
        """Write the last line, and what is left."""
        self._put(self.writer.end_of_file())
        self._flush()

    def broken(self, error: Exception, conversation: uuid.UUID) -> Exception:
        """What a failure in the middle of a conversation means: it can't be begun again."""
        return TransferError(
            f"conversation {conversation}: it could not be read to its end ({error}); what was written "
            "has no end and can't be imported: export again"
        )

    def _put(self, line: bytes) -> None:
        self._chunk.append(line)
        self._size += len(line)
        if self._size >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._file.write(b"".join(self._chunk))
        self._chunk, self._size = [], 0


class _Rows:
    """A conversation as it is read from a file: its rows once, counted, with the digest of what they hold."""

    def __init__(self, reader: Reader, header: Record, tally: dict[str, int], *, as_copy: bool) -> None:
        self.header, rows = copied(header, reader.rows()) if as_copy else (header, reader.rows())
        self.conversation = uuid.UUID(self.header["conversation_id"])
        self.archived_at = self.header.get("archived_at")
        self.all = self._read(rows)
        self._content = Content()
        self._content.add(CONVERSATION, self.header)
        self._tally = tally
        self._counts = {"message": 0, "checkpoint": 0}

    def _read(self, rows: Iterator[tuple[Kind, Record]]) -> Iterator[tuple[Kind, Record]]:
        for kind, record in rows:
            self._content.add(kind, record)
            if kind.name in self._counts:
                self._counts[kind.name] += 1
            yield kind, record

    def skip(self) -> None:
        """Read what is left."""
        for _ in self.all:
            pass

    def digest(self) -> bytes:
        """The digest, when all has been read."""
        return self._content.digest()

    def count(self) -> None:
        """Count its rows in: they have been stored."""
        for name, number in self._counts.items():
            self._tally[name] += number
