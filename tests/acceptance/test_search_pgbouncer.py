"""Searches, and indexes over vectors, through pgbouncer in transaction mode (G10)."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

import turnkeep
from tests.acceptance.pgbouncer import PgBouncer
from tests.store.searching import Known, crowd
from turnkeep.search import Search, build_index

pytestmark = pytest.mark.pgvector

LEFT = (
    "SELECT name, setting FROM pg_settings WHERE name LIKE 'hnsw.%' AND source = 'session' UNION ALL"
    " SELECT locktype, mode FROM pg_locks WHERE locktype = 'advisory'"
)


async def test_a_search_through_a_pooler_leaves_nothing_of_a_session_behind(dsn: str) -> None:
    crowd(dsn, "x", 400, near=1.0, dimensions=768)
    with PgBouncer(dsn, pool_size=2) as bouncer:
        async with turnkeep.open(bouncer.dsn()) as store:
            assert store.pooled
            assert await build_index(store, "a model")
            search = Search(store, Known({"near": [1.0]}))
            results = await asyncio.gather(*(search.search("near", mode="semantic", limit=30) for _ in range(20)))
            assert {(len(result.hits), result.exact) for result in results} == {(30, False)}
            assert [hit.external_id for hit in (await search.search("x", limit=5)).hits]
        for _ in range(4):
            with psycopg.connect(bouncer.dsn(), autocommit=True, prepare_threshold=None) as connection:
                connection.execute("SELECT '[1]'::public.vector")
                assert connection.execute(LEFT).fetchall() == []
