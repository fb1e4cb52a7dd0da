"""What a conversation costs: linear space, small reads, few dead rows, and a disk that is full (G8)."""

from __future__ import annotations

import asyncio
import base64
import os
import random
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, branches_held
from turnkeep import AsyncStore, jsontext

USER = {"role": "user", "content": "go"}
TABLES = ("conversation", "branch", "message", "checkpoint", "request", "document")


def stored_bytes(dsn: str) -> int:
    """All that the tables, their indexes and what was moved out of them take."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "SELECT sum(pg_total_relation_size(('turnkeep.' || t)::regclass))::bigint FROM unnest(%s::text[]) AS t"
        ((size,),) = connection.execute(query, ([*TABLES],)).fetchall()
    return int(size)


async def test_storage_growth_is_linear_over_a_thousand_turns(store: AsyncStore, dsn: str) -> None:
    rng = random.Random(3)
    branch = await store.conversation("c")
    raw, sizes = 0, []
    empty = stored_bytes(dsn)
    for turn in range(1_000):
        messages: list[dict[str, Any]] = [
            {"role": role, "content": rng.randbytes(120).hex()} for role in ("user", "assistant", "tool", "assistant")
        ]
        raw += sum(len(jsontext.encode(message, "m")) for message in messages)
        call = {"id": str(turn), "name": "f"}
        await branch.begin_turn(messages[0], state={"step_count": turn})
        await branch.save([messages[1]], tool_calls=[call])
        await branch.save([messages[2]], tool_results=[{"tool_call_id": str(turn)}])
        await branch.save([messages[3]], final=True)
        if turn % 250 == 249:
            sizes.append(stored_bytes(dsn) - empty)
    assert sizes[3] <= 3 * raw
    assert sizes[3] - sizes[2] <= 1.2 * (sizes[1] - sizes[0])  # the last quarter costs what an early one does


async def test_bloat_writing_leaves_no_dead_rows_but_those_of_one_small_table(store: AsyncStore, dsn: str) -> None:
    text = base64.b64encode(os.urandom(75_000)).decode()
    branch = await store.conversation("c")
    await branch.begin_turn(USER, state={"text": text})
    for number in range(200):
        await branch.save([], state={"n": number, "text": text})
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pgstattuple")
        dead = {
            table: connection.execute(
                "SELECT dead_tuple_count FROM pgstattuple(%s::regclass)", (f"turnkeep.{table}",)
            ).fetchall()[0][0]
            for table in ("conversation", "message", "checkpoint", "request", "document")
        }
        ((pages,),) = connection.execute("SELECT pg_relation_size('turnkeep.branch') / 8192").fetchall()
    assert dead == dict.fromkeys(dead, 0)
    assert pages <= 2
    assert stored_bytes(dsn) <= 3 * 201 * len(text)


async def test_size_huge_message_costs_nothing_to_those_who_read_what_follows(store: AsyncStore, dsn: str) -> None:
    image = "data:application/octet-stream;base64," + base64.b64encode(os.urandom(30_000_000)).decode()
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user", "content": image})
    for number in range(50):
        await branch.save([{"role": "tool", "content": str(number)}])
    reads = {
        "the tail": "SELECT sum(length(t.body::text)) FROM (SELECT body FROM turnkeep.message"
        " WHERE conversation_id = %s AND branch = 0 ORDER BY position DESC LIMIT 10) AS t",
        "a state": "SELECT sum(length(t.state::text)) FROM (SELECT state FROM turnkeep.agent_checkpoints"
        " WHERE conversation_id = %s ORDER BY turn_index DESC, created_at DESC LIMIT 1) AS t",
    }
    with psycopg.connect(dsn) as connection:
        for query in reads.values():
            explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}".encode()
            ((report,),) = connection.execute(explain, (branch.conversation_id,)).fetchall()
            plan = report[0]["Plan"]
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 500  # the message has 5,000
    assert (await store.restore("c")).messages[0]["content"] == image


async def test_size_huge_message_is_stored_once_whatever_contains_it(store: AsyncStore, dsn: str) -> None:
    image = "data:image/jpeg;base64," + base64.b64encode(os.urandom(225_000)).decode()
    message = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "file", "uri": image}], "output": image}
    size = len(jsontext.encode(message, "m"))
    empty = stored_bytes(dsn)
    first = await store.conversation("first")
    await first.begin_turn([USER, message])
    for _ in range(30):
        await first.save([USER])
    for _ in range(10):
        await (await store.fork("first", at=(0, 5))).save([USER])
    async with turnkeep.open(dsn) as restarted:
        whole = await restarted.conversation("first")
        await whole.save_all([*whole.messages, USER])
        await whole.save_all([USER, *whole.messages[1:]])
    assert stored_bytes(dsn) - empty <= 1.5 * size
    await (await store.conversation("second")).begin_turn([USER, message])
    await store.erase("first")
    assert (await store.restore("second")).messages == [USER, message]


async def test_event_loop_a_large_state_is_encoded_once_a_save(
    store: AsyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"rows": [{"n": n, "text": "x" * 1_000} for n in range(40_000)]}
    encoded = []

    def counted(value: object, to_text: Any = jsontext._to_text) -> str:
        encoded.append(value)
        return str(to_text(value))

    monkeypatch.setattr(jsontext, "_to_text", counted)
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save([USER], state=state)
    assert sum(value is state for value in encoded) == 1
    assert len((await store.restore("c")).state_text or "") > 40_000_000


async def test_event_loop_goes_on_while_a_large_save_is_under_way(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    with Observer(dsn) as observer, branches_held(dsn, branch.conversation_id):
        save = asyncio.ensure_future(branch.save([USER], state={"text": "x" * 50_000_000}))
        await observer.see_waiting(1)  # the whole state has been sent, and this very loop has looked on meanwhile
        assert not save.done()
    await save


FULL = """
CREATE FUNCTION public.no_space() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER no_space BEFORE INSERT ON turnkeep.message FOR EACH STATEMENT EXECUTE FUNCTION public.no_space();
"""


async def test_disk_full_is_told_and_writes_nothing_and_is_over_when_there_is_room(dsn: str) -> None:
    async with turnkeep.open(dsn, timeout=2) as store:
        branch = await store.conversation("c")
        await branch.begin_turn(USER)
        with Observer(dsn) as observer, psycopg.connect(dsn, autocommit=True) as connection:
            before = observer.counts(), observer.heads()
            connection.execute(FULL)
            for _ in range(3):
                with pytest.raises(turnkeep.UnavailableError, match="disk is full; nothing was written"):
                    await branch.save([USER])
            assert (await store.restore("c")).messages == [USER]
            assert (observer.counts(), observer.heads()) == before
            connection.execute("DROP TRIGGER no_space ON turnkeep.message")
        await branch.save([{"role": "assistant", "content": "kept"}], final=True)
        assert len((await store.restore("c")).messages) == 2


async def test_failover_readonly_is_waited_for_until_the_deadline(dsn: str) -> None:
    read_only = (
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = {}',"
        " current_database()); END $$"
    )
    with Observer(dsn) as observer, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        async with turnkeep.open(dsn, timeout=60) as store, turnkeep.open(dsn, timeout=3) as impatient:
            branch = await store.conversation("c")
            await branch.begin_turn(USER)
            other = await impatient.conversation("c")
            connection.execute(read_only.format("on").encode())
            drop = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'turnkeep'"
            observer.rows(drop)
            with pytest.raises(turnkeep.UnavailableError, match="read-only transaction"):
                await other.save([{"role": "tool", "content": "never"}])
            save = asyncio.ensure_future(branch.save([{"role": "tool", "content": "kept"}]))
            connection.execute(read_only.format("off").encode())
            await save
            assert [m["content"] for m in (await store.restore("c")).messages] == ["go", "kept"]
