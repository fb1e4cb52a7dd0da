"""The schema: made, brought up to date, looked at."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from turnkeep._version import VERSION
from turnkeep.errors import ConfigurationError, SchemaError
from turnkeep.settings import DEFAULT_SCHEMA, check_schema_name
from turnkeep.store._embedding_column import (
    WITHOUT_VECTOR,
    check_dimensions,
    column_dimensions,
    fitted,
    vector_in,
    vector_schema,
    vector_type,
)
from turnkeep.store._failures import parsed, translated
from turnkeep.store._statements import read, render

Connection = psycopg.Connection[tuple[Any, ...]]
_Applied = dict[int, tuple[str, str | None]]

_CREATE_VECTOR = b"CREATE EXTENSION IF NOT EXISTS vector SCHEMA public"
_LOCK_CALL: LiteralString = "pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended({}, 0))"
_LOCK = sql.SQL("SELECT " + _LOCK_CALL)
_REPEATABLE = tuple(
    f"schema/{part}.sql"
    for part in (
        *("reading", "writing", "leases", "conversations", "pruning", "expiry"),
        *("archiving", "views", "documents", "insert_values", "insert", "comments"),
    )
)
_VIEW = re.compile(r"CREATE OR REPLACE VIEW \{schema\}\.(\w+)")
_DESCRIBED = re.compile(r"^ *\('(\w+)', (?:NULL|'(\w+)'),", re.MULTILINE)
_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")


@dataclass(frozen=True)
class Migration:
    """A numbered change of the tables. `applied` says whether the schema has it."""

    number: int
    name: str
    applied: bool


@dataclass(frozen=True)
class SchemaStatus:
    """A schema as it stands: its migrations, whether functions and views are this release's, and pgvector.

    `dimensions` are those of the embeddings; None where pgvector is not in use. `missing` names tables, columns and
    views that its migrations have made and that are gone: `migrate` puts views and the column of embeddings back.
    """

    schema: str
    exists: bool
    migrations: tuple[Migration, ...]
    repeatable_current: bool
    vector_version: str | None
    vector_in_use: bool
    vector_hint: str | None
    dimensions: int | None = None
    missing: tuple[str, ...] = ()

    @property
    def current(self) -> bool:
        """Whether there is nothing left for `migrate` to do."""
        applied = all(one.applied for one in self.migrations)
        return self.exists and self.repeatable_current and applied and not self.missing


@dataclass(frozen=True)
class Step:
    """One thing that `migrate` does: what, in words, and its SQL."""

    what: str
    statement: bytes


def migrate(
    conninfo: str, schema: str = DEFAULT_SCHEMA, *, dimensions: int | None = None, timeout: float = 60.0
) -> SchemaStatus:
    """Make the schema, or bring it up to date, in one transaction: all of it or nothing.

    Harmless when it is current, and when several processes call it at once: they wait for each other under a
    transaction lock (G10). Needs the right to create a schema only where it is missing, and no superuser's
    right (G11): without the right to create the extension pgvector it goes on without, and `vector_hint` of
    the result says what to ask an administrator for. An older release leaves a newer one's functions alone.

    `dimensions` (1 to 16,000) are those of the embeddings that the schema holds: 768 in a new one, and as many as it
    has if not given. Where it has another number, all embeddings are dropped, to be made anew by the worker of the
    search; texts stay. Raises `ConfigurationError` where pgvector is missing then, and `SchemaError` where a table or a
    column is missing that was there: it would come back empty.

    `timeout` is in seconds, for connecting and for each lock that somebody else holds: `UnavailableError` then.
    """
    check_schema_name(schema)
    check_dimensions(dimensions)
    with transaction(conninfo, schema, timeout) as connection:
        found = _status(connection, schema, dimensions=dimensions)
        if found.current and dimensions in (None, found.dimensions):
            return replace(found, vector_hint=_vector_hint(connection))
        connection.execute(_LOCK.format(_lock_name(schema)))
        hint = _create_vector(connection)
        vector = vector_type(connection, schema, dimensions)
        if dimensions is not None and vector.as_string(None) == WITHOUT_VECTOR:
            raise ConfigurationError(f"dimensions: embeddings have them with pgvector only, which is missing: {hint}")
        for step in _steps(connection, schema, vector, dimensions):
            connection.execute(step.statement)
        return _status(connection, schema, hint)


def plan(
    conninfo: str, schema: str = DEFAULT_SCHEMA, *, dimensions: int | None = None, timeout: float = 60.0
) -> tuple[Step, ...]:
    """Give what `migrate` would do, in its order, without changing anything."""
    check_schema_name(schema)
    check_dimensions(dimensions)
    with transaction(conninfo, schema, timeout) as connection:
        return _plan(connection, schema, dimensions)


def script(conninfo: str, schema: str = DEFAULT_SCHEMA, *, dimensions: int | None = None, timeout: float = 60.0) -> str:
    """Give the SQL of `migrate` for this schema as it stands, as one transaction for an administrator's psql.

    It refuses to run where the schema has changed since, and waits for others as `migrate` does.
    """
    check_schema_name(schema)
    check_dimensions(dimensions)
    with transaction(conninfo, schema, timeout) as connection:
        steps = _plan(connection, schema, dimensions)
        if not steps:
            return f"-- Turnkeep {VERSION}: there is nothing left to do.\n"
        settings = (
            "SET LOCAL client_min_messages = warning;\nSET LOCAL search_path = pg_catalog, pg_temp;\n"
            f"SET LOCAL lock_timeout = '{timeout:g}s';"
        )
        guard = _guard(schema, _applied(connection, schema)).as_string(None)
        parts = [f"-- Turnkeep {VERSION}: all of it or nothing.\nBEGIN ISOLATION LEVEL READ COMMITTED;\n{settings}"]
        parts += [f"-- Wait for others, and refuse a schema that has changed.\n{guard};"]
        parts += [f"-- To {step.what}.\n{step.statement.decode()}" for step in steps]
        return "\n\n".join([*parts, "COMMIT;\n"])


def bring_up_to_date(conninfo: str, schema: str) -> SchemaStatus:
    """Do what `migrate` does with a schema that is there, or with the default one.

    Raises `SchemaError` for another name, which may be a slip of the pen.
    """
    if schema != DEFAULT_SCHEMA and not status(conninfo, schema).exists:
        with transaction(conninfo, schema, 60.0) as connection:
            rows = connection.execute(
                "SELECT n.nspname FROM pg_catalog.pg_namespace AS n WHERE 2 = ("
                "SELECT pg_catalog.count(*) FROM pg_catalog.pg_class AS c"
                " WHERE c.relnamespace = n.oid AND c.relname IN ('migration', 'checkpoint')) ORDER BY 1"
            ).fetchall()
        there = ", ".join(repr(name) for (name,) in rows) or "none"
        raise SchemaError(
            f"there is no schema {schema!r}; there are: {there}. `turnkeep init --schema {schema}` would make it"
        )
    return migrate(conninfo, schema)


def status(conninfo: str, schema: str = DEFAULT_SCHEMA, *, timeout: float = 60.0) -> SchemaStatus:
    """Look at the schema without changing anything."""
    check_schema_name(schema)
    with transaction(conninfo, schema, timeout) as connection:
        return _status(connection, schema)


@contextmanager
def transaction(conninfo: str, schema: str, timeout: float) -> Iterator[Connection]:
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


def _vector_hint(connection: Connection) -> str | None:
    """What to ask an administrator for, where pgvector can't be used as things are."""
    available = connection.execute(
        "SELECT installed_version FROM pg_catalog.pg_available_extensions WHERE name = 'vector'"
    ).fetchone()
    if available is None:
        return "pgvector is not on the server: have its package installed, then CREATE EXTENSION vector"
    if available[0] is None:
        return f"have an administrator run CREATE EXTENSION vector in database {connection.info.dbname}"
    return None if vector_schema(connection) else "grant this role USAGE on the schema that pgvector lives in"


