"""The statements of a search, with what fits a schema, its pgvector and a model put in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from turnkeep.store._statements import in_parameterised, read, render, texts
from turnkeep.store._vectors import MOST_INDEXED

Fetch = Callable[[str, dict[str, Any]], Awaitable[list[tuple[Any, ...]]]]

SMALL = 10_000
"""So many vectors are all looked at, rather than find some of them by an index."""

INDEX_PREFIX = "document_near_"

_FILE = "sql/search.sql"
_MOST_INDEXED_HALF = 4_000  # of one in half precision
_ITERATING = (0, 8)  # the release of pgvector from which on an index scan goes on until enough rows pass a condition


@dataclass(frozen=True)
class Ground:
    """What vectors are compared with: the column's dimensions, where pgvector is and what it can, and the index.

    `indexed` says that the index of the model asked for is there and whole, `begun` that one is there at all.
    """

    dimensions: int
    vector_schema: str
    iterates: bool
    indexed: bool = False
    begun: bool = False

    @classmethod
    def of_row(cls, row: tuple[Any, ...]) -> Ground:
        """What the statement `ground` has found."""
        dimensions, schema, version, valid = row
        release = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        return cls(dimensions, schema, release >= _ITERATING, bool(valid), valid is not None)

    @property
    def indexable(self) -> bool:
        """Whether vectors of so many dimensions can be indexed at all."""
        return self.dimensions <= _MOST_INDEXED_HALF


def index_name(model: str) -> str:
    """The name of the index over a model's vectors."""
    readable = re.sub(r"[^a-z0-9]+", "_", model.lower()).strip("_")[:30]
    return f"{INDEX_PREFIX}{readable}_{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def statement(name: str, schema: str, **pieces: sql.Composable) -> bytes:
    """A statement with parameters, its conditions and what fits a model put in."""
    doubled = in_parameterised(schema)
    which = sql.SQL(render(read("sql/scope.sql"), doubled).decode())
    when = sql.SQL("(%(since)s::pg_catalog.timestamptz IS NULL OR d.created_at >= %(since)s)")
    usual = {
        "document": sql.Literal(sql.Identifier(doubled, "document").as_string(None)),
        "joined": sql.SQL(
            render("\nJOIN {schema}.conversation AS v ON v.conversation_id = d.conversation_id", doubled).decode()
        ),
        "which": which,
        "scope": sql.SQL("{} AND {}").format(which, when),
    }
    return render(texts(_FILE)[name], doubled, **{**usual, **pieces})


def fitting(model: str, ground: Ground, *, indexed: bool = False) -> dict[str, sql.Composable]:
    """What fits a model's vectors, for statements with parameters: exactly, or as its index has them."""
    column = sql.Identifier("d", "embedding")
    embedding, kind = as_indexed(column, ground) if indexed else (column, _kind(ground, "vector"))
    vector_schema = sql.Identifier(in_parameterised(ground.vector_schema))
    return {
        "model": sql.Literal(in_parameterised(model)),
        "vector_schema": vector_schema,
        "distance": sql.SQL("{} OPERATOR({}.<=>) %(vector)s::pg_catalog.text::{}").format(
            embedding, vector_schema, kind
        ),
    }


def index_pieces(model: str, ground: Ground) -> dict[str, sql.Composable]:
    """What fits a model's vectors, for the statement without parameters that makes their index."""
    embedding, _ = as_indexed(sql.Identifier("embedding"), ground)
    return {
        "index": sql.Identifier(index_name(model)),
        "embedding": embedding,
        "operators": sql.Identifier(
            ground.vector_schema, "vector_cosine_ops" if ground.dimensions <= MOST_INDEXED else "halfvec_cosine_ops"
        ),
        "model": sql.Literal(model),
    }


def plain_statement(name: str, schema: str, **fitting: sql.Composable) -> bytes:
    """A statement that takes none: a percent sign in it is one."""
    return render(texts(_FILE)[name], schema, **fitting)


def as_indexed(column: sql.Composable, ground: Ground) -> tuple[sql.Composable, sql.Composable]:
    """A vector as an index has it, and its type: in half precision where its dimensions ask for that."""
    if ground.dimensions <= MOST_INDEXED:
        return column, _kind(ground, "vector")
    half = _kind(ground, "halfvec")
    return sql.SQL("({}::{})").format(column, half), half


async def read_ground(fetch: Fetch, model: str | None) -> Ground | None:
    """What there is to compare a model's vectors with; None without pgvector."""
    rows = await fetch("ground", {"index": None if model is None else index_name(model)})
    return Ground.of_row(rows[0]) if rows else None


def _kind(ground: Ground, name: str) -> sql.Composable:
    schema = sql.Identifier(in_parameterised(ground.vector_schema))
    return sql.SQL("{}.{}({})").format(schema, sql.Identifier(name), sql.Literal(ground.dimensions))


def quoted(lexeme: str) -> str:
    """A lexeme as a tsquery's text."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"
