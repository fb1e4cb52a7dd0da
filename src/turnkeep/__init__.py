"""Agent conversations that survive `kill -9`, in the Postgres you already run."""

from typing import TYPE_CHECKING, Any

from turnkeep._version import VERSION
from turnkeep.errors import (
    ConfigurationError,
    ConflictError,
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
    SchemaError,
    TurnkeepError,
    TurnNotOpenError,
    TurnOpenError,
    UnavailableError,
    UnknownToolCallError,
    UnreadableError,
    UnstorableError,
    UsageError,
)
from turnkeep.jsontext import RawJSON
from turnkeep.model import (
    Checkpoint,
    CheckpointSummary,
    ConversationSummary,
    Lease,
    PendingCall,
    Saved,
    conversation_uuid,
)
from turnkeep.store import UNCHANGED, AsyncBranch, AsyncStore, open

if TYPE_CHECKING:
    from turnkeep.store import migrate

__version__ = VERSION

__all__ = [
    "UNCHANGED",
    "AsyncBranch",
    "AsyncStore",
    "Checkpoint",
    "CheckpointSummary",
    "ConfigurationError",
    "ConflictError",
    "ConversationSummary",
    "CorruptionError",
    "DatabaseError",
    "EmbeddedError",
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
    "RawJSON",
    "Saved",
    "SchemaError",
    "TurnNotOpenError",
    "TurnOpenError",
    "TurnkeepError",
    "UnavailableError",
    "UnknownToolCallError",
    "UnreadableError",
    "UnstorableError",
    "UsageError",
    "conversation_uuid",
    "migrate",
    "open",
]


def __getattr__(name: str) -> Any:
    if name == "migrate":
        from turnkeep.store import migrate

        return migrate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
