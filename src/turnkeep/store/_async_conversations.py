"""Conversations: made, restored, described, listed, ended and erased."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from turnkeep.errors import ConflictError, InvalidInputError, LeaseHeldError, NotFoundError
from turnkeep.model import (
    MAIN_BRANCH,
    Checkpoint,
    Conversation,
    ConversationSummary,
    Erased,
)
from turnkeep.store import _arguments, _details, _redacting, _rows
from turnkeep.store._async_branch import AsyncBranch
from turnkeep.store._async_head import Wanted, read_checkpoints
from turnkeep.store._async_opened import AsyncOpened, BranchId, Id, no_conversation
from turnkeep.store._writes import UNCHANGED

_WINDOW = 1000


class AsyncConversations(AsyncOpened):
    """The part of a store that knows whole conversations."""

    async def conversation(
        self,
        conversation: Id,
        *,
        agent_id: str | None = None,
        branch: BranchId | None = None,
        parent: Id | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        ttl: timedelta | None = None,
    ) -> AsyncBranch:
        """Get or create a conversation, restored, as a handle to write with.

        `conversation` is a UUID, or a text of 1 to 1,000 characters that always names the same conversation; see
        `conversation_uuid` for how.
        `agent_id` (1 to 255 characters) names who writes through this handle, and the conversation's agent where
        it is new. `branch` is a branch's number or name, by default the current one.

        Where the conversation is new it also takes the `parent` that it is part of, such as that of an agent which
        uses another as a tool, and the `title`, `tags`, `metadata` and `ttl` that `update` changes. An existing one
        keeps its own.
        """
        if agent_id is not None:
            _details.check_name(agent_id, "agent_id")
        redact = self._database.redact
        title = _redacting.plain(redact, title, "title")
        tags = _redacting.plain(redact, tags, "tags")
        metadata = _redacting.plain(redact, metadata, "metadata")
        conversation_id = self._uuid(conversation)
        details = {
            "parent": None if parent is None else self._uuid(parent),
            "title": _details.check_title(title),
            "tags": _details.check_tags(tags),
            "metadata": _details.metadata_text({} if metadata is None else metadata),
            "ttl": _details.check_ttl(ttl),
        }
        if details["parent"] == conversation_id:
            raise InvalidInputError(f"parent: conversation {str(conversation)!r} can't be its own")
        wanted: Wanted = (conversation_id, await self._number(conversation, branch), None, None)
        found = await read_checkpoints(self._database, [wanted])
        if 1 not in found and branch in (None, MAIN_BRANCH):
            ((outcome,),) = await self._database.fetch(
                "create",
                {
                    "conversation": conversation_id,
                    "external_id": str(conversation),
                    "agent": agent_id,
                    "tenant": self._tenant,
                    **details,
                },
            )
            if outcome == "no_parent":
                raise NotFoundError(f"parent: no conversation {str(parent)!r}; nothing was made")
            found = await read_checkpoints(self._database, [wanted])
        if 1 not in found:
            raise no_conversation(conversation, branch)
        return AsyncBranch(self._database, found[1], agent_id)

    async def restore(
        self, conversation: Id, *, branch: BranchId | None = None, at: tuple[int, int] | None = None
    ) -> Checkpoint:
        """Give a conversation's newest checkpoint whole, or the one at `at` = (turn_index, sub_step).

        One round trip. Raises `NotFoundError`; `CorruptionError` rather than give back less than was saved.
        """
        turn, sub_step = _arguments.place(at, "at")
        number = await self._number(conversation, branch)
        found = await read_checkpoints(self._database, [(self._uuid(conversation), number, turn, sub_step)])
        if 1 not in found and (archived := await self._archived(conversation)) is not None:
            checkpoint = archived.checkpoint(number, turn, sub_step)
            found = {} if checkpoint is None else {1: checkpoint}
        if 1 not in found:
            parts = [] if branch is None else [f"a branch {branch}"]
            parts += [] if at is None else [f"a checkpoint at {turn}.{sub_step}"]
            which = f" with {' and '.join(parts)}" if parts else ""
            why = await self._why_missing(conversation, number, turn, sub_step)
            raise NotFoundError(f"no conversation {str(conversation)!r}{which}{why}")
        return found[1]

    async def _why_missing(self, conversation: Id, branch: int | None, turn: int | None, sub_step: int | None) -> str:
        """What can be said of a place without a checkpoint: what has been pruned leaves no trace of its own."""
        if turn is None:
            return ""
        parameters = {"conversation": self._uuid(conversation), "branch": branch, "turn": turn, "sub_step": sub_step}
        for passed, was, can_be in await self._database.fetch("pruned", parameters):
            if passed and can_be:
                return ": it has been pruned" if was else ": it never was, or has been pruned"
        return ""

    async def describe(self, conversation: Id) -> Conversation:
        """Give what is said of a conversation beside its content. Raises `NotFoundError`."""
        rows = await self._database.fetch("describe", {"conversation": self._uuid(conversation)})
        if not rows:
            raise no_conversation(conversation)
        return _rows.conversation(rows[0])

    async def update(
        self,
        conversation: Id,
        *,
        title: str | object | None = UNCHANGED,
        tags: Sequence[str] | object = UNCHANGED,
        metadata: Mapping[str, Any] | object = UNCHANGED,
        ttl: timedelta | object | None = UNCHANGED,
        version: int | None = None,
    ) -> Conversation:
        """Change what is said of a conversation, and give it as it is then.

        `title` has at most 1,000 characters (None: no title). `tags` are up to 100 texts, and replace those there were.
        `metadata` is a JSON object of at most 64 KiB that is merged into the one there is: each key takes
        the place of the one of that name, and null removes it, so that two writers of different keys don't undo each
        other; all of them may take 128 KiB. With the `version` that was seen last, nothing is changed if somebody else
        was faster (`ConflictError`). `ttl` is how long it is kept after its newest write, None for as long as its
        agent's are: see `expire`. Needs no lease.
        """
        redact = self._database.redact
        changes = _details.changes(
            _redacting.plain(redact, title, "title"),
            _redacting.plain(redact, tags, "tags"),
            _redacting.plain(redact, metadata, "metadata"),
            ttl,
        )
        if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
            raise InvalidInputError(f"version: expected a whole number, got {version!r}")
        ((outcome, now),) = await self._database.fetch(
            "update", {"conversation": self._uuid(conversation), "version": version, **changes}
        )
        if outcome == "too_large":
            raise InvalidInputError(
                f"metadata: those of conversation {str(conversation)!r} would become larger than 128 KiB; nothing was "
                "changed: remove keys by null, or keep content in messages"
            )
        if outcome == "conflict":
            raise ConflictError(
                f"conversation {str(conversation)!r} is at version {now}, not {version}; nothing was changed: "
                "describe it again"
            )
        return await self.describe(conversation)

    async def end(self, conversation: Id) -> Conversation:
        """End a conversation: its branches take no more writes and no more requests, and stay readable.

        What is open or waits then is kept, for `reopen`. Raises `LeaseHeldError` while somebody runs a branch of it.
        """
        ((outcome, branch, owner, until),) = await self._database.fetch(
            "end", {"conversation": self._uuid(conversation)}
        )
        if outcome == "lease_held":
            raise LeaseHeldError(
                f"conversation {str(conversation)!r}, branch {branch}: {owner} is running it, under a lease until "
                f"{until:%H:%M:%S.%f %Z}; nothing was ended"
            )
        if outcome == "not_found":
            raise no_conversation(conversation)
        return await self.describe(conversation)

    async def reopen(self, conversation: Id) -> Conversation:
        """Take the end of a conversation back: each branch goes on as it was, with the requests that wait on it."""
        await self._database.fetch("reopen", {"conversation": self._uuid(conversation)})
        return await self.describe(conversation)

    async def erase(self, conversation: Id) -> Erased:
        """Remove a conversation with its child conversations for good, and count what was removed (G12).

        A write under way is waited for and removed as well; later ones raise `NotFoundError`. Backups, replicas that
        lag and the server's own log of changes keep what they have. Where there is nothing, nothing is removed.
        """
        ((*counts,),) = await self._database.fetch(
            "erase", {"conversation": self._uuid(conversation)}, read_committed=True
        )
        return Erased(*counts)

    async def conversations(
        self,
        *,
        agent_id: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        parent: Id | None = None,
        status: str | Sequence[str] | None = None,
        limit: int = 50,
        before: ConversationSummary | None = None,
    ) -> list[ConversationSummary]:
        """List conversations, those with the newest turns first: at most `limit` (1 to 1,000) of them.

        Those that have all of `tags`, whose metadata contain `metadata`, that are children of `parent`, and whose
        current branch has a `status` of idle, open, ready, running, waiting, failed or ended. `before` is the last
        of one page and gives the next one.
        """
        if before is not None and not isinstance(before, ConversationSummary):
            raise InvalidInputError(f"before: expected a ConversationSummary, got {type(before).__name__}")
        filters = {
            "agent": agent_id,
            "tenant": self._tenant,
            "parent": None if parent is None else self._uuid(parent),
            "tags": None if tags is None else _details.check_tags(tags),
            "metadata": None if metadata is None else _details.metadata_text(metadata),
            "statuses": _details.check_statuses(status),
            "limit": _arguments.page(limit),
            "before_time": before and before.turn_started_at,
            "before_conversation": before and before.conversation_id,
        }
        # What many have is soon found among the newest; what few have would take all of them that way.
        rare = any(filters[name] is not None for name in ("agent", "tenant", "parent", "tags", "metadata"))
        rows = await self._database.fetch("list", {**filters, "window": _WINDOW if rare else None})
        if rare and len(rows) < limit:
            rows = await self._database.fetch("list_matching", filters)
        return _rows.summaries(rows)

    async def find(self, reference: str) -> uuid.UUID:
        """Give the conversation meant by a text id, a UUID, or the first 8 or more digits of one.

        Raises `NotFoundError`, or `InvalidInputError` where a prefix means several.
        """
        own = self._uuid(reference)
        ranges = [(own, own)]
        digits = reference.replace("-", "").lower()
        if 8 <= len(digits) <= 32 and all(digit in "0123456789abcdef" for digit in digits):
            ranges.append((uuid.UUID(digits.ljust(32, "0")), uuid.UUID(digits.ljust(32, "f"))))
        for low, high in ranges:
            rows = await self._database.fetch("find", {"low": low, "high": high, "tenant": self._tenant})
            if len(rows) > 1:
                raise InvalidInputError(
                    f"{reference!r} is the beginning of several conversations' ids: give more of it"
                )
            for (found,) in rows:
                return uuid.UUID(str(found))
        raise NotFoundError(f"no conversation {reference!r}")
