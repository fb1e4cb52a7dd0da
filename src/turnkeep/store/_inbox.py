"""What has been posted to a branch and not been taken up yet."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from turnkeep.store._reader import Reader

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore

MOST = 100


@dataclass(frozen=True)
class Waiting:
    """A request that waits for a turn. `text` is the exact JSON text of its messages."""

    key: str
    received_at: datetime
    text: str = field(repr=False)


async def waiting(store: AsyncStore, conversation: uuid.UUID, branch: int, *, archived: bool = False) -> list[Waiting]:
    """The requests that wait on a branch, the oldest first, at most `MOST` of them. `archived` says where to look."""
    if archived:
        found = await store._archived(conversation)
        return [] if found is None else [Waiting(*row) for row in found.waiting(branch, MOST)]
    rows = await Reader(store, "sql/show.sql").fetch(
        "waiting", {"conversation": conversation, "branch": branch, "limit": MOST}
    )
    return [Waiting(*row) for row in rows]
