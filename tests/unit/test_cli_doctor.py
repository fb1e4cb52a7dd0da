"""What `turnkeep doctor` makes of what it finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnkeep.cli.doctor_findings import Finding
from turnkeep.cli.doctor_schema import lease_finding, rights_findings, schema_findings
from turnkeep.cli.doctor_server import clock_finding, server_findings
from turnkeep.store import Migration, SchemaStatus
from turnkeep.store._doctor import Cluster, Examination, Leases, Override, Rights, Server, Setting
from turnkeep.store._health import Observed

NOW = datetime.now(UTC)
SERVER = Server(
    address="db:5432",
    connected_in=0.01,
    round_trip=0.001,
    clock_ahead=0.0,
    clock_error=0.0005,
    pooled=False,
    version_number=170002,
    version="17.2",
    encoding="UTF8",
    in_recovery=False,
    read_only=False,
    role_name="app",
    database_name="prod",
    may_create=False,
    vector_available=False,
)
SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "synchronous_standby_names": "",
    "max_connections": "100",
    "superuser_reserved_connections": "3",
}
CLUSTER = Cluster(
    connections=5,
    prepared=0,
    oldest_prepared=None,
    standbys=0,
    synchronous_standbys=0,
    may_see_standbys=True,
    transaction_age=1000,
    database_limit=-1,
    role_limit=-1,
)
OBSERVED = Observed(
    statements_created=True,
    statements_loaded=True,
    statements_available=True,
    connections=1,
    archiving=False,
    archive_failures=0,
    archive_failed_at=None,
    archived_at=None,
    autovacuum=True,
)
SCHEMA = SchemaStatus("turnkeep", True, (Migration(1, "core", True),), True, "0.8.6", True, None)


def found(
    settings: dict[str, str] | None = None,
    *,
    source: str = "default",
    overrides: tuple[Override, ...] = (),
    server: dict[str, Any] | None = None,
    **cluster: Any,
) -> list[Finding]:
    values = SETTINGS | (settings or {})
    return list(
        server_findings(
            Examination(
                server=replace(SERVER, **(server or {})),
                settings={name: Setting(value, source) for name, value in values.items()},
                overrides=overrides,
                cluster=replace(CLUSTER, **cluster),
                observed=OBSERVED,
                rights=None,
                leases=None,
                health=None,
            )
        )
    )


def levels(findings: Iterable[Finding]) -> dict[str, str]:
    findings = list(findings)
    assert all(finding.remedy for finding in findings if finding.level != "ok")
    return {finding.check: finding.level for finding in findings if finding.level != "ok"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {}),
        ({"pooled": True}, {}),
        ({"round_trip": 0.2}, {"connection": "warn"}),
        ({"version_number": 140010}, {"version": "problem"}),
        ({"version_number": 190000}, {"version": "warn"}),
        ({"encoding": "SQL_ASCII"}, {"encoding": "problem"}),
        ({"in_recovery": True}, {"writable": "problem"}),
        ({"read_only": True}, {"writable": "problem"}),
        ({"clock_ahead": -60.0}, {"clock": "warn"}),
    ],
)
def test_the_server_is_judged(change: dict[str, Any], expected: dict[str, str]) -> None:
    assert levels(found(server=change)) == expected


def test_clocks_are_told_apart_only_where_that_was_measured() -> None:
    assert clock_finding(-3.0, 0.01).level == "warn"
    assert clock_finding(3.0, 2.0).level == clock_finding(0.5, 0.0).level == "ok"
    assert "behind" in clock_finding(-3.0, 0.01).message


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"fsync": "off"}, {"fsync": "problem"}),
        ({"full_page_writes": "off"}, {"full_page_writes": "warn"}),
        ({"synchronous_commit": "off"}, {"synchronous_commit": "problem"}),
        ({"statement_timeout": "1000"}, {"timeouts": "warn"}),
        ({"statement_timeout": "60000"}, {}),
        ({"lock_timeout": "100"}, {"timeouts": "warn"}),
        ({"idle_in_transaction_session_timeout": "10000"}, {"timeouts": "warn"}),
        ({"transaction_timeout": "10000"}, {"timeouts": "warn"}),
    ],
)
def test_settings_are_judged(settings: dict[str, str], expected: dict[str, str]) -> None:
    assert levels(found(settings)) == expected


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("database", 'ALTER DATABASE "prod" RESET synchronous_commit'),
        ("user", 'ALTER ROLE "app" RESET synchronous_commit'),
        ("database user", 'ALTER ROLE "app" IN DATABASE "prod" RESET synchronous_commit'),
        ("configuration file", "ALTER SYSTEM SET synchronous_commit = on"),
        ("client", "Take it out"),
    ],
)
def test_a_setting_is_mended_where_it_was_made(source: str, remedy: str) -> None:
    (finding,) = (one for one in found({"synchronous_commit": "off"}, source=source) if one.level == "problem")
    assert remedy in str(finding.remedy)


def test_what_is_set_for_other_roles_is_said() -> None:
    other = Override("prod", "worker", "synchronous_commit=off")
    (finding,) = (one for one in found(overrides=(other,)) if one.check == "settings")
    assert finding.level == "warn"
    assert 'ALTER ROLE "worker" IN DATABASE "prod" RESET synchronous_commit;' in str(finding.remedy)
    harmless = (replace(other, setting="synchronous_commit=remote_apply"), replace(other, role_name="app"))
    assert levels(found(overrides=harmless)) == {}


@pytest.mark.parametrize(
    ("names", "commit", "cluster", "level"),
    [
        ("", "on", {}, "ok"),
        ("", "on", {"standbys": 1}, "warn"),
        ("a", "on", {"standbys": 1, "synchronous_standbys": 1}, "ok"),
        ("a, b", "on", {"standbys": 1}, "problem"),
        ("ANY 2 (a, b, c)", "on", {"standbys": 2, "synchronous_standbys": 1}, "problem"),
        ("first 2(a,b)", "on", {"standbys": 2, "synchronous_standbys": 2}, "ok"),
        ("2 (a, b)", "remote_apply", {"standbys": 1, "synchronous_standbys": 1}, "problem"),
        ("a", "on", {"standbys": 1, "may_see_standbys": False}, "warn"),
        ("a", "local", {"standbys": 1}, "warn"),
        ("a", "local", {}, "ok"),
    ],
)
def test_replication_is_judged(names: str, commit: str, cluster: dict[str, Any], level: str) -> None:
    settings = {"synchronous_standby_names": names, "synchronous_commit": commit}
    assert levels(found(settings, **cluster)) == ({} if level == "ok" else {"replication": level})


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"connections": 78}, {"connections": "warn"}),
        ({"connections": 77}, {}),
        ({"role_limit": 5}, {"connections": "warn"}),
        ({"role_limit": None, "database_limit": 10}, {"connections": "warn"}),
        ({"transaction_age": 1_100_000_000}, {"transactions": "warn"}),
        ({"transaction_age": 1_900_000_000}, {"transactions": "problem"}),
        ({"prepared": 1, "oldest_prepared": NOW - timedelta(days=1)}, {"transactions": "warn"}),
        ({"prepared": 1, "oldest_prepared": NOW}, {}),
    ],
)
def test_limits_are_judged(cluster: dict[str, Any], expected: dict[str, str]) -> None:
    assert levels(found(**cluster)) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {}),
        ({"exists": False}, {"schema": "problem"}),
        ({"migrations": (Migration(1, "core", True), Migration(2, "more", False))}, {"schema": "problem"}),
        ({"repeatable_current": False, "vector_in_use": False}, {"schema": "problem", "pgvector": "warn"}),
        ({"missing": ("table document",)}, {"schema": "problem"}),
        ({"vector_version": None, "vector_in_use": False}, {"pgvector": "warn"}),
    ],
)
def test_the_schema_is_judged(change: dict[str, Any], expected: dict[str, str]) -> None:
    assert levels(schema_findings(replace(SCHEMA, **change), SERVER)) == expected


def test_rights_are_judged() -> None:
    every = Rights(True, (), (), ())
    assert levels(rights_findings(every, "turnkeep", SERVER)) == {}
    assert levels(rights_findings(replace(every, may_use=False), "turnkeep", SERVER)) == {"rights": "problem"}
    reader = replace(
        every, missing_on_tables=("INSERT on message",), missing_on_functions=("save_v1",), reads_only=True
    )
    assert levels(rights_findings(reader, "turnkeep", SERVER)) == {}
    some = replace(every, missing_on_tables=("DELETE on message",))
    assert levels(rights_findings(some, "turnkeep", SERVER)) == {"rights": "warn"}


def test_leases_are_judged() -> None:
    assert lease_finding(Leases(3, 0, 0, None, (), 0.0), NOW).level == "ok"
    assert "turnkeep resume" in str(lease_finding(Leases(0, 0, 2, None, (), 0.0), NOW).remedy)
    expired = lease_finding(Leases(0, 1, 1, NOW - timedelta(hours=3), ("support",), 0.0), NOW)
    assert (expired.level, "3 h ago" in expired.message) == ("warn", True)
    assert "support" in str(expired.remedy)
