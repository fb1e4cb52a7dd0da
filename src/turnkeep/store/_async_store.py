"""The store whole, and how one is opened."""

from __future__ import annotations

import uuid

from turnkeep import settings
from turnkeep.model import Checkpoint, CheckpointSummary, ConversationSummary
from turnkeep.redaction import Redact
from turnkeep.store import _arguments, _rows
from turnkeep.store._arguments import MAX_PAGE
from turnkeep.store._async_archive import AsyncArchive
from turnkeep.store._async_forks import AsyncForks
from turnkeep.store._async_head import read_checkpoints
from turnkeep.store._async_opened import BranchId, Id
from turnkeep.store._async_prune import AsyncPruning
from turnkeep.store._async_queue import AsyncQueue
from turnkeep.store._async_retention import AsyncRetention
from turnkeep.store._async_transfer import AsyncTransfer

_RESTORED_AT_ONCE = 100


class AsyncStore(AsyncForks, AsyncQueue, AsyncArchive, AsyncTransfer, AsyncPruning, AsyncRetention):
    """Conversations in one schema of one database. Made by `turnkeep.open`, used as an async context manager.

    It belongs to the event loop that opened it. All its calls may be made from many tasks at once; each is one
    statement of its own, ends within `timeout` seconds, and is repeated where a server was lost (G4).
    """

    async def interrupted(self, *, agent_id: str | None = None) -> list[ConversationSummary]:
        """List every branch in the middle of a turn that no live lease holds, those with the newest turns first.

        What a crash left behind, without its content. A turn that another process has open without a lease is among
        them: only a lease tells that it is alive.
        """
        found: list[ConversationSummary] = []
        after = (uuid.UUID(int=0), -1)
        while True:
            rows = await self._database.fetch(
                "interrupted",
                {
                    "agent": agent_id,
                    "tenant": self._tenant,
                    "after_conversation": after[0],
                    "after_branch": after[1],
                    "limit": MAX_PAGE,
                },
            )
            found += _rows.summaries(rows)
            if len(rows) < MAX_PAGE:
                return sorted(found, key=lambda summary: summary.turn_started_at, reverse=True)
            after = (found[-1].conversation_id, found[-1].branch)

    async def restore_interrupted(self, *, agent_id: str | None = None) -> list[Checkpoint]:
        """Give the newest checkpoint of every branch that `interrupted` lists, all at once.

        One round trip for each 100 of them, after those of the list.
        """
        listed = await self.interrupted(agent_id=agent_id)
        restored: list[Checkpoint] = []
        for start in range(0, len(listed), _RESTORED_AT_ONCE):
            chunk = listed[start : start + _RESTORED_AT_ONCE]
            found = await read_checkpoints(self._database, [(s.conversation_id, s.branch, None, None) for s in chunk])
            # One may have ended in the meantime.
            restored += (checkpoint for checkpoint in found.values() if checkpoint.turn_open)
        return restored

    async def history(
        self,
        conversation: Id,
        *,
        branch: BranchId | None = None,
        limit: int = 100,
        before: tuple[int, int] | None = None,
    ) -> list[CheckpointSummary]:
        """List a branch's checkpoints with those it inherits, newest first, at most `limit` (1 to 1,000).

        `before` is the (turn_index, sub_step) of the last of one page and gives the next one.
        """
        turn, sub_step = _arguments.place(before, "before")
        number = await self._number(conversation, branch)
        rows = await self._database.fetch(
            "history",
            {
                "conversation": self._uuid(conversation),
                "branch": number,
                "limit": _arguments.page(limit),
                "before_turn": turn,
                "before_sub_step": sub_step,
            },
        )
        if not rows and (archived := await self._archived(conversation)) is not None:
            return archived.history(number, limit, before)
        if not rows and before is None:
            await self.restore(conversation, branch=branch)
        return [CheckpointSummary(*row) for row in rows]


def open(
    database: str | None = None,
    *,
    schema: str = settings.DEFAULT_SCHEMA,
    pool_size: int = 10,
    timeout: float = 30.0,
    redact: Redact | None = None,
) -> AsyncStore:
    """Name a store: `async with turnkeep.open() as store`.

    `database` is a DSN, or the word "embedded" for a private Postgres; without it TURNKEEP_DATABASE_URL,
    DATABASE_URL or the PG* variables name one. `pool_size` is the most connections it opens, `timeout` the
    seconds after which any call gives up. `redact` is given each JSON value before it is stored, and gives the one
    that is stored in its place: see `turnkeep.redaction`. Raises `ConfigurationError` if nothing names a database,
    `InvalidInputError` for a size or time that can't be.
    """
    return AsyncStore(
        settings.database(database),
        settings.check_schema_name(schema),
        pool_size=_arguments.pool_size(pool_size),
        timeout=_arguments.timeout_seconds(timeout),
        redact=_arguments.hook(redact),
    )
