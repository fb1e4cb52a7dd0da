"""What others have put in the database, or send from other languages, changes nothing and breaks nothing."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import turnkeep
from turnkeep import AsyncStore, RawJSON

USER = {"role": "user", "content": "go"}

# Each is found before the built-in one by a search path with public in front, or matches more exactly.
OBJECTS = """
CREATE FUNCTION public.f1(int[], int) RETURNS int[] LANGUAGE sql AS $$ SELECT $1 $$;
CREATE OPERATOR public.|| (LEFTARG = int[], RIGHTARG = int, FUNCTION = public.f1);
CREATE FUNCTION public.f2(int[], int[]) RETURNS int[] LANGUAGE sql AS $$ SELECT $1 $$;
CREATE OPERATOR public.|| (LEFTARG = int[], RIGHTARG = int[], FUNCTION = public.f2);
CREATE AGGREGATE public.sum(int) (SFUNC = int4mi, STYPE = int, INITCOND = '0');
CREATE AGGREGATE public.max(int) (SFUNC = int4mi, STYPE = int, INITCOND = '0');
CREATE FUNCTION public.cardinality(int[]) RETURNS int LANGUAGE sql AS $$ SELECT 0 $$;
CREATE DOMAIN public.uuid AS text;
CREATE DOMAIN public.json AS text;
CREATE DOMAIN public.timestamptz AS text;
"""


@pytest.mark.parametrize("path", ['"$user",public', "public,pg_catalog", "nowhere"])
async def test_objects_of_the_same_name_in_public_change_nothing(dsn: str, path: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(OBJECTS)
        connection.execute("UPDATE turnkeep.migration SET digest = 'older' WHERE number = 0")
    hostile = make_conninfo(dsn, options=f"-c search_path={path}")
    assert turnkeep.migrate(hostile).current
    async with turnkeep.open(hostile) as store:
        branch = await store.conversation("c")
        await branch.begin_turn(USER, key="k")
        await branch.save([USER, USER], tool_calls=[{"id": "1"}])
        await branch.save([USER], tool_results=[{"id": "1"}])
        fork = await store.fork("c", at=(0, 1))
        await fork.save([USER], tool_results=[{"id": "1"}], final=True)
        again = await store.fork("c", branch=1, at=(0, 1))
        await again.claim()
        await again.release()
        for number, expected in ((0, 4), (1, 4), (2, 3)):
            assert len((await store.restore("c", branch=number)).messages) == expected
        assert [c.messages for c in await store.history("c")] == [4, 3, 1]
        assert len(await store.interrupted()) == 2
        assert len(await store.conversations()) == 1
    with psycopg.connect(hostile) as connection:
        rows = connection.execute("SELECT messages FROM turnkeep.agent_checkpoints ORDER BY sub_step").fetchall()
    assert [len(row[0]) for row in rows] == [1, 3, 4]


@pytest.mark.parametrize(
    "arguments",
    [
        "p_count => 0, p_messages => '[{}, {}]'",
        "p_count => 0, p_messages => '{}'",
        "p_count => 3, p_messages => '[{}, {}]'",
        "p_count => 2, p_messages => NULL",
        "p_count => -1, p_messages => NULL",
        "p_count => 0, p_messages => NULL, p_tool_calls => '{\"id\": 1}'",
        "p_count => 0, p_messages => NULL, p_tool_results => '5'",
        "p_count => 0, p_messages => NULL, p_answers => '{1,2}'",
    ],
)
async def test_a_save_from_another_language_that_contradicts_itself_is_refused(
    store: AsyncStore, dsn: str, arguments: str
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    query = (
        "SELECT outcome FROM turnkeep.save_v1(p_conversation => %s, p_branch => 0, p_turn => 0, p_sub_step => 0,"
        " p_token => 0, p_lease_seconds => 0, p_write_id => gen_random_uuid(), p_repeatable => false,"
        " p_phase => 'step', p_agent => NULL, "
    )
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.DataError):
        connection.execute(f"{query}{arguments})".encode(), (branch.conversation_id,))
    assert (await store.restore("c")).sub_step == 0
    await branch.save([USER], final=True)


async def test_spans_that_are_none_are_noticed(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    for spans in ("{0,0}", "{0,1,0}", "{0,0,0}"):
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE turnkeep.checkpoint SET spans = %s", (spans,))
        with pytest.raises(turnkeep.CorruptionError):
            await store.restore("c")


async def test_calls_cancelled_twice_take_no_connection_along(dsn: str) -> None:
    rng = random.Random(3)
    async with turnkeep.open(dsn, pool_size=2, timeout=60) as store:
        branch = await store.conversation("c")
        await branch.begin_turn(USER)
        for _ in range(150):
            calls = [asyncio.ensure_future(store.restore("c")) for _ in range(8)]
            for pause in (rng.random() * 0.01, rng.random() * 0.0005):
                await asyncio.sleep(pause)
                for call in calls:
                    call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert (await store.restore("c")).messages == [USER]
        await asyncio.gather(*(store.restore("c") for _ in range(20)))


async def test_a_call_beyond_pythons_numbers_can_be_answered_and_named(store: AsyncStore) -> None:
    huge: list[Any] = [RawJSON('{"id":"a","name":"f","arguments":{"n":' + "9" * 5000 + "}}"), {"id": "b", "name": "g"}]
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save([], tool_calls=huge)
    with pytest.raises(turnkeep.PendingCallsError, match=r"f \(a\).*g \(b\)"):
        await branch.save([], final=True)
    with pytest.raises(turnkeep.UnreadableError):
        _ = branch.pending[0].call
    await branch.save([], tool_results=[RawJSON('{"tool_call_id":"b","content":1e400}')])
    other = await store.conversation("c")
    await other.save([], tool_results=[{"tool_call_id": "a"}], final=True)


async def test_short_texts_that_jsonb_spells_out_at_length_do_not_fail_a_query(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    for number in ("1e-16383", "1e4299", "1e0999"):
        await branch.begin_turn([USER, RawJSON(f'{{"c":[{",".join([number] * 75_000)}]}}')])
        await branch.save([USER], final=True)
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT messages FROM turnkeep.agent_checkpoints").fetchall()
    assert [set(message) for message in rows[0][0]] == [{"role", "content"}, {"turnkeep_unrepresentable"}]


async def test_a_message_of_very_many_keys_does_not_hang_a_query(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn({f"{i:x}": 0 for i in range(1_500_000)})
    with psycopg.connect(dsn) as connection:
        connection.execute("SET statement_timeout = '5min'")
        row = connection.execute("SELECT messages->0->>'16e35f' FROM turnkeep.agent_checkpoints").fetchone()
    assert row == ("0",)


@pytest.mark.parametrize(
    "setting",
    [
        "array_nulls = off",
        "bytea_output = 'escape'",
        "DateStyle = 'SQL, DMY'",
        "IntervalStyle = 'sql_standard'",
        "standard_conforming_strings = off",
        "extra_float_digits = -15",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_deferrable = on",
        "row_security = off",
        "plan_cache_mode = 'force_generic_plan'",
        "TimeZone = 'Asia/Kathmandu'",
        "transform_null_equals = on",
        "lc_messages = 'C'",
        "client_min_messages = 'debug5'",
        "default_toast_compression = 'pglz'",
    ],
)
async def test_settings_of_a_database_change_nothing(store: AsyncStore, dsn: str, setting: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {setting}".encode())
    async with turnkeep.open(dsn) as set_so:
        branch = await set_so.conversation("c", agent_id="desk")
        await branch.begin_turn({"role": "user", "content": "a\\b 'c' 1e400"}, key="k", state={"n": 1.50})
        await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1"}], write_id=(write_id := uuid.uuid4()))
        again = await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1"}], write_id=write_id)
        assert again.repeated
        await branch.save([], tool_results=[{"id": "1"}], final=True)
        await set_so.fork("c", at=(0, 1), name="other")
        await set_so.post("c", "more", key="m")
        (claimed,) = await set_so.claim_waiting(["desk"], limit=1)
        await claimed.take_request()
        await claimed.release()
        assert [one.external_id for one in await set_so.interrupted()] == ["c"]
        assert len(await set_so.restore_interrupted()) == 1
        assert (await set_so.restore("c")).messages == (await store.restore("c")).messages
        assert (await set_so.restore("c", branch=1)).pending == (await store.restore("c", branch=1)).pending
        assert await set_so.history("c") == await store.history("c")
        assert await set_so.conversations() == await store.conversations()
