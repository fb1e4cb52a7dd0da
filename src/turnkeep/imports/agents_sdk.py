"""Sessions that the OpenAI Agents SDK keeps in its SQLAlchemy tables: each item is a message, as it is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from turnkeep import jsontext
from turnkeep.errors import TransferError, UnreadableError
from turnkeep.imports.turns import Foreign
from turnkeep.store import ForeignTables


def openai_agents(tables: ForeignTables) -> Iterator[Foreign]:
    """The sessions of a database."""
    for session, created_at, updated_at in tables.rows("sessions", {"after": ""}, keys=("after",)):
        messages = []
        for number, text in tables.rows("items", {"session": session, "after": -1}, keys=("after",)):
            messages.append(_item(text, f"session {session!r}, item {number}"))
        yield Foreign(
            f"openai-agents:{session}",
            messages,
            created_at=_utc(created_at),
            turns_at=_utc(updated_at),
        )


def _item(text: str, where: str) -> Any:
    try:
        value = jsontext.decode(text, where)
    except UnreadableError as error:
        raise TransferError(f"{where}: {error}") from error
    if not isinstance(value, dict):
        raise TransferError(f"{where}: not a JSON object")
    return value


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
