"""Agent conversations that survive `kill -9`, in the Postgres you already run."""

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
from turnkeep.store import UNCHANGED, AsyncBranch, AsyncStore, migrate, open

__version__ = "0.1.0"
