"""What erasing a conversation would remove, looked at before."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnkeep.errors import NotFoundError
from turnkeep.model import Erased
from turnkeep.store._reader import Reader

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore


@dataclass(frozen=True)
class Erasure:
    """A conversation, the ids of its children at any depth, and what they come to together."""

    conversation_id: uuid.UUID
    external_id: str
    children: tuple[str, ...]
    counts: Erased


async def look(store: AsyncStore, conversation: uuid.UUID) -> Erasure:
    """Count what erasing would remove. Raises `NotFoundError`."""
    rows = await Reader(store, "sql/erase.sql").fetch("erasure", {"conversation": conversation})
    if not rows:
        raise NotFoundError(f"no conversation {conversation}")
    names, *counts = zip(*rows, strict=True)
    return Erasure(conversation, names[0], names[1:], Erased(len(rows), *map(sum, counts)))
