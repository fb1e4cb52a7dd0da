"""What `migrate` would do, told beforehand: as a list, and as SQL that psql runs instead."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

import turnkeep
from tests.migration.test_migrate import embedding_type, run, talk
from tests.observing import Observer, transaction
from turnkeep._version import REVISION
from turnkeep.embedded._programs import find_wheel
from turnkeep.store import _migrate, plan, script, status

AWKWARD = ["agents", "My Schema", 'quo"te', "it's :name", "ünï.cödé", "{braces}", "50%s", "back\\slash", "$1"]
SCHEMA_THERE = "SELECT count(*) FROM pg_namespace WHERE nspname = 'turnkeep'"


def psql(dsn: str, text: str) -> subprocess.CompletedProcess[str]:
    """Run a script as an administrator would."""
    return subprocess.run(
        [find_wheel() / "bin" / "psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", dsn],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip


def check_nothing_left(dsn: str, schema: str = "turnkeep") -> None:
    """The schema is current, and `migrate` touches nothing of it any more."""
    query = sql.SQL("SELECT * FROM {} ORDER BY 1").format(sql.Identifier(schema, "migration")).as_string(None)
    applied = run(dsn, query)
    assert [row[0] for row in applied] == list(range(REVISION + 1))
    assert plan(dsn, schema) == ()
    assert turnkeep.migrate(dsn, schema).current
    assert run(dsn, query) == applied


def at_revision(dsn: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tables as an older release had them, without the functions and views of today."""
    found = _migrate._numbered()[:number]
    with monkeypatch.context() as older:
        older.setattr(_migrate, "_numbered", lambda: found)
        older.setattr(_migrate, "_REPEATABLE", ())
        turnkeep.migrate(dsn)


def test_a_plan_changes_nothing_and_ends_when_it_has_been_carried_out(empty_dsn: str) -> None:
    would = [step.what for step in plan(empty_dsn)]
    assert would[-1] == "put functions and views in place"
    assert "create the schema" in would
    assert sum("apply migration" in what for what in would) == REVISION
    script(empty_dsn)
    assert run(empty_dsn, SCHEMA_THERE) == [(0,)]
    turnkeep.migrate(empty_dsn)
    check_nothing_left(empty_dsn)
    assert "nothing left" in script(empty_dsn)
    assert psql(empty_dsn, script(empty_dsn)).returncode == 0


@pytest.mark.parametrize("schema", AWKWARD)
async def test_the_printed_sql_makes_the_schema(empty_dsn: str, schema: str) -> None:
    ran = psql(empty_dsn, script(empty_dsn, schema))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    check_nothing_left(empty_dsn, schema)
    await talk(empty_dsn, schema)


@pytest.mark.parametrize("number", range(1, REVISION))
async def test_the_printed_sql_brings_an_older_schema_up_to_date(
    empty_dsn: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_revision(empty_dsn, number, monkeypatch)
    assert [m.applied for m in status(empty_dsn).migrations] == [n < number for n in range(REVISION)]
    assert not any("schema" in step.what for step in plan(empty_dsn))
    ran = psql(empty_dsn, script(empty_dsn))
    assert (ran.returncode, ran.stderr) == (0, "")
    check_nothing_left(empty_dsn)
    await talk(empty_dsn)


def test_sql_that_comes_too_late_changes_nothing(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    early = script(empty_dsn)
    at_revision(empty_dsn, 1, monkeypatch)
    later = script(empty_dsn)
    refused = psql(empty_dsn, early)
    assert refused.returncode == 3
    assert "has changed since" in refused.stderr
    assert status(empty_dsn).migrations[0].applied
    assert not status(empty_dsn).migrations[1].applied
    turnkeep.migrate(empty_dsn)
    assert "has changed since" in psql(empty_dsn, later).stderr
    check_nothing_left(empty_dsn)


async def test_the_printed_sql_waits_for_whoever_migrates(empty_dsn: str) -> None:
    text = script(empty_dsn)
    with Observer(empty_dsn) as observer:
        with transaction(empty_dsn) as holder:
            holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('turnkeep turnkeep', 0))")
            ran = asyncio.ensure_future(asyncio.to_thread(psql, empty_dsn, text))
            await observer.see_waiting(1)
            assert run(empty_dsn, SCHEMA_THERE) == [(0,)]
        assert (await ran).returncode == 0
    check_nothing_left(empty_dsn)


def test_printed_sql_that_fails_halfway_leaves_nothing(empty_dsn: str) -> None:
    head, commit, _ = script(empty_dsn).rpartition("COMMIT;")
    assert psql(empty_dsn, f"{head}SELECT 1 / 0;\n{commit}").returncode == 3
    assert run(empty_dsn, SCHEMA_THERE) == [(0,)]


@pytest.mark.pgvector
async def test_the_printed_sql_brings_pgvector_and_follows_one_that_came_later(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan(empty_dsn)[0].what == "create the extension pgvector"
    with monkeypatch.context() as without:
        without.setattr(_migrate, "_create_vector", lambda connection: None)  # as for a role that may not
        turnkeep.migrate(empty_dsn)
    assert embedding_type(empty_dsn) == "real[]"
    await talk(empty_dsn)
    run(empty_dsn, "UPDATE turnkeep.document SET embedding = array_fill(0.5::real, ARRAY[768])")
    run(empty_dsn, "CREATE EXTENSION vector")
    assert "give embeddings the type that pgvector has for them" in [step.what for step in plan(empty_dsn)]
    assert psql(empty_dsn, script(empty_dsn)).returncode == 0
    check_nothing_left(empty_dsn)
    assert embedding_type(empty_dsn) == "vector(768)"
    rows = run(empty_dsn, "SELECT embedding::real[] FROM turnkeep.agent_checkpoints WHERE phase = 'final'")
    assert rows == [([0.5] * 768,)]


def test_large_tables_get_an_index_that_may_be_there_already() -> None:
    # What comes after these can be made beforehand, CONCURRENTLY: it is then found.
    folder = Path(_migrate.__file__).parent / "schema"
    for number, name in _migrate._numbered():
        if number > 3:
            text = (folder / f"{number:04}_{name}.sql").read_text()
            assert text.count("CREATE INDEX ") == text.count("CREATE INDEX IF NOT EXISTS "), f"{number:04}_{name}.sql"


def test_a_name_for_psql_is_its_own(empty_dsn: str) -> None:
    # psql puts variables into what is not quoted.
    text = script(empty_dsn, "turnkeep")
    ran = psql(empty_dsn, "\\set v_cut oops\n\\set cardinality oops\n\\set int oops\n" + text)
    assert (ran.returncode, ran.stderr) == (0, "")
    with psycopg.connect(empty_dsn) as connection:
        (found,) = connection.execute(
            "SELECT count(*) FROM pg_proc WHERE pronamespace = 'turnkeep'::regnamespace AND prosrc LIKE '%oops%'"
        ).fetchall()
    assert found == (0,)
