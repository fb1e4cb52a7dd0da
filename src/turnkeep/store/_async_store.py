"""The store: conversations found, made, restored, listed and forked."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from turnkeep import jsontext, settings
from turnkeep._version import REVISION
from turnkeep.errors import (
    ConflictError,
    CorruptionError,
    DatabaseError,
    InvalidInputError,
    LeaseHeldError,
    NotFoundError,
    SchemaError,
    UsageError,
)
from turnkeep.model import (
    MAIN_BRANCH,
    Checkpoint,
    CheckpointSummary,
    ConversationSummary,
    Lease,
    Posted,
    Reply,
    check_text,
    conversation_uuid,
)
from turnkeep.store import _arguments, _async_requests
from turnkeep.store._arguments import MAX_PAGE
from turnkeep.store._async_branch import AsyncBranch, Wanted, read_checkpoints
from turnkeep.store._async_database import AsyncDatabase
from turnkeep.store._async_leases import lease_terms, release_lease, take_lease
from turnkeep.store._async_requests import Body
from turnkeep.store._async_waiting import in_thread

if TYPE_CHECKING:
    from turnkeep.embedded import EmbeddedPostgres

_MAX_AGENT_CHARACTERS = 255
_MAX_NAME_CHARACTERS = 255
_RESTORED_AT_ONCE = 100

_Claim = tuple[uuid.UUID, int, Lease, str, bool]
"""Conversation, branch, lease, agent, and whether it is a suspect."""

Id = str | uuid.UUID
"""A conversation's id: a UUID, or a text of one's own."""


class AsyncStore:
    """Conversations in one schema of one database. Made by `turnkeep.open`, used as an async context manager.

    It belongs to the event loop that opened it. All its calls may be made from many tasks at once; each is one
    statement of its own, ends within `timeout` seconds, and is repeated where a server was lost (G4).
    """

    def __init__(self, database: str, schema: str, *, pool_size: int, timeout: float) -> None:
        self._named = database
        self._schema = schema
        self._pool_size = pool_size
        self._timeout = timeout
        self._embedded: EmbeddedPostgres | None = None
        self._opened: AsyncDatabase | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and check that the schema is there and not older than this release.

        The embedded Postgres is started if need be, and its schema is brought up to date. Raises
        `UnavailableError`, `SchemaError`, `EmbeddedError`.
        """
        conninfo = self._named
        if conninfo == settings.EMBEDDED:
            # Its users pay for it, nobody else.
            from turnkeep.embedded import EmbeddedPostgres
            from turnkeep.store._migrate import migrate

            self._embedded = await in_thread(EmbeddedPostgres.start)
            conninfo = self._embedded.conninfo
            await in_thread(migrate, conninfo, self._schema)
        revive = None if self._embedded is None else self._embedded.ensure
        database = AsyncDatabase(
            conninfo, self._schema, pool_size=self._pool_size, timeout=self._timeout, revive=revive
        )
        await database.open()
        self._opened = database
        try:
            await self._check_revision(database)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections, and stop being a user of the embedded Postgres."""
        if self._opened is not None:
            await self._opened.close()
        if self._embedded is not None:
            await in_thread(self._embedded.release)

    @property
    def conninfo(self) -> str:
        """The conninfo of the database in use."""
        return self._database.conninfo

    @property
    def pool_size(self) -> int:
        """The most connections it opens."""
        return self._pool_size

    @property
    def pooled(self) -> bool:
        """Whether a connection pooler stands before the server."""
        return self._database.pooled

    async def conversation(
        self, conversation: Id, *, agent_id: str | None = None, branch: int | None = None
    ) -> AsyncBranch:
        """Get or create a conversation, restored, as a handle to write with.

        `conversation` is a UUID, or a text of 1 to 1,000 characters that always names the same conversation; see
        `conversation_uuid` for how.
        `agent_id` (1 to 255 characters) names who writes through this handle, and the conversation's agent where
        it is new. `branch` is a branch's number, by default the current one's.
        """
        conversation_id = conversation_uuid(conversation)
        if agent_id is not None:
            check_text(agent_id, "agent_id", _MAX_AGENT_CHARACTERS)
        wanted: Wanted = (conversation_id, _arguments.branch_number(branch), None, None)
        found = await read_checkpoints(self._database, [wanted])
        if 1 not in found and branch in (None, MAIN_BRANCH):
            await self._database.fetch(
                "create",
                {"conversation": conversation_id, "external_id": str(conversation), "agent": agent_id},
            )
            found = await read_checkpoints(self._database, [wanted])
        if 1 not in found:
            raise NotFoundError(f"conversation {str(conversation)!r} has no branch {branch}")
        return AsyncBranch(self._database, found[1], agent_id)

    async def restore(
        self, conversation: Id, *, branch: int | None = None, at: tuple[int, int] | None = None
    ) -> Checkpoint:
        """Give a conversation's newest checkpoint whole, or the one at `at` = (turn_index, sub_step).

        One round trip. Raises `NotFoundError`; `CorruptionError` rather than give back less than was saved.
        """
        turn, sub_step = _arguments.place(at, "at")
        branch = _arguments.branch_number(branch)
        found = await read_checkpoints(self._database, [(conversation_uuid(conversation), branch, turn, sub_step)])
        if 1 not in found:
            parts = [] if branch is None else [f"a branch {branch}"]
            parts += [] if at is None else [f"a checkpoint at {turn}.{sub_step}"]
            which = f" with {' and '.join(parts)}" if parts else ""
            raise NotFoundError(f"no conversation {str(conversation)!r}{which}")
        return found[1]

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
                {"agent": agent_id, "after_conversation": after[0], "after_branch": after[1], "limit": MAX_PAGE},
            )
            found += (ConversationSummary(*row) for row in rows)
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

    async def conversations(
        self, *, agent_id: str | None = None, limit: int = 50, before: ConversationSummary | None = None
    ) -> list[ConversationSummary]:
        """List conversations, those with the newest turns first: at most `limit` (1 to 1,000) of them.

        `before` is the last of one page and gives the next one.
        """
        if before is not None and not isinstance(before, ConversationSummary):
            raise InvalidInputError(f"before: expected a ConversationSummary, got {type(before).__name__}")
        rows = await self._database.fetch(
            "list",
            {
                "agent": agent_id,
                "limit": _arguments.page(limit),
                "before_time": before and before.turn_started_at,
                "before_conversation": before and before.conversation_id,
            },
        )
        return [ConversationSummary(*row) for row in rows]

    async def history(
        self,
        conversation: Id,
        *,
        branch: int | None = None,
        limit: int = 100,
        before: tuple[int, int] | None = None,
    ) -> list[CheckpointSummary]:
        """List a branch's checkpoints with those it inherits, newest first, at most `limit` (1 to 1,000).

        `before` is the (turn_index, sub_step) of the last of one page and gives the next one.
        """
        conversation_id = conversation_uuid(conversation)
        turn, sub_step = _arguments.place(before, "before")
        rows = await self._database.fetch(
            "history",
            {
                "conversation": conversation_id,
                "branch": _arguments.branch_number(branch),
                "limit": _arguments.page(limit),
                "before_turn": turn,
                "before_sub_step": sub_step,
            },
        )
        if not rows and before is None:
            await self.restore(conversation_id, branch=branch)
        return [CheckpointSummary(*row) for row in rows]

    async def fork(
        self,
        conversation: Id,
        *,
        at: tuple[int, int] | None = None,
        branch: int | None = None,
        name: str | None = None,
        fork_id: uuid.UUID | None = None,
        agent_id: str | None = None,
    ) -> AsyncBranch:
        """Start another line of turns at the checkpoint `at` = (turn_index, sub_step), or at the head.

        No message is copied (G8), the current branch stays the current one, and calls pending at that point are
        `uncertain` on the new branch. The same `fork_id` gives the same branch again (G4). `name` is the
        branch's own within the conversation.
        """
        if name is not None:
            check_text(name, "name", _MAX_NAME_CHARACTERS)
        turn, sub_step = _arguments.place(at, "at")
        conversation_id = conversation_uuid(conversation)
        ((outcome, number),) = await self._database.fetch(
            "fork",
            {
                "conversation": conversation_id,
                "source": _arguments.branch_number(branch),
                "turn": turn,
                "sub_step": sub_step,
                "name": name,
                "fork_id": fork_id or uuid.uuid4(),
            },
        )
        match outcome:
            case "not_found":
                which = "" if branch is None else f" with a branch {branch}"
                raise NotFoundError(f"no conversation {str(conversation)!r}{which}")
            case "no_checkpoint":
                place = "yet" if at is None else f"at {turn}.{sub_step}"
                raise NotFoundError(f"conversation {str(conversation)!r} has no checkpoint {place} to fork at")
            case "name_taken":
                raise ConflictError(f"conversation {str(conversation)!r} has a branch named {name!r} already")
        return await self.conversation(conversation_id, agent_id=agent_id, branch=number)

    async def post(
        self,
        conversation: Id,
        message: Body,
        *,
        key: str | None = None,
        agent_id: str | None = None,
        branch: int | None = None,
    ) -> Posted:
        """Accept a message for a conversation. It is durable when this returns, and waits for a turn of its own (G1).

        `message` is a user's words, a JSON object, or a list of them. The same `key` (1 to 500 characters) is
        accepted once, from any process (G4); without one it gets a key of its own. A worker that serves the
        conversation's agent takes it up, after those posted before. `agent_id` makes the conversation where it is
        new. Raises `NotFoundError`, `KeyReusedError`, `ConversationEndedError`.
        """
        try:
            return await _async_requests.post(self._database, conversation, message, key, branch)
        except NotFoundError:
            if agent_id is None or branch not in (None, MAIN_BRANCH):
                raise
        await self.conversation(conversation, agent_id=agent_id)
        return await _async_requests.post(self._database, conversation, message, key, branch)

    async def wait_reply(self, conversation: Id, key: str, *, seconds: float | None = None) -> Reply:
        """Wait until the turn of a request has ended, and give its reply.

        Raises `TurnFailedError` where the branch has stopped, `ReplyTimeoutError` after `seconds` (None:
        never), `NotFoundError` where nothing was posted under `key`.
        """
        return await _async_requests.wait_reply(self._database, conversation, key, seconds)

    async def resume(self, conversation: Id, *, branch: int | None = None) -> bool:
        """Let workers go on with a branch that has failed, waits, was forked, or was left open by a crash.

        `branch` is by default the current one. False if it has nothing left to do. Raises `LeaseHeldError` while
        somebody runs it, `NotFoundError`.
        """
        ((outcome, number, owner, until),) = await self._database.fetch(
            "resume", {"conversation": conversation_uuid(conversation), "branch": _arguments.branch_number(branch)}
        )
        if outcome == "not_found":
            which = "" if branch is None else f" with a branch {branch}"
            raise NotFoundError(f"no conversation {str(conversation)!r}{which}")
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
        for conversation_id, number, agent, attempts in waiting:
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
                claims.append((conversation_id, number, lease, agent, suspect))
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
            ((conversation_id, number, lease, _, _),) = claims
            failure = jsontext.encode({"type": "corruption", "message": str(error)}, "failure")
            await release_lease(self._database, conversation_id, number, lease, stopped="failed", failure=failure)
            return []
        except DatabaseError:
            for conversation_id, number, lease, _, _ in claims:
                await release_lease(self._database, conversation_id, number, lease)
            raise
        return [
            AsyncBranch.claimed(self._database, found[item], lease, agent, suspect=suspect)
            for item, (_, _, lease, agent, suspect) in enumerate(claims, 1)
            if item in found
        ]

    async def busy(self, agents: Sequence[str]) -> bool:
        """Whether anything of these agents is ready, or being run."""
        ((busy,),) = await self._database.fetch("busy", {"agents": [*agents]})
        return bool(busy)

    async def find(self, reference: str) -> uuid.UUID:
        """Give the conversation meant by a text id, a UUID, or the first 4 or more digits of one.

        Raises `NotFoundError`, or `InvalidInputError` where a prefix means several.
        """
        own = conversation_uuid(reference)
        ranges = [(own, own)]
        digits = reference.replace("-", "").lower()
        if 4 <= len(digits) <= 32 and all(digit in "0123456789abcdef" for digit in digits):
            ranges.append((uuid.UUID(digits.ljust(32, "0")), uuid.UUID(digits.ljust(32, "f"))))
        for low, high in ranges:
            rows = await self._database.fetch("find", {"low": low, "high": high})
            if len(rows) > 1:
                raise InvalidInputError(
                    f"{reference!r} is the beginning of several conversations' ids: give more of it"
                )
            for (found,) in rows:
                return uuid.UUID(str(found))
        raise NotFoundError(f"no conversation {reference!r}")

    async def _check_revision(self, database: AsyncDatabase) -> None:
        ((have,),) = await database.fetch("revision")
        if have is None or have < REVISION:
            raise SchemaError(
                f"schema {self._schema!r} is at revision {have or 0}, this release needs {REVISION}: "
                "run `turnkeep migrate`"
            )

    @property
    def _database(self) -> AsyncDatabase:
        if self._opened is None:
            raise UsageError("this store is not open: use it as `async with turnkeep.open() as store`")
        return self._opened


def open(
    database: str | None = None,
    *,
    schema: str = settings.DEFAULT_SCHEMA,
    pool_size: int = 10,
    timeout: float = 30.0,
) -> AsyncStore:
    """Name a store: `async with turnkeep.open() as store`.

    `database` is a DSN, or the word "embedded" for a private Postgres; without it TURNKEEP_DATABASE_URL,
    DATABASE_URL or the PG* variables name one. `pool_size` is the most connections it opens, `timeout` the
    seconds after which any call gives up. Raises `ConfigurationError` if nothing names a database,
    `InvalidInputError` for a size or time that can't be.
    """
    return AsyncStore(
        settings.database(database),
        settings.check_schema_name(schema),
        pool_size=_arguments.pool_size(pool_size),
        timeout=_arguments.timeout_seconds(timeout),
    )
