"""A clock for test databases: leases expire when a test says so."""

from __future__ import annotations

from datetime import timedelta

import psycopg
from psycopg import sql


class FakeClock:
    """The clock of one schema of a test database, which can be put forward.

    Everything that asks the time in SQL (leases, retries, what is oldest) goes by it. It replaces a function of the
    schema, so it is for databases that are thrown away; `turnkeep migrate` does not put the real one back.
    """

    def __init__(self, database: str, schema: str = "turnkeep") -> None:
        self._database = database
        self._schema = schema
        self._offset = timedelta()

    def advance(self, seconds: float) -> None:
        """Put the clock forward by `seconds` from where it is; it goes on from there."""
        self._offset += timedelta(seconds=seconds)
        with psycopg.connect(self._database, autocommit=True) as connection:
            connection.execute(
                sql.SQL(
                    "CREATE OR REPLACE FUNCTION {}() RETURNS timestamptz LANGUAGE sql VOLATILE"
                    " AS $$ SELECT pg_catalog.clock_timestamp() + interval {} $$"
                ).format(sql.Identifier(self._schema, "clock"), sql.Literal(f"{self._offset.total_seconds()} seconds"))
            )
