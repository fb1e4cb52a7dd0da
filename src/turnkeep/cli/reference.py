"""What people write to name a conversation, a branch of it, or a checkpoint.

`ID`, `ID@turn.sub_step`, `ID:branch` and `ID:branch@turn.sub_step`: ID is an external id, a UUID or its first digits,
or `@last`; a branch is its number or its name. `@turn` alone is that turn's last sub-step. An id may contain ":" and
"@" itself: the longest id that is there wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from turnkeep.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore

LAST = "@last"

CONVERSATION = "An id, a UUID or its first digits, or @last."
BRANCH = "An id, a UUID or its first digits, or @last; with :branch behind it, that branch."
CHECKPOINT = (
    "An id, a UUID or its first digits, or @last; with :branch, @turn[.sub_step] or both behind it, that place."
)

# Positions are int4 in the database; more digits name nothing.
_CHECKPOINT = re.compile(r"(.+)@(\d{1,9})(?:\.(\d{1,9}))?", re.DOTALL)
_NUMBER = re.compile(r"\d{1,9}")


@dataclass(frozen=True)
class Reference:
    """A conversation that is there, and the branch and checkpoint that were named, if any."""

    conversation: UUID
    branch: int | str | None = None
    at: tuple[int, int] | None = None


async def find(store: AsyncStore, text: str) -> Reference:
    """The place that a text names: a conversation, a branch or a checkpoint. Raises `NotFoundError`."""
    failed: NotFoundError | None = None
    for conversation, branch, at in readings(text):
        try:
            found = await find_conversation(store, conversation)
            return Reference(found, branch, None if at is None else await _place(store, text, found, branch, at))
        except NotFoundError as error:
            failed = failed or error
        except InvalidInputError:
            if failed is None:
                raise
    assert failed is not None
    raise failed


async def _place(
    store: AsyncStore, text: str, conversation: UUID, branch: int | str | None, at: tuple[int, int | None]
) -> tuple[int, int]:
    """A place, the last one of its turn where no sub-step was named."""
    turn, sub_step = at
    if sub_step is not None:
        return turn, sub_step
    newest = await store.history(conversation, branch=branch, limit=1, before=(turn + 1, 0))
    if not newest or newest[0].turn_index != turn:
        raise NotFoundError(f"{text!r}: there is no turn {turn}")
    return turn, newest[0].sub_step


async def find_branch(store: AsyncStore, text: str) -> Reference:
    """The same where no checkpoint can be meant."""
    found = await find(store, text)
    if found.at is not None:
        raise InvalidInputError(f"{text!r} names a checkpoint: name a conversation, or a branch as ID:branch")
    return found


async def find_only(store: AsyncStore, text: str) -> UUID:
    """The conversation that a text names, where no part of it can be meant."""
    found = await find(store, text)
    if found.branch is not None or found.at is not None:
        raise InvalidInputError(f"{text!r} names a part of a conversation: name all of it")
    return found.conversation


async def find_conversation(store: AsyncStore, reference: str) -> UUID:
    """The conversation that a reference without anything behind it means."""
    if reference != LAST:
        try:
            return await store.find(reference)
        except NotFoundError as error:
            raise NotFoundError(f"{error}: `turnkeep ls` lists them; of a UUID, 8 digits or more are needed") from error
    newest = await store.conversations(limit=1)
    if not newest:
        raise NotFoundError("there is no conversation yet")
    return newest[0].conversation_id


def readings(text: str) -> Iterator[tuple[str, int | str | None, tuple[int, int | None] | None]]:
    """The conversation, branch and checkpoint that a text may name, the longest id first."""
    yield text, None, None
    at: tuple[int, int | None] | None = None
    if checkpoint := _CHECKPOINT.fullmatch(text):
        text, at = checkpoint[1], (int(checkpoint[2]), None if checkpoint[3] is None else int(checkpoint[3]))
        yield text, None, at
    end = len(text)
    while (end := text.rfind(":", 0, end)) > 0:
        if branch := text[end + 1 :]:
            yield text[:end], int(branch) if _NUMBER.fullmatch(branch) else branch, at
