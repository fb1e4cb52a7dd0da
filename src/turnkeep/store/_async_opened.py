"""A store as something that is opened and closed, and sees all tenants or one."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from turnkeep import settings
from turnkeep._version import REVISION
from turnkeep.errors import NotFoundError, SchemaError, UsageError
from turnkeep.model import conversation_uuid
from turnkeep.redaction import Redact
from turnkeep.store import _arguments
from turnkeep.store import _async_waiting as waiting
from turnkeep.store._archived import Archived
from turnkeep.store._async_database import AsyncDatabase
from turnkeep.store._async_waiting import in_thread
from turnkeep.store._details import check_name
from turnkeep.store._statements import statements

if TYPE_CHECKING:
    from turnkeep.embedded import EmbeddedPostgres

Id = str | uuid.UUID
"""A conversation's id: a UUID, or a text of one's own."""

BranchId = int | str
"""A branch: its number, or its name."""


class AsyncOpened:
    """What every part of a store needs: its database, and what ids mean in it."""

    def __init__(
        self, database: str, schema: str, *, pool_size: int, timeout: float, redact: Redact | None = None
    ) -> None:
        self._named = database
        self._schema = schema
        self._pool_size = pool_size
        self._timeout = timeout
        self._redact = redact
        self._embedded: EmbeddedPostgres | None = None
        self._opened: AsyncDatabase | None = None
        self._tenant: str | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and check that the schema is there and not older than this release.

        The embedded Postgres is started if need be, and its schema is brought up to date: made where it is the default
        one, as nothing else is. Raises `UnavailableError`, `SchemaError`, `EmbeddedError`.
        """
        if self._tenant is not None:
            raise UsageError("one tenant's view of a store is open as long as the store is: open that")
        conninfo = self._named
        if conninfo == settings.EMBEDDED:
            # Its users pay for it, nobody else.
            from turnkeep.embedded import EmbeddedPostgres
            from turnkeep.store._migrate import bring_up_to_date

            self._embedded = await in_thread(EmbeddedPostgres.start)
            conninfo = self._embedded.conninfo
            try:
                await in_thread(bring_up_to_date, conninfo, self._schema)
            except BaseException:
                await self.close()
                raise
        revive = None if self._embedded is None else self._embedded.ensure
        database = AsyncDatabase(
            conninfo, self._schema, pool_size=self._pool_size, timeout=self._timeout, revive=revive
        )
        database.redact = self._redact
        await database.open()
        self._opened = database
        try:
            await self.check_revision()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections, and stop being a user of the embedded Postgres."""
        if self._opened is not None:
            await self._opened.close()
        if self._embedded is not None:
            await in_thread(self._embedded.release)

    def tenant(self, name: str) -> Self:
        """Give this store as one tenant sees it: the same connections, open as long as this one is.

        A text id is the tenant's own there (see `conversation_uuid`), new conversations are the tenant's, lists show
        only those. `name` has 1 to 255 characters. It keeps names apart and is no wall: a UUID means the same
        conversation to everybody, and so does a worker's claim.
        """
        view = copy.copy(self)
        view._tenant = check_name(name, "tenant")
        view._database.check_usable()
        return view

    @property
    def conninfo(self) -> str:
        """The conninfo of the database in use."""
        return self._database.conninfo

    @property
    def pool_size(self) -> int:
        """The most connections it opens."""
        return self._pool_size

    @property
    def pooled(self) -> bool:
        """Whether a connection pooler stands before the server."""
        return self._database.pooled

    @property
    def dimensions(self) -> int:
        """How many dimensions a stored embedding has, as the schema was when this store was opened."""
        return self._database.dimensions

    def _uuid(self, conversation: Id) -> uuid.UUID:
        return conversation_uuid(conversation, tenant=self._tenant or "")

    async def _number(self, conversation: Id, branch: object) -> int | None:
        """The number of a branch, or None for the current one."""
        if not isinstance(branch, str):
            return _arguments.branch_number(branch)
        parameters = {"conversation": self._uuid(conversation), "name": check_name(branch, "branch")}
        rows = await self._database.fetch("branch_named", parameters)
        if not rows and (archived := await self._archived(conversation)) is not None:
            rows = [(number,)] if (number := archived.number_of(branch)) is not None else []
        if not rows:
            raise NotFoundError(f"conversation {str(conversation)!r} has no branch named {branch!r}")
        return int(rows[0][0])

    async def _ask(self, statement: bytes, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement of another file than the store's own."""

        async def run(connection: waiting.Connection) -> list[tuple[Any, ...]]:
            return await self._database.rows(connection, statement, parameters)

        return await self._database.attempt(run)

    async def _archived(self, conversation: Id) -> Archived | None:
        """What is archived of a conversation, for what the tables don't have; None where it is not in the archive."""
        key = self._uuid(conversation)
        statement = statements(self._schema, "sql/archive.sql")["archive_payload"]
        rows = await self._ask(statement, {"conversation": key})
        return await in_thread(Archived, key, rows[0]) if rows else None

    async def check_revision(self) -> None:
        """Check that the schema is not older than this release, and learn its `dimensions`. Raises `SchemaError`."""
        have = await self._database.learn_revision()
        if have is None or have < REVISION:
            raise SchemaError(
                f"schema {self._schema!r} is at revision {have or 0}, this release needs {REVISION}: "
                "run `turnkeep migrate`"
            )

    @property
    def _database(self) -> AsyncDatabase:
        if self._opened is None:
            raise UsageError("this store is not open: use it as `async with turnkeep.open() as store`")
        return self._opened


def no_conversation(conversation: Id, branch: object = None) -> NotFoundError:
    """The error that says that there is no such conversation, or no such branch of it."""
    which = "" if branch is None else f" with a branch {branch}"
    return NotFoundError(f"no conversation {str(conversation)!r}{which}")
