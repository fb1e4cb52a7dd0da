"""The only code that speaks SQL."""

from typing import TYPE_CHECKING, Any

from turnkeep.store._async_branch import AsyncBranch
from turnkeep.store._async_store import AsyncStore, open
from turnkeep.store._async_transaction import AsyncTransaction
from turnkeep.store._writes import UNCHANGED, Message

if TYPE_CHECKING:
    from turnkeep.store._migrate import Migration, SchemaStatus, migrate, status

__all__ = [
    "UNCHANGED",
    "AsyncBranch",
    "AsyncStore",
    "AsyncTransaction",
    "Message",
    "Migration",
    "SchemaStatus",
    "migrate",
    "open",
    "status",
]


def __getattr__(name: str) -> Any:
    """Load what makes schemas when it is first asked for: a process that only talks never does."""
    if name in ("Migration", "SchemaStatus", "migrate", "status"):
        from turnkeep.store import _migrate

        return getattr(_migrate, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
