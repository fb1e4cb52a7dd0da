"""The only code that speaks SQL."""

from turnkeep.store._async_branch import AsyncBranch
from turnkeep.store._async_store import AsyncStore, open
from turnkeep.store._migrate import Migration, SchemaStatus, migrate, status
from turnkeep.store._writes import UNCHANGED, Message

__all__ = [
    "UNCHANGED",
    "AsyncBranch",
    "AsyncStore",
    "Message",
    "Migration",
    "SchemaStatus",
    "migrate",
    "open",
    "status",
]
