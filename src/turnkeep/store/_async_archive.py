"""The archive: conversations put away compressed, read there, and put back."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnkeep import transfer
from turnkeep.errors import (
    ConflictError,
    CorruptionError,
    InvalidInputError,
    LeaseHeldError,
    TurnOpenError,
)
from turnkeep.model import ArchivedConversation, Archiving
from turnkeep.store import _arguments, _details
from turnkeep.store._archived import Archived
from turnkeep.store._async_content import AsyncContent, in_transaction
from turnkeep.store._async_opened import AsyncOpened, Id, no_conversation
from turnkeep.store._async_waiting import in_thread
from turnkeep.store._payload import Packer
from turnkeep.store._statements import statements
from turnkeep.transfer import CONVERSATION, Content, Kind, Record, Writer


class AsyncArchive(AsyncOpened):
    """The part of a store that knows the archive."""

    async def archive(
        self, conversation: Id, *, ended_seconds: float | None = None, idle_seconds: float | None = None
    ) -> Archiving:
        """Put a conversation into the archive: its rows become one compressed row, in one transaction.

        It stays readable (`restore`, `history`, `branches`, `describe`) and takes no writes, which raise
        `ConversationArchivedError`. Documents stay, so that a search still finds it: a turn whose text has not
        been made by then it does not find until it is unarchived (`fill_documents` of the conversation makes them
        first, as `turnkeep archive` does). Nothing happens where it is archived already.

        Refused while somebody runs it (`LeaseHeldError`), a turn of it is open (`TurnOpenError`) or a request waits
        (`ConflictError`); one that has been ended is archived whatever was open then. A writer beside it is waited for.
        Takes as long as it takes; each statement ends within the store's `timeout`.

        With the seconds of `to_archive` one that somebody has used since it was listed is left alone, and `skipped`
        says so: that is decided under the same locks.
        """
        name = str(conversation)

        async def put_away(content: AsyncContent) -> Archiving:
            outcome, branch, owner, until, waiting = await content.close(ended_seconds, idle_seconds)
            place = f"conversation {name!r}, branch {branch}"
            remedy = "nothing was archived: let it come to its end, or end the conversation first (`turnkeep end`)"
            match outcome:
                case "not_found":
                    raise no_conversation(conversation)
                case "archived":
                    return await _archiving(content, repeated=True)
                case "not_due":
                    return Archiving(content.conversation, 0, 0, 0, 0, 0, 0, skipped=True)
                case "lease_held":
                    held = f"under a lease until {until:%H:%M:%S.%f %Z}"
                    raise LeaseHeldError(f"{place}: {owner} is running it, {held}; nothing was archived")
                case "request_waits":
                    raise ConflictError(f"{place}: {waiting} requests wait on it; {remedy}")
                case "turn_open":
                    raise TurnOpenError(f"{place}: a turn is open; {remedy}")
            await pack(content)
            return await _archiving(content, repeated=False)

        return await in_transaction(self._database, self._uuid(conversation), put_away)

    async def unarchive(self, conversation: Id) -> Archiving:
        """Put an archived conversation back, each row as it was.

        What has been put back is read again and compared before it is committed. Raises `CorruptionError` where the
        archive is damaged; nothing has been changed then. Nothing happens where it is not archived.
        """

        async def put_back(content: AsyncContent) -> Archiving:
            archived = await content.open()
            if archived is None:
                raise no_conversation(conversation)
            if not archived:
                return Archiving(content.conversation, 0, 0, 0, 0, 0, 0, repeated=True)
            found = await _archiving(content, repeated=False)
            row = await content.payload()
            if row is None:
                raise CorruptionError(f"conversation {content.conversation} is archived, and its archive is missing")
            await _unpack(content, row)
            await content.take_out()
            return found

        return await in_transaction(self._database, self._uuid(conversation), put_back)

    async def archived(
        self,
        *,
        agent_id: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 50,
        before: ArchivedConversation | None = None,
    ) -> list[ArchivedConversation]:
        """List what is in the archive, the newest first: at most `limit` (1 to 1,000) of them.

        Filters are those of `conversations`. `before` is the last of one page and gives the next one.
        """
        if before is not None and not isinstance(before, ArchivedConversation):
            raise InvalidInputError(f"before: expected an ArchivedConversation, got {type(before).__name__}")
        rows = await self._ask(
            self._archive_statement("list_archived"),
            {
                "agent": agent_id,
                "tenant": self._tenant,
                "tags": None if tags is None else _details.check_tags(tags),
                "metadata": None if metadata is None else _details.metadata_text(metadata),
                "limit": _arguments.page(limit),
                "before_time": before and before.archived_at,
                "before_conversation": before and before.conversation_id,
            },
        )
        return [ArchivedConversation(*[*row[:5], tuple(row[5]), *row[6:]]) for row in rows]

    async def to_archive(
        self,
        *,
        ended_seconds: float | None = None,
        idle_seconds: float | None = None,
        agent_id: str | None = None,
        limit: int = 1000,
        after: uuid.UUID | None = None,
    ) -> list[uuid.UUID]:
        """List conversations that ended so long ago, or in which nothing has happened for so long and nothing is open.

        By id, at most `limit`; `after` is the last of one page and gives the next one.
        """
        rows = await self._ask(
            self._archive_statement("to_archive"),
            {
                "ended_seconds": ended_seconds,
                "idle_seconds": idle_seconds,
                "agent": agent_id,
                "tenant": self._tenant,
                "limit": _arguments.page(limit),
                "after": after or uuid.UUID(int=0),
            },
        )
        return [row[0] for row in rows]

    def _archive_statement(self, name: str) -> bytes:
        return statements(self._schema, "sql/archive.sql")[name]


async def pack(content: AsyncContent, archived_at: object = None) -> None:
    """Put a conversation's rows into the archive. Its branches are locked, or of this transaction's own making."""
    packer, writer = Packer(content.conversation), Writer()
    header = await content.header()
    if header is None:
        raise CorruptionError(f"conversation {content.conversation} has branches, and is missing itself")
    packer.add(writer.row(CONVERSATION, header))
    async for kind, records in content.pages(documents=False):
        await in_thread(_add, packer, writer, kind, records)
    packer.add(writer.end() + writer.end_of_file())
    payload = await in_thread(packer.payload)
    await content.move(
        {
            "format": transfer.FORMAT,
            "digest": hashlib.sha256(payload).digest(),
            "payload": payload,
            "raw_bytes": packer.raw_bytes,
            "branches": writer.counts["branch"],
            "checkpoints": writer.counts["checkpoint"],
            "messages": writer.counts["message"],
            "requests": writer.counts["request"],
            "archived_at": archived_at,
        }
    )


def _add(packer: Packer, writer: Writer, kind: Kind, records: Sequence[Record]) -> None:
    packer.add(writer.rows(kind, records))


async def _unpack(content: AsyncContent, row: tuple[Any, ...]) -> None:
    """Put the rows of a payload back into the tables, and see that they are the same there."""
    read = Content(local=True)

    def rows() -> Iterator[tuple[Kind, Record]]:
        for kind, record in Archived.rows(content.conversation, row):
            read.add(kind, record)
            yield kind, record

    if not await content.put_all({}, rows(), back=True):
        raise CorruptionError(f"conversation {content.conversation} is archived, and has branches; nothing was changed")
    if await content.digest(local=True) != read.digest():
        raise CorruptionError(f"conversation {content.conversation} can't be put back as it was; nothing was changed")


async def _archiving(content: AsyncContent, *, repeated: bool) -> Archiving:
    row = await content.size()
    if row is None:
        raise CorruptionError(f"conversation {content.conversation} is archived, and its archive is missing")
    return Archiving(*[content.conversation, *row[:6], repeated])
