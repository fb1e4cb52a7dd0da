"""Every error Turnkeep raises on purpose.

Catch `TurnkeepError` for all of them::

    TurnkeepError
    ├── InvalidInputError          what you passed can't be stored or used; nothing happened
    │   ├── UnstorableError        a value has no exact JSON text: `path`, `reason` (G3)
    │   ├── RedactionError         the redaction hook failed for a value; nothing was stored
    │   ├── UnknownToolCallError   a tool result answers no pending call: `pending`
    │   └── PendingCallsError      a turn was to end with calls that have no result: `pending` (G7)
    ├── UnreadableError            stored text is exact, but Python can't hold its value: `path`, `reason`
    ├── NotFoundError              no such conversation, branch or checkpoint
    ├── ConflictError              another writer has extended the branch; nothing was written (G2)
    │   ├── KeyReusedError         an idempotency key came again with another body (G4)
    │   ├── TurnOpenError          a turn is open where a new one was to begin: `pending`
    │   ├── TurnNotOpenError       a save where no turn is open
    │   └── ConversationEndedError the conversation has been ended
    │       └── ConversationArchivedError it has been put into the archive
    ├── TurnFailedError            a turn has stopped, and waits to be resumed: `failure`
    ├── ReplyTimeoutError          a request has no reply yet
    ├── TransferError              an export can't be read any further, or written: `line`, `position`
    ├── UncertainOutcomeError      a transaction was ended by something else than its save
    ├── LeaseError
    │   ├── LeaseHeldError         somebody else's lease is live; nothing was written (G5)
    │   └── LeaseLostError         this lease has been lost or has expired; nothing was written (G5)
    ├── DatabaseError
    │   ├── UnavailableError       the database can't be reached, or did not answer in time
    │   ├── PoolExhaustedError     all connections of this store were busy until the deadline
    │   ├── SchemaError            the schema is missing, or of another release
    │   ├── PermissionDeniedError  the role lacks a right
    │   └── CorruptionError        stored rows contradict each other; nothing was guessed
    ├── EmbeddingError             a vector, or what makes them, is of no use
    │   ├── EmbeddingUnavailableError  waiting may mend it: `retry_after`, `status`
    │   ├── EmbeddingRefusedError      the texts will not be taken: `status`
    │   └── EmbeddingDimensionsError   a vector is longer than the column: `have`, `column`; also an InvalidInputError
    ├── EmbeddedError              the embedded Postgres can't be started, reached or stopped
    ├── ConfigurationError         no database is named, or a setting can't be right
    └── UsageError                 a store used after close, or from another event loop
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnkeep.model import PendingCall


class TurnkeepError(Exception):
    """Root of every error that Turnkeep raises on purpose."""


class InvalidInputError(TurnkeepError):
    """What was passed can't be stored or used. Raised before anything else happens."""


class _Located(TurnkeepError):
    """`path` leads to a value as a subscript chain, such as `messages[0]["content"]`; `reason` says what is wrong."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class UnstorableError(_Located, InvalidInputError):
    """The value at `path` has no exact JSON text, or goes beyond a stated limit, for the `reason` given (G3)."""


class RedactionError(InvalidInputError):
    """The redaction hook has failed for a value, which the message names without showing it; nothing was stored."""


class UnreadableError(_Located):
    """The stored text at `path` is exact, but Python can't hold its value: read the text instead."""


class _NamesPendingCalls(TurnkeepError):
    def __init__(self, message: str, pending: Sequence[PendingCall] = ()) -> None:
        super().__init__(message, tuple(pending))
        self.pending = tuple(pending)

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownToolCallError(_NamesPendingCalls, InvalidInputError):
    """A tool result answers no pending call. `pending` lists the calls that wait for one."""


class PendingCallsError(_NamesPendingCalls, InvalidInputError):
    """A turn was to end while tool calls have no result (G7). `pending` lists them."""


class NotFoundError(TurnkeepError):
    """There is no such conversation, branch or checkpoint."""


