"""The column of embeddings: its type, its dimensions, and how they change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from turnkeep.errors import InvalidInputError
from turnkeep.store._vectors import EMBEDDING_DIMENSIONS

Connection = psycopg.Connection[tuple[Any, ...]]

WITHOUT_VECTOR = "real[]"
MOST_DIMENSIONS = 16_000

_VIEWS = ("agent_checkpoints", "all_checkpoints")


def check_dimensions(dimensions: object) -> int | None:
    """Return a number of dimensions that a column can have, or None for what there is."""
    if dimensions is None:
        return None
    if not isinstance(dimensions, int) or isinstance(dimensions, bool) or not 1 <= dimensions <= MOST_DIMENSIONS:
        raise InvalidInputError(
            f"dimensions: expected a whole number from 1 to {MOST_DIMENSIONS:,}, got {dimensions!r}"
        )
    return dimensions


def vector_schema(connection: Connection) -> str | None:
    """The schema that pgvector lives in, if this role may use it."""
    row = connection.execute(
        "SELECT n.nspname FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'vector' AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')"
    ).fetchone()
    return None if row is None else str(row[0])


def vector_type(connection: Connection, schema: str, dimensions: int | None) -> sql.Composable:
    """The type of an embedding: pgvector's by its full name, or an array where it is not installed.

    Of so many dimensions, else of as many as it has.
    """
    of_pgvector = vector_schema(connection)
    if of_pgvector is None:
        return sql.SQL(WITHOUT_VECTOR)
    return vector_in(of_pgvector, dimensions or column_dimensions(connection, schema))


def vector_in(schema: str, dimensions: int | None) -> sql.Composable:
    """pgvector's type, of a schema."""
    return sql.SQL("{}.vector({})").format(sql.Identifier(schema), sql.Literal(dimensions or EMBEDDING_DIMENSIONS))


def column_dimensions(connection: Connection, schema: str) -> int | None:
    """How many dimensions the column has; None where there is none, or none of pgvector's."""
    have = _column(connection, schema)
    return None if have is None or have[0] == WITHOUT_VECTOR else have[1]


def _column(connection: Connection, schema: str) -> tuple[str, int] | None:
    row = connection.execute(
        "SELECT pg_catalog.format_type(a.atttypid, a.atttypmod), a.atttypmod FROM pg_catalog.pg_attribute AS a"
        " JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'document' AND a.attname = 'embedding' AND NOT a.attisdropped",
        (schema,),
    ).fetchone()
    return None if row is None else (row[0], row[1])


def fitted(
    connection: Connection, schema: str, vector: sql.Composable, dimensions: int | None, *, lost: bool = False
) -> Iterator[tuple[str, bytes]]:
    """What gives the column this type, each part in words and as SQL. A view can't follow: it is made anew.

    `lost` says that the schema has had one: then nothing has an embedding any more, whatever names a model.
    """
    have = _column(connection, schema)
    table = sql.Identifier(schema, "document")
    if have is None and lost:
        anew = _new_columns(connection, schema, vector)
        yield "put the column of embeddings back; those it had are gone, to be made anew", anew.as_bytes(None)
        return
    if have is None:
        add = sql.SQL("ALTER TABLE {} ADD COLUMN embedding {};\n{}").format(table, vector, _forgetful(table))
        yield "add the column of embeddings", add.as_bytes(None)
        return
    drop = sql.SQL("DROP VIEW IF EXISTS {};\n").format(
        sql.SQL(", ").join(sql.Identifier(schema, name) for name in _VIEWS)
    )
    if (have[0] == WITHOUT_VECTOR) != (vector.as_string(None) == WITHOUT_VECTOR):
        change = drop + sql.SQL("ALTER TABLE {} ALTER COLUMN embedding TYPE {} USING embedding::{};").format(
            table, vector, vector
        )
        yield "give embeddings the type that pgvector has for them", change.as_bytes(None)
    elif dimensions is not None and have[0] != WITHOUT_VECTOR and have[1] != dimensions:
        change = drop + _new_columns(connection, schema, vector)
        what = f"make room for embeddings of {dimensions} dimensions; those of {have[1]} are dropped, to be made anew"
        yield what, change.as_bytes(None)


def _forgetful(table: sql.Identifier) -> sql.Composable:
    """What keeps the planner from keeping embeddings, which would outlive a conversation that is erased."""
    return sql.SQL("ALTER TABLE {} ALTER COLUMN embedding SET STATISTICS 0;").format(table)


def _new_columns(connection: Connection, schema: str, vector: sql.Composable) -> sql.Composable:
    """Two columns new and empty, whatever is in the table: emptied, each row and all its indexes would be written."""
    table = sql.Identifier(schema, "document")
    return sql.SQL(
        "ALTER TABLE {} DROP COLUMN IF EXISTS embedding, DROP COLUMN model, ADD COLUMN model text,"
        " ADD COLUMN embedding {};\n{}\n{}"
    ).format(table, vector, _forgetful(table), sql.SQL("\n").join(_indexes_of_model(connection, schema)))


def _indexes_of_model(connection: Connection, schema: str) -> list[sql.Composable]:
    """What makes the indexes anew that go with the column of models, those over vectors aside."""
    rows = connection.execute(
        "SELECT pg_catalog.pg_get_indexdef(i.indexrelid) FROM pg_catalog.pg_index AS i"
        " JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'model' AND NOT a.attisdropped"
        " WHERE n.nspname = %s AND c.relname = 'document' AND a.attnum = ANY (i.indkey)",
        (schema,),
    ).fetchall()
    return [sql.SQL("{};").format(sql.SQL(definition)) for (definition,) in rows]
