"""The records that the store gives back: frozen, and plain data all through.

A checkpoint holds JSON as the exact text that was stored (G3). Its values (`messages`, `state`, …) are
parsed when they are first asked for.
"""

from __future__ import annotations

import uuid
from dataclasses import astuple, dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from turnkeep import jsontext
from turnkeep.errors import InvalidInputError

MAIN_BRANCH = 0
FINAL_PHASE = "final"

# Text ids become UUIDs of version 5 in this namespace, over tenant, NUL and text.
ID_NAMESPACE = uuid.UUID("6f0f0c5e-6c0b-5d5b-9e0a-7a6b2f1c8d4e")

_MAX_ID_CHARACTERS = 1000

# Where dialects keep the id that a call and its result share, the most telling name first: an item of OpenAI's
# Responses has an `id` of its own beside the `call_id`.
_CALL_ID_KEYS = ("tool_call_id", "tool_use_id", "call_id", "id")


def conversation_uuid(conversation: str | uuid.UUID, *, tenant: str = "") -> uuid.UUID:
    """Give the UUID that a conversation's id stands for.

    A canonical lower-case UUID, as text or as an object, stands for itself. Any other text of 1 to 1,000
    characters becomes a UUID of version 5 in `ID_NAMESPACE`, over `tenant`, NUL and the text, so the same text
    names the same conversation in every process. A UUID in another spelling (upper case, braces, no dashes) is
    such a text. Raises `InvalidInputError` for anything else.
    """
    if isinstance(conversation, uuid.UUID):
        return conversation
    text = check_text(conversation, "conversation", _MAX_ID_CHARACTERS)
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        parsed = None
    if parsed is not None and str(parsed) == text:
        return parsed
    return uuid.uuid5(ID_NAMESPACE, f"{tenant}\0{text}")


def check_text(text: object, name: str, max_characters: int) -> str:
    """Return `text` if a Postgres text column can hold it and it is neither empty nor too long."""
    if not isinstance(text, str):
        raise InvalidInputError(f"{name}: expected text, got {type(text).__name__}")
    if not 1 <= len(text) <= max_characters:
        raise InvalidInputError(f"{name}: {len(text)} characters; 1 to {max_characters} are allowed")
    if "\0" in text or (not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)):
        raise InvalidInputError(f"{name}: text with NUL or a lone surrogate can't be an identifier: {text!r}")
    return text


@dataclass(frozen=True)
class PendingCall:
    """A tool call that has no result yet, known by where it was issued and never by the provider's id.

    `index` is its place in `tool_calls` of the checkpoint at (`turn_index`, `sub_step`) of `branch`, whose text is
    `tool_calls_text`. `attempts` is how often it was marked as started. `uncertain` is true on a branch forked after
    the call was issued: whether it ran is for the branch that issued it to know. `conversation_id` is the conversation
    that issued it: another one than the branch's own where that was copied.
    """

    turn_index: int
    sub_step: int
    index: int
    branch: int
    attempts: int
    uncertain: bool
    tool_calls_text: str = field(repr=False)
    conversation_id: uuid.UUID

    @property
    def place(self) -> tuple[int, int, int]:
        """(turn_index, sub_step, index): the call's identity on its branch."""
        return self.turn_index, self.sub_step, self.index

    @cached_property
    def call(self) -> Any:
        """The call as it was passed to `save`."""
        return jsontext.decode(self.tool_calls_text, "tool_calls")[self.index]

    @property
    def call_id(self) -> str | None:
        """The provider's id of the call, if it has one. Providers reuse ids: it identifies nothing by itself."""
        return call_id_of(self._readable)

    @cached_property
    def _readable(self) -> Any:
        """The call with its numbers as text, so that none is too large to be read: for its id and its name."""
        return jsontext.decode_names(self.tool_calls_text)[self.index]

    def __str__(self) -> str:
        call = self._readable if isinstance(self._readable, dict) else {}
        function = call.get("function")
        name = call.get("name") or (function.get("name") if isinstance(function, dict) else None) or "call"
        return f"{name} ({self.call_id or 'no id'}) of turn {self.turn_index}.{self.sub_step}"


