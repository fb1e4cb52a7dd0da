"""Which database is meant: argument, then TURNKEEP_DATABASE_URL, DATABASE_URL, PG*."""

from __future__ import annotations

import os
from collections.abc import Mapping

from turnkeep.errors import ConfigurationError

EMBEDDED = "embedded"
DEFAULT_SCHEMA = "turnkeep"

_LIBPQ_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE", "PGPORT", "PGUSER")


def database(dsn: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Give the conninfo of the database that is meant, or the word `embedded`.

    An empty conninfo leaves everything to the PG* variables, where one of them is set. Raises
    `ConfigurationError` if nothing names a database: none is ever guessed.
    """
    for named in (dsn, environ.get("TURNKEEP_DATABASE_URL"), environ.get("DATABASE_URL")):
        if named:
            return named
    if any(environ.get(variable) for variable in _LIBPQ_VARIABLES):
        return ""
    raise ConfigurationError(
        "no database is named: pass a DSN, or set TURNKEEP_DATABASE_URL, DATABASE_URL or PGHOST and its like. "
        'The word "embedded" in place of a DSN asks for a private Postgres'
    )


def check_schema_name(schema: str) -> str:
    """Return a schema's name if Postgres takes it as it is."""
    if not schema or "\0" in schema or "$$" in schema or len(schema.encode()) > 63 or schema.startswith("pg_"):
        raise ConfigurationError(
            f"schema {schema!r}: a name of 1 to 63 bytes, without $$ and not beginning with pg_, is needed"
        )
    return schema
