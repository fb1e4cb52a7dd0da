"""Old checkpoints removed, and the messages that no checkpoint holds any more."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any, Literal

from turnkeep import spans
from turnkeep.errors import InvalidInputError
from turnkeep.model import Pruned
from turnkeep.store import _details
from turnkeep.store._async_opened import AsyncOpened, Id, no_conversation
from turnkeep.store._async_waiting import sleep

Keep = Literal["last-per-turn", "heads"]
"""What stays of what is old: the end of every turn, or the heads alone."""

Progress = Callable[[int, int, Pruned], None]
"""Is told how many conversations are done, of how many, and what has been removed so far."""

_LEAST_AGE = timedelta(hours=1)
_MOST_AGE = timedelta(days=365_000)
_AT_ONCE = 100
_FIRST_ROWS = 1_000
_LEAST_ROWS, _MOST_ROWS = 100, 10_000
_LONG, _SHORT = 0.2, 0.05  # seconds that a call takes at most, as far as that is up to us, and at least
_TRIES = 3


class AsyncPruning(AsyncOpened):
    """The part of a store that removes what is old."""

    async def prune(
        self, conversation: Id, *, keep: Keep = "last-per-turn", older_than: timedelta, dry_run: bool = False
    ) -> Pruned:
        """Remove a conversation's old checkpoints, then the messages that no checkpoint holds, and count them.

        With `keep="last-per-turn"` the last sub-step of each turn stays, with "heads" only each branch's head. In any
        case these stay: what is younger than `older_than` (an hour or more), places where branches were forked, what
        an open turn and its pending calls need, the end of a turn that a request or a key has begun, and what
        documents are still to be filled from (`held_back`). What stays is restored exactly as before.

        Many short transactions: each can be the last, and a repetition goes on from there. Writers go on meanwhile; a
        branch that somebody keeps locked for seconds is left alone (`busy`). An archived conversation has nothing to
        be pruned. With `dry_run` nothing is removed. Raises `NotFoundError`.
        """
        wanted = _wanted(keep, older_than)
        number = self._uuid(conversation)
        pruned = await (self._look(number, wanted) if dry_run else self._prune(number, wanted))
        if pruned is None:
            raise no_conversation(conversation)
        return pruned

    async def prune_all(
        self,
        *,
        keep: Keep = "last-per-turn",
        older_than: timedelta,
        agent_id: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Pruned:
        """Prune every conversation, or those that fit, one after the other, as `prune` does; and count all of it.

        `agent_id`, `tags` and `metadata` choose as those of `conversations` do. `progress` is called after each
        conversation with how many are done, of how many at most, and what has been removed so far.
        """
        wanted = _wanted(keep, older_than)
        filters = {
            "agent": agent_id,
            "tenant": self._tenant,
            "tags": None if tags is None else _details.check_tags(tags),
            "metadata": None if metadata is None else _details.metadata_text(metadata),
        }
        ((count,),) = await self._database.fetch("prunable_count", filters)
        total, after, done = Pruned(), uuid.UUID(int=0), 0
        while True:
            rows = await self._database.fetch(
                "prunable", {**filters, "after": after, "older_than": older_than, "limit": _AT_ONCE}
            )
            for (number,) in rows:
                one = await (self._look(number, wanted) if dry_run else self._prune(number, wanted))
                total += one or Pruned()  # it may have been erased meanwhile
                done, after = done + 1, number
                if progress is not None:
                    progress(done, max(done, count), total)
            if len(rows) < _AT_ONCE:
                return total

    async def _look(self, conversation: uuid.UUID, wanted: dict[str, Any]) -> Pruned | None:
        total, held = Pruned(conversations=1), list[int]()
        place: dict[str, Any] = {"turn": 2**31 - 1, "sub_step": 0, "branch": 0}
        outcome = "more"
        while outcome == "more":
            ((outcome, checkpoints, size, held_back, more_held, turn, sub_step, branch),) = await self._database.fetch(
                "prune_look", {"conversation": conversation, **wanted, **place, "limit": _MOST_ROWS}
            )
            if outcome == "not_found":
                return None
            total += Pruned(0, checkpoints, bytes=size, held_back=held_back)
            held += more_held
            place = {"turn": turn, "sub_step": sub_step, "branch": branch}
        positions = await self._database.fetch("positions", {"conversation": conversation})
        for ranges in spans.in_turn(spans.without(dict(positions), held), _MOST_ROWS):
            ((messages, size),) = await self._database.fetch("sizes", {"conversation": conversation, "ranges": ranges})
            total += Pruned(messages=messages, bytes=size)
        return total

    async def _prune(self, conversation: uuid.UUID, wanted: dict[str, Any]) -> Pruned | None:
        place: dict[str, Any] = {"turn": 2**31 - 1, "sub_step": 0, "branch": 0}
        total, rows, tries = Pruned(conversations=1), _FIRST_ROWS, 0
        while True:
            began = monotonic()
            parameters = {"conversation": conversation, **wanted, **place, "limit": rows}
            ((outcome, *counts, turn, sub_step, branch),) = await self._database.fetch(
                "prune", parameters, read_committed=True
            )
            if outcome == "not_found":
                return None
            if outcome == "busy":
                tries += 1
                if tries == _TRIES:
                    return replace(total, busy=1)
                await sleep(random.uniform(0.1, 0.3))
                continue
            if outcome == "archived":
                return total
            total += Pruned(0, *counts)
            if outcome == "messages":
                return total + await self._prune_messages(conversation, rows)
            if outcome == "done":
                return total
            place = {"turn": turn, "sub_step": sub_step, "branch": branch}
            rows = _paced(rows, monotonic() - began)

    async def _prune_messages(self, conversation: uuid.UUID, rows: int) -> Pruned:
        total, branch, position, more = Pruned(), 0, -1, True
        while more:
            began = monotonic()
            parameters = {"conversation": conversation, "limit": rows, "branch": branch, "position": position}
            ((messages, size, more, branch, position),) = await self._database.fetch(
                "prune_messages", parameters, read_committed=True
            )
            total += Pruned(messages=messages, bytes=size)
            rows = _paced(rows, monotonic() - began)
        return total


def _paced(rows: int, seconds: float) -> int:
    """How many rows the next call takes, after one that took so long: writers wait for as long."""
    if seconds > _LONG:
        return max(rows // 2, _LEAST_ROWS)
    return min(rows * 2, _MOST_ROWS) if seconds < _SHORT else rows


def _wanted(keep: object, older_than: object) -> dict[str, Any]:
    """The parameters of any pruning."""
    if keep not in ("last-per-turn", "heads"):
        raise InvalidInputError(f"keep: {keep!r} is neither 'last-per-turn' nor 'heads'")
    if not isinstance(older_than, timedelta):
        raise InvalidInputError(f"older_than: expected a timedelta, got {type(older_than).__name__}")
    if not _LEAST_AGE <= older_than <= _MOST_AGE:
        raise InvalidInputError(
            f"older_than: {older_than}; at least an hour is needed, so that a write that is being repeated still "
            "finds its first try"
        )
    return {"keep": keep, "older_than": older_than}
