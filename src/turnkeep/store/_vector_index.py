"""Indexes over embeddings: one for each model's vectors, made beside the writers, and what uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncConnection, IsolationLevel, sql

from turnkeep.errors import UnavailableError
from turnkeep.store._failures import translated
from turnkeep.store._search_statements import (
    INDEX_PREFIX,
    Ground,
    index_name,
    index_pieces,
    plain_statement,
    read_ground,
    statement,
)

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore


async def build_index(store: AsyncStore, model: str, *, seconds: float = 3600.0) -> bool:
    """Make the index over a model's vectors, beside those who write, and say whether it is there now.

    It is not where somebody else is making it, where pgvector is missing, or for vectors of more than 4,000 dimensions,
    which no index takes. One that was left half made is made anew. Killed or out of time half way it is
    harmless: nothing uses an index that is not whole. It waits for transactions that are older than
    itself, which nobody waits for in turn. Raises `UnavailableError` at the end of that time.
    """
    async with _builder(store, seconds) as building:
        if building is None:
            return False
        ground = await building.ground(model)
        if ground is None or not ground.indexable or ground.indexed:
            return ground is not None and ground.indexed
        if ground.begun and not await building.drop(index_name(model)):
            return False
        await building.create(model, ground)
        found = await building.ground(model)
        return found is not None and found.indexed


async def drop_unused_indexes(store: AsyncStore, *, seconds: float = 3600.0) -> list[str]:
    """Drop the indexes of models that no vector is of any more, and give their names."""
    dropped = []
    async with _builder(store, seconds) as building:
        if building is not None:
            for name in await building.unused():
                if await building.drop(name):
                    dropped.append(name)
    return dropped


class _Building:
    """A connection of its own, outside any transaction block, as making an index beside writers needs one."""

    def __init__(self, connection: AsyncConnection[Any], schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def _fetch(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        cursor = await self._connection.execute(statement(name, self._schema), parameters or {})
        return await cursor.fetchall()

    async def ground(self, model: str) -> Ground | None:
        return await read_ground(self._fetch, model)

    async def create(self, model: str, ground: Ground) -> None:
        await self._connection.execute(self._statement("create_index", **index_pieces(model, ground)))

    async def drop(self, name: str) -> bool:
        """Drop an index, unless it may be one that somebody is making at this moment."""
        ((busy,),) = await self._fetch("index_work")
        if not busy:
            await self._connection.execute(self._statement("drop_index", index=sql.Identifier(name)))
        return not busy

    def _statement(self, name: str, **pieces: sql.Composable) -> bytes:
        return plain_statement(name, self._schema, **pieces)

    async def unused(self) -> list[str]:
        models = {index_name(model) for (model,) in await self._fetch("models")}
        names = [name for (name,) in await self._fetch("vector_indexes", {"prefix": INDEX_PREFIX})]
        return [name for name in names if name not in models]


@asynccontextmanager
async def _builder(store: AsyncStore, seconds: float) -> AsyncIterator[_Building | None]:
    """What makes indexes; None while another process of ours does.

    A transaction of a second connection says so: its lock is gone with this process, and without a snapshot it keeps
    nobody waiting.
    """
    database = store._database

    async def connect() -> AsyncConnection[Any]:
        return await AsyncConnection.connect(
            store.conninfo, autocommit=True, prepare_threshold=None, client_encoding="UTF8"
        )

    try:
        async with asyncio.timeout(seconds):
            async with await connect() as guard, await connect() as connection:
                await guard.set_isolation_level(IsolationLevel.READ_COMMITTED)
                async with guard.transaction():
                    lock = sql.Literal(f"turnkeep indexes of {database.schema}")
                    # With parameters a portal would stay open, and with it a snapshot that the index waits for.
                    cursor = await guard.execute(plain_statement("lock_indexes", database.schema, lock=lock))
                    row = await cursor.fetchone()
                    yield _Building(connection, database.schema) if row == (True,) else None
    except TimeoutError as error:
        raise UnavailableError(
            f"the index was not made within {seconds:g} s; what was begun is made anew next time: see "
            "pg_stat_progress_create_index for what it waited for"
        ) from error
    except psycopg.Error as error:
        raise translated(error, database.schema) from error
