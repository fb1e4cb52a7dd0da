"""The only code that speaks SQL."""

import importlib
from typing import TYPE_CHECKING, Any

from turnkeep.store._async_branch import AsyncBranch
from turnkeep.store._async_store import AsyncStore, open
from turnkeep.store._async_transaction import AsyncTransaction
from turnkeep.store._writes import UNCHANGED, Message

if TYPE_CHECKING:
    from turnkeep.store._foreign import ForeignTables
    from turnkeep.store._migrate import Migration, SchemaStatus, Step, migrate, plan, script, status
    from turnkeep.store._sync_branch import Branch
    from turnkeep.store._sync_store import Store, open_sync
    from turnkeep.store._sync_transaction import Transaction

__all__ = [
    "UNCHANGED",
    "AsyncBranch",
    "AsyncStore",
    "AsyncTransaction",
    "Branch",
    "ForeignTables",
    "Message",
    "Migration",
    "SchemaStatus",
    "Step",
    "Store",
    "Transaction",
    "migrate",
    "open",
    "open_sync",
    "plan",
    "script",
    "status",
]

_LATER = {
    "Branch": "_sync_branch",
    "ForeignTables": "_foreign",
    "Migration": "_migrate",
    "SchemaStatus": "_migrate",
    "Step": "_migrate",
    "Store": "_sync_store",
    "Transaction": "_sync_transaction",
    "migrate": "_migrate",
    "open_sync": "_sync_store",
    "plan": "_migrate",
    "script": "_migrate",
    "status": "_migrate",
}


def __getattr__(name: str) -> Any:
    """Load what makes schemas, and the store for threads, when it is first asked for: many processes never need it."""
    if name in _LATER:
        return getattr(importlib.import_module(f"turnkeep.store.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
