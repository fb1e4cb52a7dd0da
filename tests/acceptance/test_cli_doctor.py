"""`turnkeep doctor`, and the private Postgres looked at and stopped."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.acceptance.command_line import run
from tests.acceptance.pgbouncer import PgBouncer
from turnkeep.embedded import EmbeddedPostgres

# -- doctor


def test_doctor_finds_nothing_wrong_with_a_new_database(dsn: str) -> None:
    ran = run("doctor", dsn=dsn)
    assert ran.code == 0, ran.out
    found = json.loads(run("doctor", "--json", dsn=dsn).out)
    checks = {finding["check"]: finding["level"] for finding in found["findings"]}
    expected = {
        "connection",
        "pooler",
        "clock",
        "version",
        "encoding",
        "durability",
        "replication",
        "timeouts",
        "connections",
        "transactions",
        "schema",
        "pgvector",
        "rights",
        "indexes",
        "leases",
        "wal archive",
        "pg_stat_statements",
        "autovacuum",
        "consistency",
        "documents",
        "archive",
        "snapshots",
    }
    assert set(checks) == expected
    assert found["server"]["pooled"] is False
    assert found["schema"]["current"] is True


def problems(dsn: str) -> dict[str, str]:
    """The remedies of what doctor calls a problem."""
    ran = run("doctor", "--json", dsn=dsn)
    assert ran.code == 6
    return {one["check"]: one["remedy"] for one in json.loads(ran.out)["findings"] if one["level"] == "problem"}


def test_doctor_names_problems_with_their_remedies(dsn: str, empty_dsn: str) -> None:
    assert "turnkeep init" in problems(empty_dsn)["schema"]
    assert "turnkeep init" in run("doctor", "--quiet", dsn=empty_dsn).out
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET synchronous_commit = off')
        connection.execute(
            "INSERT INTO turnkeep.conversation VALUES (gen_random_uuid(), 'a', 'x', '{}', null, 0, 1, now())"
        )
        connection.execute(
            "INSERT INTO turnkeep.conversation VALUES (gen_random_uuid(), 'b', 'x', '{}', null, 0, 1, now())"
        )
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("CREATE UNIQUE INDEX CONCURRENTLY once ON turnkeep.conversation (agent_id)")
    found = problems(dsn)
    assert set(found) == {"synchronous_commit", "indexes", "consistency"}
    assert "REINDEX" in found["indexes"]
    assert "ALTER DATABASE" in found["synchronous_commit"]
    with psycopg.connect(dsn, autocommit=True) as connection:
        mending = found["synchronous_commit"].removeprefix("Run ").split(":")[0]
        connection.execute(mending.encode())
        connection.execute(found["indexes"].removeprefix("Run ").rstrip(".").encode().replace(b"REINDEX", b"DROP"))
        connection.execute("DELETE FROM turnkeep.conversation")
    assert run("doctor", dsn=dsn).code == 0


def test_doctor_reads_what_would_cut_off_or_weaken_a_save(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        role, database = f"worker_{connection.info.dbname}", connection.info.dbname
        connection.execute(f'CREATE ROLE "{role}" LOGIN CONNECTION LIMIT 3')
        connection.execute(f'ALTER ROLE "{role}" IN DATABASE "{database}" SET synchronous_commit = off')
        connection.execute(f'ALTER DATABASE "{database}" SET statement_timeout = 900')
        connection.execute(f'GRANT USAGE ON SCHEMA turnkeep TO "{role}"')
        try:
            ours = json.loads(run("doctor", "--json", dsn=dsn).out)
            said = {one["check"]: one for one in ours["findings"] if one["level"] == "warn"}
            assert set(said) == {"settings", "timeouts"}
            assert role in said["settings"]["message"]
            assert "900 ms" in said["timeouts"]["message"]
            theirs = json.loads(run("doctor", "--json", dsn=make_conninfo(dsn, user=role)).out)
            said = {one["check"]: one for one in theirs["findings"] if one["level"] != "ok"}
            assert said["synchronous_commit"]["level"] == "problem"
            assert f'ALTER ROLE "{role}" IN DATABASE' in said["synchronous_commit"]["remedy"]
            assert "may have 3" in said["connections"]["message"]
            assert theirs["cluster"]["may_see_standbys"] is False
        finally:
            connection.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_doctor_sees_a_clock_that_a_test_has_left_put_forward(dsn: str, advance: Callable[[timedelta], None]) -> None:
    advance(timedelta(minutes=8))
    found = problems(dsn)
    assert set(found) == {"clock"}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(found["clock"].removeprefix("Run ").rstrip(".").encode())
    assert run("doctor", dsn=dsn).code == 0


def test_doctor_says_which_rights_are_missing(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        role = f"role_{connection.info.dbname}"
        connection.execute(f'CREATE ROLE "{role}" LOGIN')
        try:
            limited = make_conninfo(dsn, options=f"-c role={role}")
            none = run("doctor", dsn=limited)
            assert none.code == 6
            assert "USAGE on the schema" in none.out
            grant = none.out[none.out.index("GRANT USAGE") :].splitlines()[0]
            assert run("ls", dsn=limited).code == 1
            connection.execute(grant.replace(", DELETE", "").encode())
            some = run("doctor", dsn=limited)
            assert some.code == 0, some.out
            assert "erased" in some.out
            connection.execute(grant.encode())
            assert "warn" not in run("doctor", dsn=limited).out
        finally:
            connection.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_doctor_works_through_a_pooler_and_says_so(dsn: str) -> None:
    with PgBouncer(dsn, pool_size=2) as pooler:
        ran = run("doctor", "--json", dsn=pooler.dsn())
        assert ran.code == 0, ran.out
        assert json.loads(ran.out)["server"]["pooled"] is True
        assert run("ls", "--interrupted", dsn=pooler.dsn()).code == 0
        assert run("migrate", "--status", dsn=pooler.dsn()).code == 0


def test_doctor_reports_an_unreachable_database_as_a_finding_and_7() -> None:
    ran = run("doctor", "--json", "--dsn", "host=/nowhere")
    assert ran.code == 7
    (finding,) = json.loads(ran.out)["findings"]
    assert (finding["check"], finding["level"]) == ("connection", "problem")


# -- the embedded Postgres


def test_the_embedded_postgres_is_looked_at_and_stopped() -> None:
    root = Path(tempfile.mkdtemp(prefix="turnkeep-cli-"))
    root.chmod(0o755)
    directory = root / "postgres"
    named = {"TURNKEEP_EMBEDDED_DIR": str(directory), "TURNKEEP_DATABASE_URL": "embedded"}
    try:
        assert "turnkeep init" in run("doctor", **named).out
        assert run("embedded", "status", **named).code == 0
        assert not directory.exists()
        assert "schema created" in run("init", **named).out
        with EmbeddedPostgres.start(directory) as running:
            told = run("embedded", "status", **named).out
            status = json.loads(run("embedded", "status", "--json", str(directory)).out)
            assert status["conninfo"] in told
            with psycopg.connect(status["conninfo"]) as connection:
                assert connection.info.dbname == "turnkeep"
            assert (status["running"], status["postmaster_pid"]) == (True, running.postmaster_pid())
            found = run("doctor", "--json", **named)
            assert found.code == 0, found.out
            assert json.loads(found.out)["embedded"]["directory"] == str(directory)
            waiting = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'"
            with psycopg.connect(running.conninfo, autocommit=True) as connection:
                connection.execute(waiting)
                connection.execute("SELECT pg_reload_conf()")
                while connection.execute("SHOW synchronous_standby_names").fetchone() != ("nobody",):
                    connection.execute("SELECT pg_sleep(0.01)")
                hangs = run("doctor", **named)
                assert (hangs.code, "every save waits for ever" in hangs.out) == (6, True)
                connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
                connection.execute("SELECT pg_reload_conf()")
                while connection.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",):
                    connection.execute("SELECT pg_sleep(0.01)")
            assert run("ls", **named).code == 0
            assert json.loads(run("embedded", "stop", "--json", **named).out)["stopped"] is True
            again = run("embedded", "stop", **named)
            assert (again.code, "No Postgres runs" in again.out) == (0, True)
            assert "it was not running" in run("doctor", **named).out
    finally:
        run("embedded", "stop", **named)
        shutil.rmtree(root)
