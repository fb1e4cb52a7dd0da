"""Ids of conversations for the completion of a command line, on a connection of its own."""

from __future__ import annotations

from typing import Any

import psycopg

from turnkeep.settings import check_schema_name
from turnkeep.store._statements import statements

_MOST = 50


def ids_beginning(conninfo: str, schema: str, beginning: str) -> list[tuple[str, str, str]]:
    """The UUID, the external id, and the title or agent of conversations whose id begins so, the newest first."""
    check_schema_name(schema)
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, client_encoding="UTF8") as connection:

        def fetch(name: str, parameters: dict[str, Any]) -> list[Any]:
            return connection.execute(statements(schema, "sql/complete.sql")[name], parameters).fetchall()

        return fetch("beginning", {"beginning": beginning, "limit": _MOST})
