"""G12: a word that was written wherever one can be written is found nowhere once its conversation is erased."""

from __future__ import annotations

import asyncio
import os
import subprocess
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

import turnkeep
from tests.observing import Observer, branches_held, conversation_held, gate, in_order, table_held
from tests.store.plain_sql import PSQL
from turnkeep import AsyncStore, Erased, NotFoundError
from turnkeep.store._migrate import migrate

CANARY = "canary4711"
SAID = {"role": "user", "content": f"a {CANARY} sings", CANARY: [CANARY]}
CALL = {"id": CANARY, "name": CANARY, "arguments": {CANARY: CANARY}}


async def everywhere(store: AsyncStore, name: str, parent: str | None = None) -> None:
    """A conversation that has the word in whatever holds text."""
    branch = await store.conversation(
        name, agent_id=CANARY, parent=parent, title=CANARY, tags=[CANARY], metadata={CANARY: {CANARY: CANARY}}
    )
    await branch.begin_turn(SAID, key=f"{CANARY} begun", state={CANARY: CANARY})
    await branch.save([SAID], tool_calls=[CALL])
    await store.fork(name, name=f"{CANARY} fork")
    await branch.save([SAID], tool_results=[{"tool_call_id": CANARY, "content": CANARY}], final=True)
    for number in range(30):  # often enough for the planner to remember it
        await store.post(name, SAID, key=f"{CANARY} {number}")
    await branch.claim(owner=CANARY)
    await branch.take_request()
    await branch.release(failure={"type": CANARY, "message": CANARY})
    side = await store.conversation(name, branch=f"{CANARY} fork")
    await side.claim(owner=CANARY)


def fill(dsn: str) -> None:
    """What the worker for documents writes, and an error of it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "UPDATE turnkeep.document SET text = %(word)s, tsv = to_tsvector('simple', %(word)s), model = %(word)s,"
            " error = %(word)s, next_try_at = NULL",
            {"word": CANARY},
        )
        connection.execute(
            "UPDATE turnkeep.document SET text = 't', tsv = NULL, model = 'm', error = NULL WHERE conversation_id = %s",
            (turnkeep.conversation_uuid("other"),),
        )


def found(dsn: str) -> dict[str, int]:
    """Where in the database the word stands: every table of every schema, each row as text. Payloads are counted."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'm') AND n.nspname !~ '^pg_(temp|toast)'"
        ).fetchall()
        counts = {}
        for schema, table in tables:
            query = sql.SQL("SELECT count(*) FROM {} AS t WHERE t::text ILIKE %s").format(sql.Identifier(schema, table))
            ((count,),) = connection.execute(query, (f"%{CANARY}%",)).fetchall()
            counts[f"{schema}.{table}"] = count
        counts["payloads"] = len(connection.execute("SELECT payload FROM turnkeep.archive").fetchall())
    return {name: count for name, count in counts.items() if count}


def dumped(dsn: str) -> str:
    return subprocess.run(
        [PSQL.with_name("pg_dump"), "--dbname", dsn], env={**os.environ}, capture_output=True, text=True, check=True
    ).stdout


