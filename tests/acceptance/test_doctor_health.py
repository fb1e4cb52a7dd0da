"""`turnkeep doctor` on how a schema is kept: each state is brought about, seen, and mended."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import turnkeep
from tests.acceptance.command_line import run
from tests.clusters import Cluster, room
from tests.observing import until
from turnkeep.cli.doctor_findings import Finding
from turnkeep.cli.doctor_keeping import (
    archiver_finding,
    consistency_finding,
    health_findings,
    statements_finding,
    vacuum_findings,
)
from turnkeep.cli.doctor_server import connections_finding
from turnkeep.store._doctor import Examination, examine

USER = {"role": "user", "content": "hello"}
Advance = Callable[[timedelta], None]


async def looked_at(dsn: str, *, deep: bool = False) -> Examination:
    return await examine(dsn, "turnkeep", 60, deep=deep)


async def judged(dsn: str, later: timedelta = timedelta(0), *, deep: bool = False) -> dict[str, Finding]:
    """What is found, as it is judged at a later time, by check. What is not well wins."""
    found = await looked_at(dsn, deep=deep)
    assert found.health is not None
    now = datetime.now(UTC) + later
    every = [
        archiver_finding(found.observed, now),
        statements_finding(found.observed),
        connections_finding(found, found.health.kept.workers),
        *vacuum_findings(found.health.tables, found.observed, "turnkeep", now),
        *health_findings(found.health, "turnkeep", now),
    ]
    return {one.check: one for one in sorted(every, key=lambda one: one.level != "ok")}


def alter(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def follow(dsn: str, finding: Finding) -> None:
    """Run what a remedy says to run."""
    assert finding.remedy is not None
    said = finding.remedy.removeprefix("Run ").partition(", if it")[0].partition(" If that")[0]
    alter(dsn, said[: said.rindex(";") + 1] if ";" in said else said)


async def talk(store: turnkeep.AsyncStore, name: str, turns: int = 3) -> uuid.UUID:
    branch = await store.conversation(name, agent_id="desk")
    for _ in range(turns):
        await branch.begin_turn(USER)
        await branch.save([{"role": "assistant"}], final=True)
    return branch.conversation_id


# -- what belongs together


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM turnkeep.checkpoint WHERE conversation_id = '{}'", "no checkpoint at its head"),
        ("DELETE FROM turnkeep.message WHERE conversation_id = '{}' AND position = 2", "messages are missing"),
        ("UPDATE turnkeep.branch SET next_position = 4 WHERE conversation_id = '{}'", "messages beyond its end"),
        ("DELETE FROM turnkeep.branch WHERE conversation_id = '{}'", "its current branch is not there"),
        ("UPDATE turnkeep.conversation SET archived_at = now() WHERE conversation_id = '{}'", "archived"),
        ("DELETE FROM turnkeep.document; DELETE FROM turnkeep.conversation WHERE conversation_id = '{}'", "no convers"),
    ],
)
async def test_what_was_deleted_by_hand_is_seen(
    damage: str, problem: str, dsn: str, store: turnkeep.AsyncStore
) -> None:
    await talk(store, "whole")
    broken = await talk(store, "broken")
    await store.fork("whole", at=(1, 0))
    await store.conversation("empty")
    for deep in (False, True):
        assert (await judged(dsn, deep=deep))["consistency"].level == "ok"
    alter(dsn, damage.format(broken))
    for deep in (False, True):
        finding = (await judged(dsn, deep=deep))["consistency"]
        assert finding.level == "problem"
        assert problem in finding.message
        assert str(broken) in finding.message
        assert "1 conversation " in finding.message
    ran = run("doctor", dsn=dsn)
    assert (ran.code, str(broken) in ran.out) == (6, True)


async def test_only_a_deep_look_sees_what_an_older_checkpoint_lacks(dsn: str, store: turnkeep.AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save([{"role": "assistant"}], final=True)
    await branch.begin_turn(USER)
    await branch.save_all([{"role": "summary"}], final=True)
    alter(dsn, "DELETE FROM turnkeep.message WHERE position = 1")
    assert (await judged(dsn))["consistency"].level == "ok"
    assert "an older checkpoint" in (await judged(dsn, deep=True))["consistency"].message
    assert run("doctor", dsn=dsn).code == 0
    assert run("doctor", "--deep", dsn=dsn).code == 6


async def test_of_many_branches_a_part_is_looked_at_and_a_deep_look_takes_all(
    dsn: str, store: turnkeep.AsyncStore
) -> None:
    alter(
        dsn,
        "INSERT INTO turnkeep.conversation (conversation_id, external_id, created_at)"
        " SELECT gen_random_uuid(), n::text, now() FROM generate_series(1, 2500) AS n",
        "INSERT INTO turnkeep.branch (conversation_id, branch, turn_started_at, updated_at)"
        " SELECT conversation_id, 0, now(), now() FROM turnkeep.conversation",
    )
    some, every = await judged(dsn), await judged(dsn, deep=True)
    assert "1,000 looked at, some branches" in some["consistency"].message
    assert "2,500 looked at, all branches" in every["consistency"].message
    alter(dsn, "UPDATE turnkeep.branch SET turn_index = 0")
    found = (await looked_at(dsn, deep=True)).health
    assert found is not None
    assert len(found.consistency.broken) == 2_500
    assert len(consistency_finding(found.consistency).message) < 1_000


# -- documents, archive, connections


async def test_dead_letters_are_named_by_their_reasons(dsn: str, store: turnkeep.AsyncStore) -> None:
    await talk(store, "c", turns=5)
    alter(
        dsn,
        "UPDATE turnkeep.document SET next_try_at = NULL, tries = 8, error = '401 from the provider'"
        " WHERE turn_index < 3",
        "UPDATE turnkeep.document SET next_try_at = NULL, tries = 8, error = 'too ' || chr(27) || ' long'"
        " WHERE turn_index = 3",
    )
    finding = (await judged(dsn))["documents"]
    assert finding.level == "warn"
    assert "4 documents given up: 401 from the provider (3), too \\x1b long (1)" in finding.message
    alter(dsn, "UPDATE turnkeep.document SET next_try_at = now(), error = NULL")
    assert (await judged(dsn))["documents"].level == "ok"


async def test_documents_that_nobody_indexes_are_seen_by_their_age(
    dsn: str, store: turnkeep.AsyncStore, advance: Advance
) -> None:
    await talk(store, "c")
    assert (await judged(dsn))["documents"].level == "ok"
    advance(timedelta(hours=3))
    finding = (await judged(dsn))["documents"]
    assert (finding.level, "3 documents due, the first since 3 h" in finding.message) == ("warn", True)


async def test_many_vectors_without_an_index_are_seen(dsn: str, store: turnkeep.AsyncStore) -> None:
    await talk(store, "c", turns=1)
    alter(
        dsn,
        "INSERT INTO turnkeep.document (conversation_id, branch, turn_index, text, model)"
        " SELECT conversation_id, 0, n, 'x', 'm' FROM turnkeep.conversation, generate_series(1, 20000) AS n",
    )
    assert (await judged(dsn))["indexes"].level == "warn"
    alter(dsn, "CREATE INDEX ON turnkeep.document USING hnsw (embedding public.vector_cosine_ops)")
    assert "indexes" not in await judged(dsn)


async def test_old_conversations_that_have_ended_are_counted(
    dsn: str, store: turnkeep.AsyncStore, advance: Advance
) -> None:
    for name in "ab":
        await talk(store, name)
        await store.end(name)
    assert "no conversation" in (await judged(dsn))["archive"].message
    advance(timedelta(days=40))
    finding = (await judged(dsn))["archive"]
    assert "2 conversations ended over 30 days ago" in finding.message
    assert "turnkeep archive --ended-before 30d" in str(finding.remedy)
    assert finding.level == "ok"
    alter(
        dsn,
        "INSERT INTO turnkeep.conversation (conversation_id, external_id, created_at, ended_at)"
        " SELECT gen_random_uuid(), n::text, now(), now() FROM generate_series(1, 1000) AS n",
    )
    assert (await judged(dsn))["archive"].level == "warn"


async def test_workers_whose_pools_could_take_more_connections_than_there_are_are_counted(
    dsn: str, store: turnkeep.AsyncStore
) -> None:
    for number in range(5):
        branch = await store.conversation(f"c{number}")
        await branch.claim(owner=f"host:{number}", seconds=3600)
    finding = (await judged(dsn))["connections"]
    assert finding.level == "warn"
    assert "5 workers open up to 22 each" in finding.message
    found = await looked_at(dsn)
    pooled = replace(found, server=replace(found.server, pooled=True))
    assert "SHOW POOLS" in connections_finding(pooled, 5).message


# -- the server


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with room() as place:
        one = Cluster(place / "cluster")
        one.initialise(
            autovacuum_naptime="'1d'",
            wal_level="logical",
            max_prepared_transactions="2",
            archive_mode="on",
            archive_command="'true'",
            shared_preload_libraries="'pg_stat_statements'",
        )
        one.start()
        turnkeep.migrate(one.conninfo)
        yield one
        one.stop()


async def test_what_keeps_dead_rows_is_named_and_ended_by_the_remedy(cluster: Cluster) -> None:
    dsn, later = cluster.conninfo, timedelta(hours=2)
    assert (await judged(dsn, later))["snapshots"].level == "ok"
    with psycopg.connect(dsn) as holding:
        holding.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holding.execute("SELECT 1 FROM turnkeep.branch")
        assert (await judged(dsn))["snapshots"].level == "ok"
        finding = (await judged(dsn, later))["snapshots"]
        assert f"session {holding.info.backend_pid} since 2 h" in finding.message
        follow(dsn, finding)
        with pytest.raises(psycopg.OperationalError):
            holding.execute("SELECT 1")
    assert (await judged(dsn, later))["snapshots"].level == "ok"
    alter(dsn, "BEGIN; DELETE FROM turnkeep.branch; PREPARE TRANSACTION 'left''over'")
    finding = (await judged(dsn, later))["snapshots"]
    assert "prepared left'over" in finding.message
    assert "ROLLBACK PREPARED 'left''over'" in str(finding.remedy)
    alter(dsn, "ROLLBACK PREPARED 'left''over'")
    alter(dsn, "SELECT pg_create_logical_replication_slot('gone', 'pgoutput')")
    finding = (await judged(dsn))["snapshots"]
    assert "idle slot gone" in finding.message
    follow(dsn, finding)
    assert (await judged(dsn))["snapshots"].level == "ok"


async def test_an_autovacuum_that_is_off_or_behind_is_seen(cluster: Cluster) -> None:
    dsn = cluster.conninfo
    assert (await judged(dsn))["autovacuum"].level == "ok"
    alter(dsn, "ALTER TABLE turnkeep.message SET (autovacuum_enabled = off)")
    finding = (await judged(dsn))["autovacuum"]
    assert (finding.level, "off for message" in finding.message) == ("warn", True)
    follow(dsn, finding)
    assert (await judged(dsn))["autovacuum"].level == "ok"
    rows = "SELECT gen_random_uuid(), 0, n, '{}', 2 FROM generate_series(1, 3000) AS n"
    alter(
        dsn,
        f"INSERT INTO turnkeep.message {rows}",
        *["UPDATE turnkeep.message SET position = position + 10000"] * 5,
    )
    counted = "SELECT n_dead_tup > 10000 FROM pg_stat_user_tables WHERE relname = 'message'"
    await until(lambda: cluster.rows(counted) == [(True,)], "the dead rows counted")
    finding = (await judged(dsn))["autovacuum"]
    assert "far behind: message (" in finding.message
    follow(dsn, finding)
    await until(lambda: cluster.rows(counted) == [(False,)], "no dead rows counted")
    assert (await judged(dsn))["autovacuum"].level == "ok"
    alter(dsn, "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
    await until(lambda: cluster.rows("SHOW autovacuum") == [("off",)], "the reload")
    assert (await judged(dsn))["autovacuum"].level == "problem"
    assert run("doctor", dsn=dsn).code == 6


async def test_a_log_that_can_not_be_archived_is_a_problem_until_it_can(cluster: Cluster) -> None:
    dsn = cluster.conninfo
    alter(dsn, "ALTER SYSTEM SET archive_command = 'false'", "SELECT pg_reload_conf()")
    await until(lambda: cluster.rows("SHOW archive_command") == [("false",)], "the reload")
    alter(dsn, "SELECT pg_logical_emit_message(true, 't', 'x')", "SELECT pg_switch_wal()")
    failed = "SELECT failed_count > 0 FROM pg_stat_archiver"
    await until(lambda: cluster.rows(failed) == [(True,)], "a failure")
    finding = (await judged(dsn))["wal archive"]
    assert finding.level == "problem"
    said = {one["check"]: one["level"] for one in json.loads(run("doctor", "--json", dsn=dsn).out)["findings"]}
    assert said["wal archive"] == "problem"
    alter(dsn, "ALTER SYSTEM SET archive_command = 'true'", "SELECT pg_reload_conf()")
    worked = "SELECT last_archived_time > last_failed_time FROM pg_stat_archiver"
    await until(lambda: cluster.rows(worked) == [(True,)], "a success")
    assert (await judged(dsn))["wal archive"].level == "ok"


async def test_pg_stat_statements_is_asked_for_where_it_is_not(cluster: Cluster, dsn: str) -> None:
    assert "shared_preload_libraries" in str((await judged(dsn))["pg_stat_statements"].remedy)
    finding = (await judged(cluster.conninfo))["pg_stat_statements"]
    assert "not in this database" in finding.message
    alter(cluster.conninfo, "CREATE EXTENSION pg_stat_statements")
    assert (await judged(cluster.conninfo))["pg_stat_statements"].message == "in use"
