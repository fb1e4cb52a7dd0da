"""The database that the options name: reached, opened, and conversations in it found."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from turnkeep import settings
from turnkeep.cli.options import Options
from turnkeep.errors import NotFoundError

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore

LAST = "@last"

# Positions are int4 in the database; more digits name nothing.
_CHECKPOINT = re.compile(r"(.+)@(\d{1,9})\.(\d{1,9})", re.DOTALL)
_CONNECTING = 10.0


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[AsyncStore]:
    """The store, open. A server that can't be reached is said at once, with the reason, and not waited for."""
    import turnkeep
    from turnkeep.store._doctor import check_reachable

    named = settings.database(options.dsn)
    if named != settings.EMBEDDED:
        await check_reachable(named, options.schema, min(options.timeout, _CONNECTING))
    async with turnkeep.open(named, schema=options.schema, pool_size=1, timeout=options.timeout) as store:
        yield store


@contextmanager
def conninfo(options: Options) -> Iterator[str]:
    """The conninfo of the database, whose embedded server runs meanwhile."""
    named = settings.database(options.dsn)
    settings.check_schema_name(options.schema)
    if named != settings.EMBEDDED:
        yield named
        return
    from turnkeep.embedded import EmbeddedPostgres

    with EmbeddedPostgres.start() as running:
        yield running.conninfo


async def find(store: AsyncStore, reference: str) -> tuple[UUID, tuple[int, int] | None]:
    """The conversation that a reference means, and the (turn_index, sub_step) if it names one.

    A reference is an external id, a UUID or its first digits, or `@last`, each with `@turn.sub_step` behind
    it or not. An id may contain "@" itself, so the whole text is tried first.
    """
    checkpoint = _CHECKPOINT.fullmatch(reference)
    try:
        return await _conversation(store, reference), None
    except NotFoundError:
        if checkpoint is None:
            raise
    return await _conversation(store, checkpoint[1]), (int(checkpoint[2]), int(checkpoint[3]))


async def _conversation(store: AsyncStore, reference: str) -> UUID:
    if reference != LAST:
        try:
            return await store.find(reference)
        except NotFoundError as error:
            raise NotFoundError(f"{error}: `turnkeep ls` lists them; of a UUID, 4 digits or more are needed") from error
    newest = await store.conversations(limit=1)
    if not newest:
        raise NotFoundError("there is no conversation yet")
    return newest[0].conversation_id