class ConflictError(TurnkeepError):
    """Another writer has extended the branch; nothing of this write is kept (G2)."""


class KeyReusedError(ConflictError):
    """An idempotency key came again with another body (G4)."""


class TurnOpenError(_NamesPendingCalls, ConflictError):
    """A turn is open where a new one was to begin. `pending` lists its calls without result."""


class TurnNotOpenError(ConflictError):
    """A save where no turn is open: begin one first."""


class ConversationEndedError(ConflictError):
    """The conversation has been ended; nothing was written."""


class ConversationArchivedError(ConversationEndedError):
    """The conversation is archived, and can be read; nothing was written: `AsyncStore.unarchive` it first."""


class TurnFailedError(TurnkeepError):
    """A turn has stopped for the reason in `failure`, a JSON object with `type` and `message`.

    Nothing of it is lost: `AsyncStore.resume` lets it go on.
    """

    def __init__(self, message: str, failure: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, failure)
        self.failure = failure or {}

    def __str__(self) -> str:
        return str(self.args[0])


class ReplyTimeoutError(TurnkeepError):
    """A request had no reply when the time was over. It is still there: wait again."""


class TransferError(TurnkeepError):
    """An export can't be read any further, or can't be written.

    `line` and `position` (in bytes, of what is compressed after that is undone) say where it can't be read, if that is
    why. Conversations before that place have been imported, the one that stands there has not.
    """

    def __init__(self, message: str, line: int | None = None, position: int | None = None) -> None:
        super().__init__(message, line, position)
        self.line = line
        self.position = position

    def __str__(self) -> str:
        return str(self.args[0])


class UncertainOutcomeError(TurnkeepError):
    """A transaction was ended by something else than its save: whether its effects stand is not known (G6)."""


class LeaseError(TurnkeepError):
    """A lease stands in the way (G5)."""


class LeaseHeldError(LeaseError):
    """Somebody else's lease on the branch is live; nothing was written (G5)."""


class LeaseLostError(LeaseError):
    """This lease has expired or has been given to somebody else; nothing was written (G5)."""


class DatabaseError(TurnkeepError):
    """The database could not do what was asked."""


class UnavailableError(DatabaseError):
    """The database can't be reached, or did not answer before the deadline."""


class PoolExhaustedError(DatabaseError):
    """All connections of this store were busy until the deadline."""


class SchemaError(DatabaseError):
    """The schema is missing, or of another release: run `turnkeep migrate`."""


class PermissionDeniedError(DatabaseError):
    """The database role lacks a right that the message names."""


class CorruptionError(DatabaseError):
    """Stored rows contradict each other. Nothing was guessed and nothing was written.

    `left_out` are the ids of damaged conversations that an export has gone on without: the others are written, to the
    last line of the file.
    """

    def __init__(self, *arguments: object, left_out: Sequence[uuid.UUID] = ()) -> None:
        super().__init__(*arguments)
        self.left_out = tuple(left_out)


class EmbeddingError(TurnkeepError):
    """A vector, or what makes them, is of no use."""


class EmbeddingUnavailableError(EmbeddingError):
    """No embeddings can be had at the moment. `retry_after` is in seconds, `status` HTTP's, each where there is one."""

    def __init__(self, message: str, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status


class EmbeddingRefusedError(EmbeddingError):
    """What makes embeddings will not take these texts, however often it is asked."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EmbeddingDimensionsError(EmbeddingError, InvalidInputError):
    """A vector has `have` dimensions, more than the `column`."""

    def __init__(self, message: str, have: int = 0, column: int = 0) -> None:
        super().__init__(message, have, column)
        self.have = have
        self.column = column

    def __str__(self) -> str:
        return str(self.args[0])


class EmbeddedError(TurnkeepError):
    """The embedded Postgres can't be started, reached or stopped."""


class ConfigurationError(TurnkeepError):
    """No database is named, or a setting can't be right."""


class UsageError(TurnkeepError):
    """A store was used after it was closed, or from another event loop than its own."""