def call_id_of(call_or_result: object) -> str | None:
    """The id that a tool call and its result share: in `tool_call_id`, `tool_use_id`, `call_id` or `id`."""
    if isinstance(call_or_result, dict):
        for key in _CALL_ID_KEYS:
            if isinstance(value := call_or_result.get(key), str):
                return value
    return None


@dataclass(frozen=True)
class Checkpoint:
    """An immutable snapshot of a conversation at (`branch`, `turn_index`, `sub_step`) (G2).

    `turn_index` is −1 and `phase` None before the first turn. `parent` is the (turn_index, sub_step, branch)
    it extends. `message_texts`, `state_text`, `tool_calls_text` and `tool_results_text` are the exact JSON
    texts; the properties of the same names without `_text` parse them and raise `UnreadableError` for
    what Python can't hold. `status`, the lease and the `failure` (an object with `type` and
    `message`, where the branch has failed or waits) are those of the branch at the time of reading.
    """

    conversation_id: uuid.UUID
    external_id: str
    agent_id: str | None
    branch: int
    branch_name: str | None
    turn_index: int
    sub_step: int
    phase: str | None
    parent: tuple[int, int, int] | None
    created_at: datetime | None
    write_id: uuid.UUID | None
    status: str
    lease_owner: str | None
    lease_until: datetime | None
    failure: dict[str, Any] | None
    pending: tuple[PendingCall, ...]
    message_texts: tuple[str, ...] = field(repr=False)
    state_text: str | None = field(repr=False)
    tool_calls_text: str | None = field(repr=False)
    tool_results_text: str | None = field(repr=False)

    @property
    def turn_open(self) -> bool:
        """Whether the turn goes on after this checkpoint."""
        return self.phase is not None and self.phase != FINAL_PHASE

    @cached_property
    def messages(self) -> list[Any]:
        """The messages in order."""
        return [jsontext.decode(text, f"messages[{i}]") for i, text in enumerate(self.message_texts)]

    @cached_property
    def state(self) -> Any:
        """The state, or None where none was ever saved."""
        return None if self.state_text is None else jsontext.decode(self.state_text, "state")

    @cached_property
    def tool_calls(self) -> list[Any]:
        """The tool calls saved with this checkpoint."""
        return [] if self.tool_calls_text is None else jsontext.decode(self.tool_calls_text, "tool_calls")

    @cached_property
    def tool_results(self) -> list[Any]:
        """The tool results saved with this checkpoint."""
        return [] if self.tool_results_text is None else jsontext.decode(self.tool_results_text, "tool_results")


@dataclass(frozen=True)
class CheckpointSummary:
    """A checkpoint without its content: what a history lists. The counts are numbers of elements."""

    branch: int
    turn_index: int
    sub_step: int
    phase: str
    agent_id: str | None
    created_at: datetime
    write_id: uuid.UUID
    messages: int
    tool_calls: int
    tool_results: int


@dataclass(frozen=True)
class ConversationSummary:
    """A conversation as a list shows it, by the head of its current branch."""

    conversation_id: uuid.UUID
    external_id: str
    agent_id: str | None
    created_at: datetime
    branch: int
    branch_name: str | None
    status: str
    turn_index: int
    sub_step: int
    turn_started_at: datetime
    updated_at: datetime
    lease_owner: str | None
    lease_until: datetime | None
    tenant: str | None
    title: str | None
    tags: tuple[str, ...]
    ended_at: datetime | None


@dataclass(frozen=True)
class Conversation:
    """What is said of a conversation, beside its content.

    `metadata` is a JSON object as `jsonb` holds it. `version` counts the updates of what is said of it.
    `parent` is the conversation it is part of, `ended_at` None while it goes on, `archived_at` None where it is not
    in the archive. `ttl` is how long it is kept after its newest write, None where its agent decides, or nobody.
    """

    conversation_id: uuid.UUID
    external_id: str
    agent_id: str | None
    tenant: str | None
    title: str | None
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    version: int
    parent: uuid.UUID | None
    current_branch: int
    created_at: datetime
    ended_at: datetime | None
    archived_at: datetime | None = None
    ttl: timedelta | None = None


