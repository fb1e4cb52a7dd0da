"""What waits for an answer or for a worker: requests, and branches to be run."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence

from turnkeep import jsontext
from turnkeep.errors import CorruptionError, DatabaseError, LeaseHeldError, NotFoundError
from turnkeep.model import MAIN_BRANCH, Lease, Posted, Reply
from turnkeep.store import _arguments, _async_requests
from turnkeep.store._async_branch import AsyncBranch
from turnkeep.store._async_conversations import AsyncConversations
from turnkeep.store._async_head import read_checkpoints
from turnkeep.store._async_leases import lease_terms, release_lease, take_lease
from turnkeep.store._async_opened import BranchId, Id, no_conversation
from turnkeep.store._async_requests import Body

_Claim = tuple[uuid.UUID, int, Lease, str, bool, str | None]
"""Conversation, branch, lease, agent, whether it is a suspect, and whose lease had expired."""


class AsyncQueue(AsyncConversations):
    """The part of a store that clients and workers meet at."""

    async def post(
        self,
        conversation: Id,
        message: Body,
        *,
        key: str | None = None,
        agent_id: str | None = None,
        branch: BranchId | None = None,
    ) -> Posted:
        """Accept a message for a conversation. It is durable when this returns, and waits for a turn of its own (G1).

        `message` is a user's words, a JSON object, or a list of them. The same `key` (1 to 500 characters) is
        accepted once, from any process (G4); without one it gets a key of its own. A worker that serves the
        conversation's agent takes it up, after those posted before. `agent_id` makes the conversation where it is
        new. Raises `NotFoundError`, `KeyReusedError`, `ConversationEndedError`.
        """
        number = await self._number(conversation, branch)
        ids = self._uuid(conversation), str(conversation)
        try:
            return await _async_requests.post(self._database, *ids, message, key, number)
        except NotFoundError:
            if agent_id is None or branch not in (None, MAIN_BRANCH):
                raise
        await self.conversation(conversation, agent_id=agent_id)
        return await _async_requests.post(self._database, *ids, message, key, number)

    async def wait_reply(self, conversation: Id, key: str, *, seconds: float | None = None) -> Reply:
        """Wait until the turn of a request has ended, and give its reply.

        Raises `TurnFailedError` where the branch has stopped, `ReplyTimeoutError` after `seconds` (None:
        never), `NotFoundError` where nothing was posted under `key`.
        """
        return await _async_requests.wait_reply(
            self._database, self._uuid(conversation), str(conversation), key, seconds
        )

    async def resume(self, conversation: Id, *, branch: BranchId | None = None) -> bool:
        """Let workers go on with a branch that has failed, waits, was forked, or was left open by a crash.

        `branch` is by default the current one. False if it has nothing left to do. Raises `LeaseHeldError` while
        somebody runs it, `NotFoundError`.
        """
        wanted = {"conversation": self._uuid(conversation), "branch": await self._number(conversation, branch)}
        ((outcome, number, owner, until),) = await self._database.fetch("resume", wanted)
        if outcome == "not_found":
            raise no_conversation(conversation, branch)
        if outcome == "lease_held":
            raise LeaseHeldError(
                f"conversation {str(conversation)!r}, branch {number}: {owner} is running it, under a lease until "
                f"{until:%H:%M:%S.%f %Z}"
            )
        return bool(outcome == "ready")

    async def claim_waiting(
        self,
        agents: Sequence[str],
        *,
        limit: int,
        owner: str | None = None,
        seconds: float = 15.0,
        skip: Collection[tuple[uuid.UUID, int]] = (),
        suspects: bool = True,
    ) -> list[AsyncBranch]:
        """Take leases on up to `limit` branches of these agents that wait for a worker, the longest waiting first.

        A branch waits when it is ready, or when its worker has let its lease expire. One whose worker has died five
        times in a row without progress is failed instead. The `agent_id` of each is its conversation's. `owner` and
        `seconds` are `AsyncBranch.claim`'s (G5). `skip` are (conversation_id, branch) that the caller runs itself.

        A branch whose worker has died is a suspect: of those at most one is claimed, or none without `suspects`, so
        that what kills its worker does so without others that look the same.
        """
        owner, seconds = lease_terms(owner, seconds)
        parameters = {"agents": [*agents], "limit": _arguments.page(limit)}
        waiting = await self._database.fetch("expired", parameters)
        if len(waiting) < limit:
            waiting += await self._database.fetch("ready", parameters)
        claims: list[_Claim] = []
        for conversation_id, number, agent, attempts, former in waiting:
            suspect = attempts > 0
            if len(claims) == limit or (conversation_id, number) in skip or (suspect and not suspects):
                continue
            try:
                lease = await take_lease(self._database, conversation_id, number, owner, seconds, waiting=True)
            except DatabaseError:
                if not claims:
                    raise
                break  # those claimed are not left lying
            if isinstance(lease, Lease):
                claims.append((conversation_id, number, lease, agent, suspect, former))
                suspects = suspects and not suspect
        return await self._restored(claims)

    async def _restored(self, claims: Sequence[_Claim]) -> list[AsyncBranch]:
        """Handles for what was claimed. What can't be restored is failed, and keeps nobody from the others."""
        if not claims:
            return []
        try:
            found = await read_checkpoints(
                self._database, [(conversation_id, number, None, None) for conversation_id, number, *_ in claims]
            )
        except CorruptionError as error:
            if len(claims) > 1:
                return [branch for claim in claims for branch in await self._restored([claim])]
            ((conversation_id, number, lease, *_),) = claims
            failure = jsontext.encode({"type": "corruption", "message": str(error)}, "failure")
            await release_lease(self._database, conversation_id, number, lease, stopped="failed", failure=failure)
            return []
        except DatabaseError:
            for conversation_id, number, lease, *_ in claims:
                await release_lease(self._database, conversation_id, number, lease)
            raise
        return [
            AsyncBranch.claimed(self._database, found[item], lease, agent, suspect=suspect, taken_from=former)
            for item, (_, _, lease, agent, suspect, former) in enumerate(claims, 1)
            if item in found
        ]

    async def busy(self, agents: Sequence[str]) -> bool:
        """Whether anything of these agents is ready, or being run."""
        ((busy,),) = await self._database.fetch("busy", {"agents": [*agents]})
        return bool(busy)
