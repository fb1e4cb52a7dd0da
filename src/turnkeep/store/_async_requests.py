"""Requests: messages accepted durably before a turn takes them up, and the replies to them."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Any, cast

from turnkeep import jsontext
from turnkeep.errors import (
    ConversationEndedError,
    InvalidInputError,
    KeyReusedError,
    NotFoundError,
    RedactionError,
    ReplyTimeoutError,
    TurnFailedError,
)
from turnkeep.model import FINAL_PHASE, Posted, Reply
from turnkeep.redaction import Redact
from turnkeep.store import _arguments, _redacting, _writes
from turnkeep.store._async_database import AsyncDatabase
from turnkeep.store._async_head import read_checkpoints
from turnkeep.store._async_waiting import sleep
from turnkeep.store._writes import UNCHANGED, Message

Body = str | Message | Sequence[Message]
"""What is posted: a user's words, a message, or several."""

_STOPPED = {"failed": "has failed", "waiting": "waits"}
_FIRST_LOOK = 0.02
_LONGEST_LOOK = 0.5


def encoded(message: Body, redact: Redact | None = None) -> tuple[str, bytes]:
    """The text of a request's body, and the digest that tells whether two are the same."""
    if isinstance(message, str):
        spoken: dict[str, Any] = _redacting.plain(redact, {"role": "user", "content": message}, "message")
        if not isinstance(spoken, dict):
            made = type(spoken).__name__
            raise RedactionError(f"message: the redaction hook made a {made} of it, not an object; nothing was stored")
        digest = jsontext.digest_list([spoken], "message")
        spoken["metadata"] = spoken.get("metadata") or {
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds")
        }
        return jsontext.encode(spoken, "message"), digest
    messages: list[Message] = [*message] if isinstance(message, list | tuple) else [cast("Message", message)]
    if not messages:
        raise InvalidInputError("message: a request holds at least one message")
    messages = [*(_redacting.values(redact, messages, "message") or ())]
    texts = _writes.content(messages, None, None, UNCHANGED).messages
    return (texts[0] if len(texts) == 1 else f"[{','.join(texts)}]"), jsontext.digest_list(messages, "message")


async def post(
    database: AsyncDatabase, conversation_id: uuid.UUID, name: str, message: Body, key: str | None, branch: int | None
) -> Posted:
    """Put a request behind those that wait."""
    body, digest = encoded(message, database.redact)
    key = str(uuid.uuid4()) if key is None else _arguments.check_key(key)
    ((outcome, number),) = await database.fetch(
        "post",
        {
            "conversation": conversation_id,
            "branch": branch,
            "key": key,
            "body": body,
            "digest": digest,
        },
    )
    if outcome == "not_found":
        which = "" if branch is None else f" with a branch {branch}"
        raise NotFoundError(
            f"no conversation {name!r}{which}: name its agent_id, and it is made; or make it with store.conversation"
        )
    if outcome == "key_reused":
        raise KeyReusedError(f"conversation {name!r}: key {key!r} came before with another body")
    return Posted(conversation_id, number, key, outcome == "repeated")


async def _progress(database: AsyncDatabase, conversation_id: uuid.UUID, key: str) -> list[tuple[Any, ...]]:
    return await database.fetch("request", {"conversation": conversation_id, "key": key})


async def reply(database: AsyncDatabase, conversation_id: uuid.UUID, name: str, key: str) -> Reply | None:
    """The reply to a request, or None as long as there is none."""
    rows = await _progress(database, conversation_id, _arguments.check_key(key))
    if not rows:
        raise NotFoundError(f"conversation {name!r} has no request under the key {key!r}")
    ((branch, turn, sub_step, phase, status, at_turn, failure),) = rows
    if phase == FINAL_PHASE:
        found = await read_checkpoints(database, [(conversation_id, branch, turn, sub_step)])
        if 1 not in found:
            raise NotFoundError(f"conversation {name!r} is not there any more")
        return Reply(key, found[1])
    if status in _STOPPED:
        why = json.loads(failure) if failure else {}
        raise TurnFailedError(
            f"conversation {name!r}, branch {branch}: turn {at_turn} {_STOPPED[status]}: "
            f"{why.get('message', 'no reason is known')}. Nothing is lost: "
            f"`turnkeep resume {name}` lets it go on",
            why,
        )
    if status == "ended":
        raise ConversationEndedError(
            f"conversation {name!r} has ended before the reply to {key!r}: store.reopen lets it go on"
        )
    return None


async def _whereabouts(database: AsyncDatabase, conversation_id: uuid.UUID, key: str) -> str:
    """How far a request has come, in words."""
    rows = await _progress(database, conversation_id, key)
    if not rows:
        return "unless it has been erased"
    ((_, turn, _, _, status, *_),) = rows
    if turn is None:
        return f"and nobody has taken it up (its branch is {status}): see that a worker serves the conversation's agent"
    return f"and turn {turn} is at it (its branch is {status})"


async def wait_reply(
    database: AsyncDatabase, conversation_id: uuid.UUID, name: str, key: str, seconds: float | None
) -> Reply:
    """Look again and again, less and less often, until there is a reply."""
    deadline = None if seconds is None else monotonic() + _arguments.timeout_seconds(seconds)
    pause = _FIRST_LOOK
    while True:
        if (found := await reply(database, conversation_id, name, key)) is not None:
            return found
        if deadline is not None and monotonic() >= deadline:
            raise ReplyTimeoutError(
                f"conversation {name!r}: no reply to {key!r} within {seconds:g} s. The request is kept, "
                f"{await _whereabouts(database, conversation_id, key)}: wait again"
            )
        left = _LONGEST_LOOK if deadline is None else max(deadline - monotonic(), 0)
        await sleep(min(pause * random.uniform(0.5, 1.0), left))
        pause = min(pause * 1.5, _LONGEST_LOOK)
