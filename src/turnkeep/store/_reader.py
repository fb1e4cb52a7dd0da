"""Statements beside the store's own, run on its connections: what the command line asks for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from turnkeep.store._statements import statements

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore
    from turnkeep.store._async_waiting import Connection


class Reader:
    """Runs the statements of one file of SQL on an open store, with extensions in a schema of their own."""

    def __init__(self, store: AsyncStore, file: str, extension: str = "public") -> None:
        self._database = store._database
        self.schema = self._database.schema
        self._statements = statements(self.schema, file, extension)

    async def fetch(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run the statement of that name and give its rows, with the store's deadline and repetition."""
        statement = self._statements[name]

        async def run(connection: Connection) -> list[tuple[Any, ...]]:
            return await self._database.rows(connection, statement, parameters or {})

        return await self._database.attempt(run)
