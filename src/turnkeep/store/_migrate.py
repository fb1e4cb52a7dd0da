"""The schema: made, brought up to date, looked at."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any

import psycopg
from psycopg import sql

from turnkeep._version import VERSION
from turnkeep.errors import ConfigurationError
from turnkeep.settings import DEFAULT_SCHEMA, check_schema_name
from turnkeep.store._failures import parsed, translated
from turnkeep.store._statements import in_parameterised, read, render

Connection = psycopg.Connection[tuple[Any, ...]]
_Applied = dict[int, tuple[str, str | None]]

EMBEDDING_DIMENSIONS = 768
_WITHOUT_VECTOR = "real[]"
_REPEATABLE = ("schema/functions.sql", "schema/conversations.sql", "schema/views.sql")
_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")


@dataclass(frozen=True)
class Migration:
    """A numbered change of the tables. `applied` says whether the schema has it."""

    number: int
    name: str
    applied: bool


@dataclass(frozen=True)
class SchemaStatus:
    """A schema as it stands: its migrations, whether functions and views are this release's, and pgvector."""

    schema: str
    exists: bool
    migrations: tuple[Migration, ...]
    repeatable_current: bool
    vector_version: str | None
    vector_in_use: bool
    vector_hint: str | None

    @property
    def current(self) -> bool:
        """Whether there is nothing left for `migrate` to do."""
        return self.exists and self.repeatable_current and all(m.applied for m in self.migrations)


def migrate(conninfo: str, schema: str = DEFAULT_SCHEMA, *, timeout: float = 60.0) -> SchemaStatus:
    """Make the schema, or bring it up to date, in one transaction: all of it or nothing.

    Harmless when it is current, and when several processes call it at once: they wait for each other under a
    transaction lock (G10). Needs the right to create a schema only where it is missing, and no superuser's
    right (G11): without the right to create the extension pgvector it goes on without, and `vector_hint` of
    the result says what to ask an administrator for. An older release leaves a newer one's functions alone.

    `timeout` is in seconds, for connecting and for each lock that somebody else holds: `UnavailableError` then.
    """
    check_schema_name(schema)
    with _transaction(conninfo, schema, timeout) as connection:
        found = _status(connection, schema)
        if found.current:
            return found
        connection.execute(
            "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(%s, 0))", (f"turnkeep {schema}",)
        )
        hint = _create_vector(connection)
        _apply(connection, schema)
        return _status(connection, schema, hint)


def status(conninfo: str, schema: str = DEFAULT_SCHEMA, *, timeout: float = 60.0) -> SchemaStatus:
    """Look at the schema without changing anything."""
    check_schema_name(schema)
    with _transaction(conninfo, schema, timeout) as connection:
        return _status(connection, schema)


@contextmanager
def _transaction(conninfo: str, schema: str, timeout: float) -> Iterator[Connection]:
    """A transaction on a connection of its own, whose failures are errors of ours."""
    parsed(conninfo)
    try:
        with psycopg.connect(
            conninfo, prepare_threshold=None, client_encoding="UTF8", connect_timeout=max(2, int(timeout))
        ) as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            connection.execute(
                "SELECT pg_catalog.set_config('lock_timeout', %s, true),"
                " pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)",
                (f"{timeout:g}s",),
            )
            yield connection
    except psycopg.Error as error:
        raise translated(error, schema) from error


def _numbered() -> list[tuple[int, str]]:
    files = resources.files(__package__).joinpath("schema").iterdir()
    marks = [mark for file in files if (mark := _FILE.match(file.name))]
    return sorted((int(mark.group(1)), mark.group(2)) for mark in marks)


def _repeatable_digest(vector: sql.Composable) -> str:
    text = "\0".join([*map(read, _REPEATABLE), vector.as_string(None)])
    return hashlib.sha256(text.encode()).hexdigest()


def _create_vector(connection: Connection) -> str | None:
    """Create pgvector where that is possible. Gives a sentence for an administrator where it is not."""
    available = connection.execute(
        "SELECT installed_version FROM pg_catalog.pg_available_extensions WHERE name = 'vector'"
    ).fetchone()
    if available is None:
        return "pgvector is not on the server: have its package installed, then CREATE EXTENSION vector"
    if available[0] is not None:
        usable = _vector_type(connection).as_string(None) != _WITHOUT_VECTOR
        return None if usable else "grant this role USAGE on the schema that pgvector lives in"
    try:
        with connection.transaction():
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject):
        return None  # another process was faster
    except (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.UndefinedFile,
        psycopg.errors.InvalidSchemaName,
    ) as error:
        database = connection.info.dbname
        why = error.diag.message_primary
        return f"have an administrator run CREATE EXTENSION vector in database {database} ({why})"
    return None