def analyse(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE")


async def test_deletion_01_nothing_is_left_of_what_is_erased(dsn: str, store: AsyncStore, observer: Observer) -> None:
    other = await store.conversation("other", agent_id="b")
    await other.begin_turn({"role": "user"}, key="k")
    await other.save([], final=True)
    empty = {name: count for name, count in observer.counts().items() if count}
    await everywhere(store, CANARY)
    await everywhere(store, f"{CANARY} child", CANARY)
    await everywhere(store, f"{CANARY} grandchild", f"{CANARY} child")
    archived = await store.conversation(f"{CANARY} put away", parent=CANARY, title=CANARY)
    await archived.begin_turn(SAID)
    await archived.save([SAID], final=True)
    await store.end(f"{CANARY} put away")
    await store.archive(f"{CANARY} put away")
    fill(dsn)
    analyse(dsn)
    there = found(dsn)
    tables = ("archive", "branch", "checkpoint", "conversation", "document", "message", "request")
    assert {f"turnkeep.{name}" for name in tables} - {*there} == {"turnkeep.archive"}  # compressed there
    assert there["payloads"] == 1
    erased = await store.erase(CANARY)
    assert (erased.conversations, erased.branches) == (4, 7)  # those in the archive too
    assert found(dsn) == {"pg_catalog.pg_statistic": there["pg_catalog.pg_statistic"]}
    assert remembered(dsn) == {"agent_id", "model"}  # names of programs, no words of people
    analyse(dsn)
    assert found(dsn) == {}
    assert CANARY not in dumped(dsn)
    assert {name: count for name, count in observer.counts().items() if count} == empty
    assert (await store.erase(CANARY)).conversations == 0


def remembered(dsn: str) -> set[str]:
    """The columns of which the planner knows the word."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT attname FROM pg_stats AS s WHERE schemaname = 'turnkeep' AND s::text ILIKE %s", (f"%{CANARY}%",)
        ).fetchall()
    return {str(name) for (name,) in rows}


async def test_a_copy_is_a_conversation_of_its_own_and_stays(dsn: str, store: AsyncStore) -> None:
    await everywhere(store, "source")
    await store.fork("source", into="copy")
    before = (await store.restore("copy")).message_texts
    await store.erase("source")
    assert (await store.restore("copy")).message_texts == before
    await store.erase("copy")
    assert found(dsn) == {}


async def test_what_has_expired_leaves_nothing_either(dsn: str, store: AsyncStore, advance: Any) -> None:
    branch = await store.conversation(CANARY, ttl=timedelta(days=1), title=CANARY)
    await branch.begin_turn(SAID)
    await branch.save([SAID], final=True)
    fill(dsn)
    advance(timedelta(days=2))
    assert (await store.expire()).erased == Erased(1, 1, 2, 2, 0)
    assert found(dsn) == {}


async def test_what_pruning_removes_is_gone_as_well(dsn: str, store: AsyncStore, advance: Any) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(SAID, state={CANARY: 1})
    await branch.save([SAID], final=True)
    await branch.begin_turn({"role": "user"}, state={})
    await branch.save_all([{"summary": 1}], final=True)
    fill(dsn)
    advance(timedelta(days=60))
    await store.prune("c", keep="heads", older_than=timedelta(days=30))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.document SET text = 't', tsv = NULL, model = NULL, error = NULL")
        assert connection.execute("SELECT turn_index FROM turnkeep.document").fetchall() == [(1,)]
    assert found(dsn) == {}


@pytest.mark.parametrize("erase_first", [False, True])
@pytest.mark.parametrize("call", [AsyncStore.archive, AsyncStore.unarchive])
async def test_whoever_archives_or_unarchives_meanwhile_leaves_nothing(
    dsn: str, store: AsyncStore, observer: Observer, call: Any, erase_first: bool
) -> None:
    branch = await store.conversation(CANARY)
    await branch.begin_turn(SAID)
    await branch.save([SAID], final=True)
    await store.end(CANARY)
    held = branches_held(dsn, branch.conversation_id)
    if call is AsyncStore.unarchive:
        await store.archive(CANARY)
        held = conversation_held(dsn, branch.conversation_id)
    calls = [call(store, CANARY), store.erase(CANARY)]
    outcomes = await in_order(observer, held, *(reversed(calls) if erase_first else calls))
    done = outcomes[1 if erase_first else 0]
    assert isinstance(done, NotFoundError) or not erase_first, done
    assert found(dsn) == {}
    assert not any(observer.counts()[table] for table in ("conversation", "branch", "message", "archive", "document"))


def erased_by_another(dsn: str) -> Erased:
    with turnkeep.open_sync(dsn) as store:
        return store.erase(CANARY)


async def test_documents_that_are_being_written_go_too(dsn: str, store: AsyncStore, observer: Observer) -> None:
    from turnkeep.search import fill_documents

    branch = await store.conversation(CANARY)
    await branch.begin_turn({"role": "user", "content": f"{CANARY} sings. " * 2000})  # of several chunks
    await branch.save([SAID], final=True)
    with gate(dsn, "turnkeep.document", "INSERT"):
        filling = asyncio.create_task(fill_documents(store, 10))
        await observer.see_waiting(1)
        erasing = asyncio.create_task(asyncio.to_thread(erased_by_another, dsn))
        await observer.see_waiting(2)
    await filling
    assert (await erasing).conversations == 1
    assert found(dsn) == {}


async def test_what_is_made_of_a_conversation_that_has_been_erased_is_not_written(
    dsn: str, store: AsyncStore, observer: Observer
) -> None:
    from turnkeep.search import fill_documents

    branch = await store.conversation(CANARY)
    await branch.begin_turn(SAID)
    await branch.save([SAID], final=True)
    with table_held(dsn, "turnkeep.message", "ACCESS EXCLUSIVE"):  # claimed, and about to read the turn
        filling = asyncio.create_task(fill_documents(store, 10))
        await observer.see_waiting(1)
        erasing = asyncio.create_task(store.erase(CANARY))
        await observer.see_waiting(2)
    await filling
    assert (await erasing).conversations == 1
    assert found(dsn) == {}


def test_what_the_planner_has_kept_goes_when_the_schema_is_brought_up_to_date(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE turnkeep.conversation ALTER COLUMN title SET STATISTICS -1")
        for number in range(20):
            connection.execute(
                "INSERT INTO turnkeep.conversation (conversation_id, external_id, title, created_at)"
                " VALUES (gen_random_uuid(), %s, %s, now())",
                (str(number), CANARY),
            )
        connection.execute("ANALYZE turnkeep.conversation")
        assert remembered(dsn) == {"title"}
        connection.execute("DELETE FROM turnkeep.conversation")
        connection.execute("DROP TABLE turnkeep.retention")
        connection.execute("ALTER TABLE turnkeep.conversation DROP COLUMN ttl CASCADE, DROP COLUMN kept_since CASCADE")
        connection.execute("DELETE FROM turnkeep.migration WHERE number = 6")
    migrate(dsn)
    assert remembered(dsn) == set()
    assert found(dsn) == {}


KEPT = {  # what the planner may remember: numbers, times, places, and names of programs
    "agent_id", "answers", "archived_at", "attempts", "branch", "branches", "checkpoints", "chunk", "claim",
    "conversation_id", "created_at", "current_branch", "ended_at", "fork_id", "format", "id", "kept_since", "left_out",
    "lease_token", "lease_until", "lineage", "messages", "model", "next_branch", "next_position", "next_try_at",
    "not_before", "number", "origin_branch", "origin_conversation", "parent_branch", "parent_conversation_id",
    "parent_sub_step", "parent_turn_index", "phase", "position", "raw_bytes", "ready_at", "received_at", "requests",
    "size", "spans", "status", "sub_step", "taken_turn", "tenant", "tries", "ttl", "turn_index", "turn_started_at",
    "update_ids", "updated_at", "version", "write_id",
}  # fmt: skip


def test_the_planner_keeps_no_value_that_holds_or_tells_what_people_said(empty_dsn: str) -> None:
    """Compressed, as a digest and as a vector it tells as well."""
    turnkeep.migrate(empty_dsn, dimensions=16)
    query = (
        "SELECT DISTINCT a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'turnkeep' AND c.relkind = 'r'"
        " AND c.relname NOT IN ('migration', 'retention') AND a.attnum > 0 AND NOT a.attisdropped"
        " AND a.attstattarget IS DISTINCT FROM 0 AND a.atttypid <> 'json'::regtype"
    )
    for dimensions in (None, 24):
        turnkeep.migrate(empty_dsn, dimensions=dimensions)
        with psycopg.connect(empty_dsn) as connection:
            assert {name for (name,) in connection.execute(query).fetchall()} - KEPT == set()