@dataclass(frozen=True)
class BranchSummary:
    """A branch as a tree of them shows it: its head, and the (branch, turn_index, sub_step) it was forked at.

    `parent` is None for a branch that begins at the beginning.
    """

    conversation_id: uuid.UUID
    branch: int
    name: str | None
    status: str
    turn_index: int
    sub_step: int
    parent: tuple[int, int, int] | None
    current: bool
    turn_started_at: datetime
    updated_at: datetime
    lease_owner: str | None
    lease_until: datetime | None


@dataclass(frozen=True)
class Erased:
    """How many rows of each kind an erasure has removed; all 0 where there was nothing."""

    conversations: int
    branches: int
    checkpoints: int
    messages: int
    requests: int


@dataclass(frozen=True)
class ArchivedConversation:
    """A conversation in the archive, as a list shows it: it takes `bytes` there, and took `raw_bytes` before."""

    conversation_id: uuid.UUID
    external_id: str
    agent_id: str | None
    tenant: str | None
    title: str | None
    tags: tuple[str, ...]
    created_at: datetime
    ended_at: datetime | None
    archived_at: datetime
    bytes: int
    raw_bytes: int
    branches: int
    checkpoints: int
    messages: int
    requests: int


@dataclass(frozen=True)
class Archiving:
    """What was put into the archive, or back: bytes there, bytes before, and rows of each kind.

    `repeated` is true where that had been done before, `skipped` where it was used meanwhile: nothing happened then.
    """

    conversation_id: uuid.UUID
    bytes: int
    raw_bytes: int
    branches: int
    checkpoints: int
    messages: int
    requests: int
    repeated: bool = False
    skipped: bool = False


@dataclass(frozen=True)
class Transferred:
    """What an export or an import came to: conversations written, or made; `there` those that were there already.

    `missing_parents` is how many parents of those that an import has made are not there: they were erased, or come in
    with another file.
    """

    conversations: int
    there: int
    messages: int
    checkpoints: int
    bytes: int
    missing_parents: int = 0


@dataclass(frozen=True)
class Pruned:
    """What pruning has removed, or would remove: rows of each kind, and about how many `bytes` of JSON.

    `conversations` is how many were looked at. `held_back` counts checkpoints that stay until the documents of their
    turns have been filled (`turnkeep embed`), `busy` conversations that somebody kept locked, which were left alone.
    """

    conversations: int = 0
    checkpoints: int = 0
    messages: int = 0
    documents: int = 0
    bytes: int = 0
    held_back: int = 0
    busy: int = 0

    def __add__(self, other: Pruned) -> Pruned:
        """Both together."""
        return Pruned(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Expired:
    """What has been erased because its time was over, or would be. `busy` counts what somebody kept locked."""

    erased: Erased = Erased(0, 0, 0, 0, 0)
    busy: int = 0


@dataclass(frozen=True)
class Saved:
    """What a write came to: a checkpoint that is durable now (G1).

    `repeated` is true where the same write, or a turn begun under the same key, had been there before (G4);
    the place is then the one it has now. `final` is true where that turn has ended, `waiting` where a request
    then waits for the next one.
    """

    branch: int
    turn_index: int
    sub_step: int
    repeated: bool
    final: bool
    waiting: bool = False


@dataclass(frozen=True)
class Posted:
    """A request that is durable now (G1). `repeated` is true where its key had been posted before (G4)."""

    conversation_id: uuid.UUID
    branch: int
    key: str
    repeated: bool


@dataclass(frozen=True)
class Reply:
    """How the turn of a request ended: `checkpoint` is its last one."""

    key: str
    checkpoint: Checkpoint

    @property
    def message(self) -> Any:
        """The message the turn ended with."""
        return self.checkpoint.messages[-1]

    @property
    def content(self) -> Any:
        """What that message says, as its `content` has it."""
        return self.message.get("content")


@dataclass(frozen=True)
class Lease:
    """A time-limited right to write to a branch (G5). `token` is its fencing token."""

    owner: str
    token: int
    seconds: float
    until: datetime
