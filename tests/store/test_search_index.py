"""Vectors in an index: as many are found as fit, near enough to the nearest, and the index is made beside others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

import turnkeep
from tests.conftest import Server, _database
from tests.observing import Observer, until
from tests.store.searching import Known, crowd
from turnkeep import AsyncStore
from turnkeep.search import Search, build_index, drop_unused_indexes
from turnkeep.store._search_statements import (
    Ground,
    fitting,
    index_name,
    index_pieces,
    plain_statement,
    statement,
)
from turnkeep.store._searching import Scope

pytestmark = pytest.mark.pgvector

DIMENSIONS = 24
CROWD = 15_000
BUILDING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ^@ 'CREATE INDEX'"
    " AND state = 'active'"
)
WAITING = f"{BUILDING} AND wait_event_type = 'Lock'"
NEAR = [1.0] + [0.0] * (DIMENSIONS - 1)


@pytest.fixture(scope="module")
def crowded(server: Server, template: str) -> str:
    """A database with an index over the vectors of x, who are many and near, and of y, few, and z, many, far off."""
    (dsn,) = (made := _database(server, template)) and [next(made)]
    turnkeep.migrate(dsn, dimensions=DIMENSIONS)
    crowd(dsn, "x", CROWD, near=3.0, dimensions=DIMENSIONS)
    crowd(dsn, "y", 50, near=0.5, dimensions=DIMENSIONS)
    crowd(dsn, "z", 12_000, near=0.5, dimensions=DIMENSIONS)

    async def build() -> None:
        async with turnkeep.open(dsn) as store:
            assert await build_index(store, "a model")

    asyncio.run(build())
    return dsn


@pytest.fixture
async def crowd_store(crowded: str) -> AsyncIterator[AsyncStore]:
    async with turnkeep.open(crowded) as store:
        yield store


def nearest(dsn: str, agents: list[str], count: int) -> list[str]:
    """What is nearest, by looking at all."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SET enable_indexscan = off")
        rows = connection.execute(
            "SELECT v.external_id FROM turnkeep.document AS d JOIN turnkeep.conversation AS v USING (conversation_id)"
            " WHERE v.agent_id = ANY (%s) ORDER BY d.embedding OPERATOR(public.<=>) %s::public.vector LIMIT %s",
            (agents, str(NEAR), count),
        ).fetchall()
    return [name for (name,) in rows]


@pytest.mark.parametrize(
    ("agent", "limit"), [("y", 20), ("y", 50), ("z", 100), ("z", 500), ("x", 20), ("x", 500), (None, 100), (None, 1000)]
)
async def test_as_many_are_found_as_fit_and_nearly_all_the_nearest(
    crowd_store: AsyncStore, crowded: str, agent: str | None, limit: int
) -> None:
    """Few or many, among many more that are nearer."""
    search = Search(crowd_store, Known({"near": NEAR}))
    result = await search.search("near", mode="semantic", agent=agent, limit=limit)
    found = [hit.external_id for hit in result.hits]
    assert len(set(found)) == limit
    expected = nearest(crowded, ["x", "y", "z"] if agent is None else [agent], limit)
    assert len({*found} & {*expected}) >= 0.95 * limit
    assert result.exact == (agent in ("y", "z"))


async def test_where_the_index_has_too_few_all_are_looked_at(store: AsyncStore, dsn: str) -> None:
    crowd(dsn, "x", 150, near=1.0, dimensions=768)
    assert await build_index(store, "a model")
    result = await Search(store, Known({"near": [1.0]})).search("near", mode="semantic", limit=140)
    assert (len(result.hits), result.exact) == (140, True)
    result = await Search(store, Known({"near": [1.0]})).search("near", mode="semantic", limit=151)
    assert len(result.hits) == 150


async def test_what_is_near_is_found_by_the_models_index(crowded: str) -> None:
    ground = Ground(DIMENSIONS, "public", True, True)
    near = statement("nearest_indexed", "turnkeep", **fitting("a model", ground, indexed=True))
    other = statement("nearest_indexed", "turnkeep", **fitting("another", ground, indexed=True))
    asked = {**vars(Scope()), "vector": str(NEAR), "rows": 100, "limit": 10, "whole": False}
    with psycopg.connect(crowded) as connection:
        plan = str(connection.execute(b"EXPLAIN " + near, asked).fetchall())
        assert index_name("a model") in plan
        assert index_name("a model") not in str(connection.execute(b"EXPLAIN " + other, asked).fetchall())
        asked["agent"] = "x"
        assert index_name("a model") in str(connection.execute(b"EXPLAIN " + near, asked).fetchall())


async def test_settings_of_a_search_are_its_transactions_own(crowded: str) -> None:
    async with turnkeep.open(crowded, pool_size=1) as store:
        await Search(store, Known({"near": NEAR})).search("near", mode="semantic", limit=300)

        async def ask(connection: psycopg.AsyncConnection[object]) -> object:
            cursor = await connection.execute(
                "SELECT current_setting('hnsw.ef_search'), current_setting('hnsw.iterative_scan')"
            )
            return await cursor.fetchone()

        assert await store._database.attempt(ask) == ("40", "off")


