"""A real Postgres for the run, and a fresh migrated database for each test that asks for one."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.clusters import Cluster, room
from tests.observing import Observer
from turnkeep import embedded
from turnkeep.embedded import EmbeddedPostgres

TEMPLATE = "turnkeep_template"
# A directory that has another version's programs in its `bin`, to run the tests on instead of the embedded Postgres.
HOME = os.environ.get("TURNKEEP_TEST_POSTGRES")

Server = EmbeddedPostgres | Cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    """A skipped test is a failed one where nothing may be skipped."""
    report: pytest.TestReport = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The run's own Postgres. Tests that kill a server start another."""
    if HOME is not None:
        with room() as place:
            cluster = Cluster(place / "cluster", Path(HOME))
            cluster.initialise(fsync="off")  # what it keeps is not the question here
            cluster.start()
            yield cluster
            cluster.stop()
        return
    directory = Path(tempfile.mkdtemp(prefix="turnkeep-tests-"))
    directory.chmod(0o755)
    with EmbeddedPostgres.start(directory / "postgres") as running:
        yield running
    embedded.stop(directory / "postgres")
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    """The name of a migrated, empty database, to be copied."""
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
    turnkeep.migrate(make_conninfo(server.conninfo, dbname=TEMPLATE))
    return TEMPLATE


@pytest.fixture
def empty_dsn(server: Server) -> Iterator[str]:
    """The conninfo of a new database with nothing in it."""
    yield from _database(server, "template0")


@pytest.fixture
def dsn(server: Server, template: str) -> Iterator[str]:
    """The conninfo of a new migrated database."""
    yield from _database(server, template)


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[turnkeep.AsyncStore]:
    """An open store on a new migrated database."""
    async with turnkeep.open(dsn) as opened:
        yield opened


@pytest.fixture
def observer(dsn: str) -> Iterator[Observer]:
    """A connection that looks at what others are doing."""
    with Observer(dsn) as opened:
        yield opened


@pytest.fixture
def advance(dsn: str) -> Callable[[timedelta], None]:
    """Put the database's clock forward: the one function that SQL asks for the time."""

    def put_forward(by: timedelta) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                sql.SQL(
                    "CREATE OR REPLACE FUNCTION turnkeep.clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
                    " AS $$ SELECT pg_catalog.clock_timestamp() + interval {} $$"
                ).format(sql.Literal(f"{by.total_seconds()} seconds"))
            )

    return put_forward


def _database(server: Server, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        yield make_conninfo(server.conninfo, dbname=name)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