def _vector_lacks_creation(connection: Connection) -> bool:
    row = connection.execute(
        "SELECT installed_version IS NULL FROM pg_catalog.pg_available_extensions WHERE name = 'vector'"
    ).fetchone()
    return row == (True,)


def _create_vector(connection: Connection) -> str | None:
    """Create pgvector where that is possible. Gives a sentence for an administrator where it is not."""
    hint = _vector_hint(connection)
    if not _vector_lacks_creation(connection):
        return hint
    try:
        with connection.transaction():
            connection.execute(_CREATE_VECTOR)
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject):
        return None  # another process was faster
    except (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.UndefinedFile,
        psycopg.errors.InvalidSchemaName,
    ) as error:
        return f"{hint} ({error.diag.message_primary})"
    return None


def _plan(connection: Connection, schema: str, dimensions: int | None) -> tuple[Step, ...]:
    found = _status(connection, schema, dimensions=dimensions)
    if found.current and dimensions in (None, found.dimensions):
        return ()
    if _vector_lacks_creation(connection):
        create = Step("create the extension pgvector", _CREATE_VECTOR + b";")
        return (create, *_steps(connection, schema, vector_in("public", dimensions), dimensions))
    return tuple(_steps(connection, schema, vector_type(connection, schema, dimensions), dimensions))


