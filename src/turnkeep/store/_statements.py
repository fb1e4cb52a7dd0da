"""The SQL files: found by name, rendered for a schema."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from psycopg import sql

_NAME = re.compile(r"^-- name: (\w+)\n(?:--.*\n)+", re.MULTILINE)


def read(path: str) -> str:
    """The text of a file below this package, such as `schema/views.sql`."""
    return resources.files(__package__).joinpath(path).read_text(encoding="utf-8")


def render(text: str, schema: str, **identifiers: sql.Composable) -> bytes:
    """Put the schema's quoted name, and other SQL, into `{placeholders}` of a text of ours."""
    # The text is a file of this package, never a caller's: what a LiteralString is there to ensure.
    template = sql.SQL(text)
    return template.format(schema=sql.Identifier(schema), **identifiers).as_bytes(None)


def in_parameterised(schema: str) -> str:
    """A schema's name for a statement with parameters, where a percent sign is written twice."""
    return schema.replace("%", "%%")


@cache
def statements(schema: str, path: str = "sql/statements.sql", extension: str = "public") -> dict[str, bytes]:
    """Every statement of a file by its name, for one schema, and for extensions that are in another."""
    others = {"extension": sql.Identifier(in_parameterised(extension))}
    return {name: render(text, in_parameterised(schema), **others) for name, text in texts(path).items()}


@cache
def texts(path: str) -> dict[str, str]:
    """Every statement of a file by its name, as it is written there."""
    text = read(path)
    marks = list(_NAME.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return {mark.group(1): text[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=bool(marks))}
