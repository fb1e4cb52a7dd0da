"""Branches of a conversation: forked, listed, switched to, deleted."""

from __future__ import annotations

import uuid
from typing import Any

from turnkeep.errors import ConflictError, LeaseHeldError, NotFoundError
from turnkeep.model import BranchSummary
from turnkeep.store import _arguments, _details, _rows
from turnkeep.store._async_branch import AsyncBranch
from turnkeep.store._async_conversations import AsyncConversations
from turnkeep.store._async_opened import BranchId, Id, no_conversation


class AsyncForks(AsyncConversations):
    """The part of a store that knows the branches of a conversation."""

    async def fork(
        self,
        conversation: Id,
        *,
        at: tuple[int, int] | None = None,
        branch: BranchId | None = None,
        name: str | None = None,
        fork_id: uuid.UUID | None = None,
        agent_id: str | None = None,
        into: Id | None = None,
    ) -> AsyncBranch:
        """Start another line of turns at the checkpoint `at` = (turn_index, sub_step), or at the head.

        No message is copied (G8), the current branch stays the current one, and calls pending at that point are
        `uncertain` on the new branch. The same `fork_id` gives the same branch again (G4). `name` is the
        branch's own within the conversation.

        With `into`, the id of a conversation that does not exist yet, the line starts there: the history up to that
        checkpoint is copied, with what `describe` says, and the two have nothing to do with each other any more.
        """
        if name is not None:
            _details.check_branch_name(name)
        turn, sub_step = _arguments.place(at, "at")
        parameters: dict[str, Any] = {
            "conversation": self._uuid(conversation),
            "source": await self._number(conversation, branch),
            "turn": turn,
            "sub_step": sub_step,
            "name": name,
            "fork_id": fork_id or uuid.uuid4(),
        }
        number: int | None = None
        if into is None:
            ((outcome, number),) = await self._database.fetch("fork", parameters)
        else:
            ((outcome,),) = await self._database.fetch(
                "fork_into",
                {**parameters, "into": self._uuid(into), "external_id": str(into), "tenant": self._tenant},
            )
        match outcome:
            case "not_found":
                raise no_conversation(conversation, branch)
            case "no_checkpoint":
                place = "yet" if at is None else f"at {turn}.{sub_step}"
                why = await self._why_missing(conversation, parameters["source"], turn, sub_step)
                raise NotFoundError(f"conversation {str(conversation)!r} has no checkpoint {place} to fork at{why}")
            case "name_taken":
                raise ConflictError(f"conversation {str(conversation)!r} has a branch named {name!r} already")
            case "exists":
                raise ConflictError(f"into: there is a conversation {str(into)!r} already; nothing was copied")
        return await self.conversation(conversation if into is None else into, agent_id=agent_id, branch=number)

    async def branches(self, conversation: Id) -> list[BranchSummary]:
        """List all branches of a conversation by number.

        Each says at which (branch, turn_index, sub_step) it was forked. Raises `NotFoundError`.
        """
        rows = await self._database.fetch("branches", {"conversation": self._uuid(conversation)})
        if not rows and (archived := await self._archived(conversation)) is not None:
            return archived.branches()
        if not rows:
            raise no_conversation(conversation)
        return _rows.branches(rows)

    async def switch(self, conversation: Id, branch: BranchId) -> None:
        """Make a branch the current one: what is read, posted to and shown where no branch is named.

        Raises `NotFoundError`. Nothing of either branch changes; a worker that runs one goes on.
        """
        number = await self._number(conversation, branch)
        ((found,),) = await self._database.fetch("switch", {"conversation": self._uuid(conversation), "branch": number})
        if found is None:
            raise no_conversation(conversation, branch)

    async def delete_branch(self, conversation: Id, branch: BranchId) -> bool:
        """Remove a branch with the messages, checkpoints and requests that are its own.

        False if that number was gone already.

        Refused, and then nothing is removed, while it is the current branch, others have been forked from it, or a
        request waits on it (`ConflictError`), and while somebody runs it (`LeaseHeldError`). What it has inherited
        belongs to others and stays. Raises `NotFoundError` for a branch that never was.
        """
        number = await self._number(conversation, branch)
        ((outcome, builders, owner, until),) = await self._database.fetch(
            "delete_branch", {"conversation": self._uuid(conversation), "branch": number}, read_committed=True
        )
        name = f"conversation {str(conversation)!r}, branch {branch}"
        match outcome:
            case "not_found":
                raise no_conversation(conversation, branch)
            case "current":
                raise ConflictError(f"{name} is the current one; nothing was deleted: switch to another first")
            case "built_on":
                others = ", ".join(map(str, builders))
                raise ConflictError(f"{name}: others go on from it ({others}); nothing was deleted: delete them first")
            case "request_waits":
                raise ConflictError(f"{name}: a request waits on it; nothing was deleted: let it be answered first")
            case "lease_held":
                raise LeaseHeldError(
                    f"{name}: {owner} is running it, under a lease until {until:%H:%M:%S.%f %Z}; nothing was deleted"
                )
        return bool(outcome == "deleted")
