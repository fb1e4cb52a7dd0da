"""Reported failures of setting a schema up: beside others' transactions, in any schema, again and again."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg import sql

import turnkeep
from tests.observing import transaction

USER = {"role": "user", "content": "go"}


async def test_migration_concurrently_waits_for_nobody_else_s_open_transaction(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.theirs (n int)")
    with transaction(empty_dsn) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("INSERT INTO public.theirs VALUES (1)")
        assert turnkeep.migrate(empty_dsn, timeout=10).current
        assert other.execute("SELECT n FROM public.theirs").fetchall() == [(1,)]


async def test_schema_not_public_two_of_them_stand_apart_and_one_can_be_dropped(empty_dsn: str) -> None:
    names = ("agents_a", "Agents-B")
    for name in names:
        turnkeep.migrate(empty_dsn, name)
    for name in names:
        async with turnkeep.open(empty_dsn, schema=name) as store:
            await (await store.conversation("c")).begin_turn({"role": "user", "content": name})
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        assert connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall() == []
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(names[0])))
    async with turnkeep.open(empty_dsn, schema=names[1]) as store:
        assert (await store.restore("c")).messages == [{"role": "user", "content": names[1]}]
        await (await store.conversation("c")).save([], final=True)
    with pytest.raises(turnkeep.SchemaError):
        async with turnkeep.open(empty_dsn, schema=names[0]):
            pass


async def test_setup_race_no_first_save_meets_a_schema_that_is_half_there(empty_dsn: str) -> None:
    """Who saves before the schema is there is told so; who opens a store after it is there can save at once."""

    async def first_save(number: int) -> int:
        refused = 0
        while True:
            try:
                async with turnkeep.open(empty_dsn, pool_size=1) as store:
                    await (await store.conversation(f"c{number}")).begin_turn(USER)
                    return refused
            except turnkeep.SchemaError:
                refused += 1

    saves = [asyncio.ensure_future(first_save(number)) for number in range(4)]
    await asyncio.gather(*(asyncio.to_thread(turnkeep.migrate, empty_dsn) for _ in range(4)))
    await asyncio.gather(*saves)
    async with turnkeep.open(empty_dsn) as store:
        assert len(await store.conversations()) == 4
