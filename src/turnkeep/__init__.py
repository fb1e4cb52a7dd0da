"""Agent conversations that survive `kill -9`, in the Postgres you already run."""

import importlib
from typing import TYPE_CHECKING, Any

from turnkeep._version import VERSION
from turnkeep.errors import (
    ConfigurationError,
    ConflictError,
    ConversationArchivedError,
    ConversationEndedError,
    CorruptionError,
    DatabaseError,
    EmbeddedError,
    InvalidInputError,
    KeyReusedError,
    LeaseError,
    LeaseHeldError,
    LeaseLostError,
    NotFoundError,
    PendingCallsError,
    PermissionDeniedError,
    PoolExhaustedError,
    RedactionError,
    ReplyTimeoutError,
    SchemaError,
    TransferError,
    TurnFailedError,
    TurnkeepError,
    TurnNotOpenError,
    TurnOpenError,
    UnavailableError,
    UncertainOutcomeError,
    UnknownToolCallError,
    UnreadableError,
    UnstorableError,
    UsageError,
)
from turnkeep.jsontext import RawJSON
from turnkeep.model import (
    ArchivedConversation,
    Archiving,
    BranchSummary,
    Checkpoint,
    CheckpointSummary,
    Conversation,
    ConversationSummary,
    Erased,
    Expired,
    Lease,
    PendingCall,
    Posted,
    Pruned,
    Reply,
    Saved,
    Transferred,
    conversation_uuid,
)
from turnkeep.store import UNCHANGED, AsyncBranch, AsyncStore, AsyncTransaction, open

if TYPE_CHECKING:
    from turnkeep.runner import Agent, ToolContext, Worker, tool
    from turnkeep.store import Branch, Store, Transaction, migrate, open_sync

__version__ = VERSION

__all__ = [
    "UNCHANGED",
    "Agent",
    "ArchivedConversation",
    "Archiving",
    "AsyncBranch",
    "AsyncStore",
    "AsyncTransaction",
    "Branch",
    "BranchSummary",
    "Checkpoint",
    "CheckpointSummary",
    "ConfigurationError",
    "ConflictError",
    "Conversation",
    "ConversationArchivedError",
    "ConversationEndedError",
    "ConversationSummary",
    "CorruptionError",
    "DatabaseError",
    "EmbeddedError",
    "Erased",
    "Expired",
    "InvalidInputError",
    "KeyReusedError",
    "Lease",
    "LeaseError",
    "LeaseHeldError",
    "LeaseLostError",
    "NotFoundError",
    "PendingCall",
    "PendingCallsError",
    "PermissionDeniedError",
    "PoolExhaustedError",
    "Posted",
    "Pruned",
    "RawJSON",
    "RedactionError",
    "Reply",
    "ReplyTimeoutError",
    "Saved",
    "SchemaError",
    "Store",
    "ToolContext",
    "Transaction",
    "TransferError",
    "Transferred",
    "TurnFailedError",
    "TurnNotOpenError",
    "TurnOpenError",
    "TurnkeepError",
    "UnavailableError",
    "UncertainOutcomeError",
    "UnknownToolCallError",
    "UnreadableError",
    "UnstorableError",
    "UsageError",
    "Worker",
    "conversation_uuid",
    "migrate",
    "open",
    "open_sync",
    "tool",
]


_LATER = {
    **dict.fromkeys(("Agent", "ToolContext", "Worker", "tool"), "runner"),
    **dict.fromkeys(("Branch", "Store", "Transaction", "migrate", "open_sync"), "store"),
}


def __getattr__(name: str) -> Any:
    """Load what many processes never need when it is first asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(f"turnkeep.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