def _steps(connection: Connection, schema: str, vector: sql.Composable, dimensions: int | None) -> Iterator[Step]:
    """What the schema lacks, as it stood before the first of these."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise ConfigurationError(f"the database's encoding is {encoding}: conversations need one created with UTF8")
    name = sql.Identifier(schema)
    applied = _applied(connection, schema)
    table = sql.SQL(
        "CREATE TABLE IF NOT EXISTS {}.migration "
        "(number int PRIMARY KEY, name text NOT NULL, digest text, applied_at timestamptz NOT NULL);"
    ).format(name)
    if not _schema_exists(connection, schema):
        made = sql.SQL("CREATE SCHEMA {};\n").format(name) + table
        yield Step("create the schema", made.as_bytes(None))
    elif not applied:
        yield Step("create the table of migrations", table.as_bytes(None))
    for number, file in _numbered():
        if number not in applied:
            text = render(read(f"schema/{number:04}_{file}.sql"), schema)
            yield Step(f"apply migration {number} ({file})", text + _record(schema, number, file, None))
    digest = _repeatable_digest(vector)
    missing = _missing(connection, schema, applied)
    if lost := [one for one in missing if not one.mendable]:
        raise SchemaError(
            f"schema {schema!r} lacks {', '.join(one.name for one in lost)}, which a migration has made: whoever has "
            "renamed or dropped that must put it back, or restore it from a backup; then run `turnkeep migrate`"
        )
    if _outdated(applied, digest) or missing:
        for what, statement in fitted(connection, schema, vector, dimensions, lost=bool(missing)):
            yield Step(what, statement)
        texts = [render(read(path), schema, vector=vector) for path in _REPEATABLE]
        yield Step("put functions and views in place", b"\n".join([*texts, _record(schema, 0, VERSION, digest)]))


def _record(schema: str, number: int, name: str, digest: str | None) -> bytes:
    """What writes down that a step has been done."""
    return (
        sql.SQL(
            "INSERT INTO {}.migration (number, name, digest, applied_at) VALUES ({}, {}, {}, clock_timestamp())"
            " ON CONFLICT (number) DO UPDATE"
            " SET name = excluded.name, digest = excluded.digest, applied_at = excluded.applied_at;"
        )
        .format(sql.Identifier(schema), number, name, digest)
        .as_bytes(None)
    )


def _lock_name(schema: str) -> sql.Literal:
    return sql.Literal(f"turnkeep {schema}")


def _guard(schema: str, applied: _Applied) -> sql.Composable:
    """A block that waits for the lock, and fails where other migrations are recorded than these."""
    table = sql.Identifier(schema, "migration")
    recorded = "".join(f"{number} {applied[number][1] or ''}\n" for number in sorted(applied))
    body = sql.SQL("BEGIN PERFORM {}; IF {} THEN RAISE EXCEPTION {}; END IF; END").format(
        sql.SQL(_LOCK_CALL).format(_lock_name(schema)),
        sql.SQL(
            "(SELECT pg_catalog.string_agg(pg_catalog.format(E'%s %s\\n', number, digest), '' ORDER BY number) FROM {})"
            " IS DISTINCT FROM {}"
        ).format(table, sql.Literal(recorded))
        if applied
        else sql.SQL("pg_catalog.to_regclass({}) IS NOT NULL").format(table.as_string(None)),
        "the schema has changed since this script was made: make it again",
    )
    return sql.SQL("DO {}").format(body.as_string(None))


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


@dataclass(frozen=True)
class _Missing:
    """A table, column or view that is not there. What holds no data of its own is mendable."""

    name: str
    mendable: bool


def _missing(connection: Connection, schema: str, applied: _Applied) -> list[_Missing]:
    """What a schema of this release lacks, though its migrations are recorded: somebody has dropped or renamed it."""
    release, _ = applied.get(0, ("0", None))
    if 0 not in applied or _order(release) > _order(VERSION) or any(one not in applied for one, _ in _numbered()):
        return []
    rows = connection.execute(
        "SELECT c.relname, c.relkind = 'v', ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute AS a"
        " WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v')",
        (schema,),
    ).fetchall()
    have = {name: (is_view, set(columns)) for name, is_view, columns in rows}
    views = {name for path in _REPEATABLE for name in _VIEW.findall(read(path))}
    missing = []
    for relation, column in _DESCRIBED.findall(read("schema/comments.sql")):
        if relation not in have:
            if not column:
                missing.append(_Missing(f"{'view' if relation in views else 'table'} {relation}", relation in views))
        elif relation not in views and column and column not in have[relation][1]:
            missing.append(_Missing(f"column {relation}.{column}", (relation, column) == ("document", "embedding")))
    return missing


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _status(
    connection: Connection, schema: str, hint: str | None = None, *, dimensions: int | None = None
) -> SchemaStatus:
    applied = _applied(connection, schema)
    vector = vector_type(connection, schema, dimensions)
    missing = _missing(connection, schema, applied)
    current = not _outdated(applied, _repeatable_digest(vector)) and not any(one.mendable for one in missing)
    version = connection.execute("SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'vector'").fetchone()
    return SchemaStatus(
        schema=schema,
        exists=_schema_exists(connection, schema),
        migrations=tuple(Migration(number, name, number in applied) for number, name in _numbered()),
        repeatable_current=current,
        vector_version=None if version is None else version[0],
        vector_in_use=version is not None and current,
        vector_hint=hint,
        dimensions=column_dimensions(connection, schema),
        missing=tuple(one.name for one in missing),
    )
