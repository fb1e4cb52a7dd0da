"""Tables of other programs, read in one snapshot. Nothing of theirs is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import psycopg

from turnkeep.errors import ConfigurationError, DatabaseError, NotFoundError
from turnkeep.store._failures import is_missing_schema, parsed, translated
from turnkeep.store._statements import statements


class ForeignTables:
    """Statements of one file below `foreign/`, on a database and a schema of another program. A context manager."""

    def __init__(self, conninfo: str, file: str, schema: str = "public") -> None:
        parsed(conninfo)
        self._statements = statements(schema, f"foreign/{file}.sql")
        self._schema = schema
        try:
            self._connection = psycopg.connect(conninfo, fallback_application_name="turnkeep", prepare_threshold=None)
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._connection.read_only = True
        except psycopg.Error as error:
            raise translated(error, schema) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def rows(self, name: str, parameters: Mapping[str, Any], keys: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement, page by page: the first columns of a page's last row are the next one's `keys`."""
        asked = dict(parameters)
        while page := self._fetch(name, asked):
            yield from page
            if not keys:
                return
            asked |= dict(zip(keys, page[-1], strict=False))

    def _fetch(self, name: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(self._statements[name], parameters).fetchall()
        except psycopg.Error as error:
            if is_missing_schema(error):
                raise NotFoundError(
                    f"the tables to import are not in schema {self._schema!r} of that database "
                    f"({error.diag.message_primary}): --source-schema names another"
                ) from error
            failed = translated(error, self._schema)
            raise failed if not isinstance(failed, ConfigurationError) else DatabaseError(str(failed)) from error