def valid(observer: Observer, model: str) -> list[bool]:
    rows = observer.rows("SELECT c.relname, i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid")
    return [whole for name, whole in rows if name == index_name(model)]


async def test_an_index_is_made_once_and_a_broken_one_anew(store: AsyncStore, dsn: str, observer: Observer) -> None:
    crowd(dsn, "x", 10, near=1.0, dimensions=768)
    assert await build_index(store, "a model")
    assert await build_index(store, "a model")
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = (SELECT oid FROM pg_class WHERE relname = %s)",
            (index_name("a model"),),
        )
    assert valid(observer, "a model") == [False]
    result = await Search(store, Known({"near": [1.0]})).search("near", mode="semantic", limit=10)
    assert (len(result.hits), result.exact) == (10, True)
    assert await build_index(store, "a model")
    assert valid(observer, "a model") == [True]


async def test_an_index_that_a_dead_builder_has_left_is_made_anew(
    store: AsyncStore, dsn: str, observer: Observer
) -> None:
    """It waits for an older transaction, dies, and leaves an index that nothing uses."""
    crowd(dsn, "x", 10, near=1.0, dimensions=768)
    with psycopg.connect(dsn) as older:
        older.execute("UPDATE turnkeep.document SET tries = tries")
        building = asyncio.create_task(build_index(store, "a model"))
        ((waiting,),) = await until(lambda: observer.rows(WAITING), "the index waiting for the older transaction")
        assert not await build_index(store, "a model")  # another one is at it
        observer.rows(f"SELECT pg_terminate_backend({waiting})")
        with pytest.raises(turnkeep.DatabaseError):
            await building
    assert valid(observer, "a model") == [False]
    assert await build_index(store, "a model")
    assert valid(observer, "a model") == [True]


async def test_an_index_that_a_server_still_makes_for_a_dead_process_is_left_alone(
    store: AsyncStore, dsn: str, observer: Observer
) -> None:
    crowd(dsn, "x", 10, near=1.0, dimensions=768)
    create = plain_statement("create_index", "turnkeep", **index_pieces("a model", Ground(768, "public", True)))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as orphan:
        with psycopg.connect(dsn) as older:
            older.execute("UPDATE turnkeep.document SET tries = tries")
            making = asyncio.create_task(orphan.execute(create))
            await until(lambda: valid(observer, "a model") == [False], "the index half made")
            assert not await build_index(store, "a model")
            older.rollback()
        await making
    assert valid(observer, "a model") == [True]
    assert await build_index(store, "a model")


async def test_who_gives_up_waiting_leaves_nothing_that_is_used(
    store: AsyncStore, dsn: str, observer: Observer
) -> None:
    crowd(dsn, "x", 10, near=1.0, dimensions=768)
    with psycopg.connect(dsn) as older:
        older.execute("UPDATE turnkeep.document SET tries = tries")
        with pytest.raises(turnkeep.UnavailableError, match="pg_stat_progress_create_index"):
            await build_index(store, "a model", seconds=0.5)
    await until(lambda: not observer.rows(BUILDING), "the end of who gave up")
    assert await build_index(store, "a model")
    assert valid(observer, "a model") == [True]


async def test_indexes_of_models_that_are_gone_are_dropped(store: AsyncStore, dsn: str, observer: Observer) -> None:
    crowd(dsn, "x", 10, near=1.0, dimensions=768)
    assert await build_index(store, "a model")
    assert await build_index(store, "it's \\ 100% 'odd'")
    assert await drop_unused_indexes(store) == [index_name("it's \\ 100% 'odd'")]
    assert (valid(observer, "a model"), valid(observer, "it's \\ 100% 'odd'")) == ([True], [])


@pytest.mark.parametrize(("dimensions", "indexed"), [(2000, True), (2001, True), (4000, True), (4001, False)])
async def test_vectors_of_many_dimensions_are_indexed_in_half_precision_or_not_at_all(
    empty_dsn: str, dimensions: int, indexed: bool
) -> None:
    turnkeep.migrate(empty_dsn, dimensions=dimensions)
    crowd(empty_dsn, "x", 250, near=1.0, dimensions=dimensions)
    near = [1.0] + [0.0] * (dimensions - 1)
    async with turnkeep.open(empty_dsn) as store:
        assert await build_index(store, "a model") == indexed
        result = await Search(store, Known({"near": near})).search("near", mode="semantic", limit=7)
        assert (len(result.hits), result.exact) == (7, not indexed)
    if indexed:
        ground = Ground(dimensions, "public", True, True)
        with psycopg.connect(empty_dsn) as connection:
            connection.execute("SET enable_seqscan = off")
            connection.execute("SET enable_sort = off")
            near_statement = statement("nearest_indexed", "turnkeep", **fitting("a model", ground, indexed=True))
            asked = {**vars(Scope()), "vector": str(near), "rows": 100, "limit": 10, "whole": False}
            assert index_name("a model") in str(connection.execute(b"EXPLAIN " + near_statement, asked).fetchall())
