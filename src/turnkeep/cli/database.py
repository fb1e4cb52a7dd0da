"""The database that the options name: reached and opened."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from turnkeep import settings
from turnkeep.cli.options import Options

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore

_CONNECTING = 10.0
_VARIABLES = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "dbname": "PGDATABASE",
    "user": "PGUSER",
    "service": "PGSERVICE",
}


@asynccontextmanager
async def opened(options: Options, *, pool_size: int = 1) -> AsyncIterator[AsyncStore]:
    """The store, open. A server that can't be reached is said at once, with the reason, and not waited for."""
    import turnkeep
    from turnkeep.store._doctor import check_reachable

    named = settings.database(options.dsn)
    if named != settings.EMBEDDED:
        await check_reachable(named, options.schema, min(options.timeout, _CONNECTING))
    redact = None
    if options.redact is not None:
        from turnkeep.cli.agents import load_hook

        redact = load_hook(options.redact)
    async with turnkeep.open(
        named, schema=options.schema, pool_size=pool_size, timeout=options.timeout, redact=redact
    ) as store:
        yield store if options.tenant is None else store.tenant(options.tenant)


def place_of(store: AsyncStore, options: Options) -> str:
    """Where a store is, for people: no user, no password."""
    from turnkeep.store._failures import parsed

    if settings.database(options.dsn) == settings.EMBEDDED:
        return "the private Postgres"
    named = {**{key: os.environ.get(variable) for key, variable in _VARIABLES.items()}, **parsed(store.conninfo)}
    if named["service"]:
        return f"the service {named['service']}"
    host = named["host"] or named["hostaddr"] or "this machine"
    port = f":{named['port']}" if named["port"] and not host.startswith("/") else ""
    return f"the database {named['dbname'] or named['user'] or 'of its role'} at {host}{port}"


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
