"""Reported failures behind a pooler in transaction mode (G10)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.acceptance.pgbouncer import PgBouncer
from tests.observing import Observer, branches_held

USER = {"role": "user", "content": "go"}


async def test_pgbouncer_prepared_two_servers_ten_clients_two_hundred_saves_each(dsn: str) -> None:
    with PgBouncer(dsn, pool_size=2) as bouncer:

        async def client(name: int) -> None:
            async with turnkeep.open(bouncer.dsn(), pool_size=1, timeout=120) as store:
                branch = await store.conversation(str(name))
                await branch.begin_turn(USER)
                for number in range(200):
                    await branch.save([{"role": "tool", "content": [name, number]}])

        await asyncio.gather(*map(client, range(10)))
    async with turnkeep.open(dsn) as store:
        for name in range(10):
            contents = [message["content"] for message in (await store.restore(str(name))).messages[1:]]
            assert contents == [[name, number] for number in range(200)]


async def test_pgbouncer_session_state_two_tenants_in_two_schemas_never_meet(empty_dsn: str) -> None:
    for schema in ("agents_a", "Agents-B"):
        turnkeep.migrate(empty_dsn, schema)
    with PgBouncer(empty_dsn, pool_size=2) as bouncer:

        async def tenant(schema: str) -> None:
            async with turnkeep.open(bouncer.dsn(), schema=schema, pool_size=4, timeout=120) as store:
                branch = await store.conversation("c")
                await branch.begin_turn({"role": "user", "content": schema})
                for number in range(250):
                    saved, seen = await asyncio.gather(
                        branch.save([{"role": "tool", "content": schema, "number": number}]), store.restore("c")
                    )
                    assert saved.sub_step == number + 1
                    assert {message["content"] for message in seen.messages} == {schema}

        await asyncio.gather(tenant("agents_a"), tenant("Agents-B"))
    with psycopg.connect(empty_dsn) as connection:
        for schema in ("agents_a", "Agents-B"):
            query = psycopg.sql.SQL("SELECT body->>'content', count(*) FROM {} GROUP BY 1").format(
                psycopg.sql.Identifier(schema, "message")
            )
            assert connection.execute(query).fetchall() == [(schema, 251)]


async def test_pgbouncer_session_state_in_the_conninfo_is_not_needed_and_its_refusal_is_told(dsn: str) -> None:
    with PgBouncer(dsn, pool_size=2) as bouncer:
        with pytest.raises(turnkeep.ConfigurationError, match="unsupported startup parameter: options"):
            async with turnkeep.open(make_conninfo(bouncer.dsn(), options="-c search_path=turnkeep")):
                pass
        async with turnkeep.open(bouncer.dsn()) as store:
            await (await store.conversation("c")).begin_turn(USER)


KILLED = """
import asyncio, sys, turnkeep
async def main() -> None:
    async with turnkeep.open(sys.argv[1]) as store:
        await (await store.conversation("c")).save([{"role": "tool", "content": "from the dead"}])
asyncio.run(main())
"""


async def test_pgbouncer_session_state_no_lock_outlives_a_client_that_was_killed(dsn: str) -> None:
    with PgBouncer(dsn, pool_size=2) as bouncer, Observer(dsn) as observer:
        async with turnkeep.open(bouncer.dsn(), pool_size=1) as store:
            branch = await store.conversation("c")
            await branch.begin_turn(USER)
            with branches_held(dsn, branch.conversation_id):
                killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, bouncer.dsn())
                await observer.see_waiting(1)
                os.kill(killed.pid, signal.SIGKILL)
                await killed.wait()
            await branch.refresh()
            await branch.save([{"role": "tool", "content": "alive"}])
            assert (await store.restore("c")).messages[-1]["content"] == "alive"
            assert observer.rows("SELECT * FROM pg_locks WHERE locktype = 'advisory'") == []
            assert observer.in_transaction() == []