def _vector_type(connection: Connection) -> sql.Composable:
    """The type of an embedding: pgvector's by its full name, or an array where it is not installed."""
    row = connection.execute(
        "SELECT n.nspname FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'vector' AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')"
    ).fetchone()
    if row is None:
        return sql.SQL(_WITHOUT_VECTOR)
    return sql.SQL("{}.vector({})").format(sql.Identifier(row[0]), sql.Literal(EMBEDDING_DIMENSIONS))


def _apply(connection: Connection, schema: str) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise ConfigurationError(f"the database's encoding is {encoding}: conversations need one created with UTF8")
    if not _schema_exists(connection, schema):
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {}.migration "
            "(number int PRIMARY KEY, name text NOT NULL, digest text, applied_at timestamptz NOT NULL)"
        ).format(sql.Identifier(schema))
    )
    applied = _applied(connection, schema)
    for number, name in _numbered():
        if number not in applied:
            connection.execute(render(read(f"schema/{number:04}_{name}.sql"), schema))
            _record(connection, schema, number, name, None)
    vector = _vector_type(connection)
    digest = _repeatable_digest(vector)
    if _outdated(applied, digest):
        _fit_embedding(connection, schema, vector)
        for path in _REPEATABLE:
            connection.execute(render(read(path), schema, vector=vector))
        _record(connection, schema, 0, VERSION, digest)


def _fit_embedding(connection: Connection, schema: str, vector: sql.Composable) -> None:
    """Give document.embedding its type. A view can't follow such a change: it is made anew."""
    have = connection.execute(
        "SELECT pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute AS a"
        " JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'document' AND a.attname = 'embedding' AND NOT a.attisdropped",
        (schema,),
    ).fetchone()
    table = sql.Identifier(schema, "document")
    if have is None:
        connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN embedding {}").format(table, vector))
        return
    if (have[0] == _WITHOUT_VECTOR) == (vector.as_string(None) == _WITHOUT_VECTOR):
        return
    views = sql.SQL(", ").join(sql.Identifier(schema, name) for name in ("agent_checkpoints", "all_checkpoints"))
    connection.execute(sql.SQL("DROP VIEW IF EXISTS {}").format(views))
    connection.execute(
        sql.SQL("ALTER TABLE {} ALTER COLUMN embedding TYPE {} USING embedding::{}").format(table, vector, vector)
    )


def _record(connection: Connection, schema: str, number: int, name: str, digest: str | None) -> None:
    connection.execute(
        sql.SQL(
            "INSERT INTO {}.migration (number, name, digest, applied_at) VALUES (%s, %s, %s, clock_timestamp())"
            " ON CONFLICT (number) DO UPDATE"
            " SET name = excluded.name, digest = excluded.digest, applied_at = excluded.applied_at"
        ).format(sql.Identifier(in_parameterised(schema))),
        (number, name, digest),
    )


def _schema_exists(connection: Connection, schema: str) -> bool:
    row = connection.execute("SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", (schema,)).fetchone()
    return row is not None


def _applied(connection: Connection, schema: str) -> _Applied:
    """The recorded migrations: name and digest by number. 0 is functions and views, with the release as its name."""
    table = sql.Identifier(schema, "migration")
    there = connection.execute("SELECT pg_catalog.to_regclass(%s)", (table.as_string(None),)).fetchone()
    if there == (None,):
        return {}
    rows = connection.execute(sql.SQL("SELECT number, name, digest FROM {}").format(table)).fetchall()
    return {number: (name, digest) for number, name, digest in rows}


def _outdated(applied: _Applied, digest: str) -> bool:
    """Whether functions and views are to be put in: they are other ones, and not those of a newer release."""
    release, have = applied.get(0, ("0", None))
    return have != digest and _order(release) <= _order(VERSION)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _status(connection: Connection, schema: str, hint: str | None = None) -> SchemaStatus:
    applied = _applied(connection, schema)
    vector = _vector_type(connection)
    version = connection.execute("SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'vector'").fetchone()
    return SchemaStatus(
        schema=schema,
        exists=_schema_exists(connection, schema),
        migrations=tuple(Migration(number, name, number in applied) for number, name in _numbered()),
        repeatable_current=not _outdated(applied, _repeatable_digest(vector)),
        vector_version=None if version is None else version[0],
        vector_in_use=version is not None and not _outdated(applied, _repeatable_digest(vector)),
        vector_hint=hint,
    )
