"""How long conversations are kept, and those erased whose time is over."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta

from turnkeep.errors import InvalidInputError
from turnkeep.model import Erased, Expired
from turnkeep.store import _details
from turnkeep.store._async_opened import AsyncOpened

_AT_ONCE = 1000


class AsyncRetention(AsyncOpened):
    """The part of a store that knows what has had its time."""

    async def set_retention(self, agent_id: str, ttl: timedelta | None) -> None:
        """Keep the conversations of an agent for `ttl` after their newest write, or for ever (None).

        A conversation's own `ttl` goes before it. Nothing is erased before `expire` is called.
        """
        parameters = {"agent": _details.check_name(agent_id, "agent_id"), "ttl": _details.check_ttl(ttl)}
        await self._database.fetch("set_retention", parameters)

    async def retention(self) -> dict[str, timedelta]:
        """Give how long the conversations of each agent are kept; those of an agent that is left out, for ever."""
        return dict(await self._database.fetch("retention"))

    async def expire(
        self,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Callable[[int, Expired], None] | None = None,
    ) -> Expired:
        """Erase the conversations whose time is over, with their children, and count what was removed (G12).

        A conversation's time is over `ttl` after the newest write to it or to one of its children: to be archived,
        unarchived or imported is one. While somebody runs a branch under a lease, or a request waits, it is not. This
        is decided under the branches' locks: a write that comes first saves it. Each is erased in a transaction of its
        own, at most `limit` of them; `progress` is called with how many have been looked at. With `dry_run` nothing is
        erased, and only conversations are counted.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise InvalidInputError(f"limit: expected a whole number from 1 or None, got {limit!r}")
        ((any_,),) = await self._database.fetch("perishable")
        total, after, looked, expired = Expired(), uuid.UUID(int=0), 0, 0
        while any_:
            ((due, count, after_),) = await self._database.fetch(
                "due", {"tenant": self._tenant, "after": after, "limit": _AT_ONCE}
            )
            for conversation in due:
                if expired == limit:
                    return total
                outcome, one = await self._expire(conversation, look=dry_run)
                total = Expired(_sum(total.erased, one), total.busy + (outcome == "busy"))
                expired += outcome == "expired"
            looked += count
            if progress is not None:
                progress(looked, total)
            if count < _AT_ONCE:
                break
            after = after_
        return total

    async def _expire(self, conversation: uuid.UUID, *, look: bool) -> tuple[str, Erased]:
        parameters = {"conversation": conversation, "look": look}
        ((outcome, *counts),) = await self._database.fetch("expire", parameters, read_committed=True)
        return outcome, Erased(*counts)


def _sum(one: Erased, other: Erased) -> Erased:
    return Erased(
        one.conversations + other.conversations,
        one.branches + other.branches,
        one.checkpoints + other.checkpoints,
        one.messages + other.messages,
        one.requests + other.requests,
    )
