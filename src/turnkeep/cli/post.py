"""`turnkeep post`: a message for a conversation, and the reply to it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.options import Options, RedactOption, check_seconds, conversation_command
from turnkeep.cli.output import Exact, json_around
from turnkeep.cli.reference import BRANCH, LAST, find_branch
from turnkeep.cli.transcript import Part, read_message
from turnkeep.errors import ConflictError, InvalidInputError, NotFoundError
from turnkeep.model import conversation_uuid

if TYPE_CHECKING:
    from uuid import UUID

    from turnkeep.model import Posted, Reply
    from turnkeep.store import AsyncStore

_STDIN = "-"
_NOTHING = [Part("data", '{"content": ""}')]


@conversation_command
def post(
    options: Options,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="CONVERSATION",
            help=f"{BRANCH} With --agent, any text, which is its id.",
            show_default=False,
            autocompletion=complete,
        ),
    ],
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="The user's words; - reads them from stdin.", show_default=False)
    ],
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Accept it once, however often it is posted under this key."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="Make the conversation for this agent if it is new."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the reply, and print that.")] = False,
    within: Annotated[
        float | None,
        typer.Option("--within", metavar="SECONDS", help="Wait for the reply so long; exit with 4 if there is none."),
    ] = None,
    redact: RedactOption = None,
) -> None:
    """Post a message to a conversation, for a worker to answer.

    It is durable when its key is printed.
    The same message under the same --key is accepted once: after a failure, or to wait again, run the same command.
    """
    seconds = None if within is None else check_seconds("--within", within)
    words = _words(message)
    options = replace(options, redact=redact)

    async def run() -> None:
        async with opened(options) as store:
            conversation, branch = await _meant(store, reference, agent)
            if agent is not None:
                await _check_agent(store, conversation, agent)
            posted = await store.post(conversation, words, key=key, agent_id=agent, branch=branch)
            if not wait and seconds is None:
                _print_posted(options, posted, reference)
                return
            options.output.note(f"Posted under the key {posted.key}; waiting for the reply.", "dim")
            reply = await store.wait_reply(conversation, posted.key, seconds=seconds)
            print_reply(options, posted, reply)

    asyncio.run(run())


def _words(message: str) -> str:
    if message == _STDIN:
        try:
            message = sys.stdin.buffer.read().decode().removesuffix("\n") if sys.stdin is not None else ""
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"the message on stdin is no UTF-8 text: {error}") from None
    if not message.strip():
        raise InvalidInputError("the message is empty")
    return message


async def _meant(store: AsyncStore, reference: str, agent: str | None) -> tuple[str | UUID, int | str | None]:
    """What is posted to. A text that may name a new conversation is never taken for the beginning of another's id."""
    if agent is not None and reference != LAST:
        return reference, None
    try:
        found = await find_branch(store, reference)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; --agent NAME makes a new one") from error
    return reference if found.conversation == conversation_uuid(reference) else found.conversation, found.branch


async def _check_agent(store: AsyncStore, conversation: str | UUID, agent: str) -> None:
    """Refuse an agent that would not answer: a conversation keeps the one it was made for."""
    try:
        about = await store.describe(conversation)
    except NotFoundError:
        return
    if about.agent_id != agent:
        whose = "no agent" if about.agent_id is None else f"agent {about.agent_id!r}"
        raise ConflictError(
            f"conversation {about.external_id!r} is there, and of {whose}, not {agent!r}; nothing was posted: "
            "leave out --agent, or name another conversation"
        )


def _print_posted(options: Options, posted: Posted, reference: str) -> None:
    output = options.output
    if options.json:
        output.record(posted_record(posted))
        return
    output.text(posted.key)
    done = "Posted before, and not again" if posted.repeated else "Posted"
    output.note(f"{done}: conversation {posted.conversation_id}, branch {posted.branch}.", "dim")


def posted_record(posted: Posted) -> dict[str, Any]:
    """What was posted, for `--json`."""
    return {
        "conversation_id": posted.conversation_id,
        "branch": posted.branch,
        "key": posted.key,
        "repeated": posted.repeated,
    }


def print_reply(options: Options, posted: Posted, reply: Reply) -> None:
    """Print a reply: its content, or with `--json` the exact message and its place (G3)."""
    if not options.json:
        options.output.text(reply_text(reply.checkpoint.message_texts[-1]))
        return
    checkpoint = reply.checkpoint
    place = {"turn_index": checkpoint.turn_index, "sub_step": checkpoint.sub_step}
    record = posted_record(posted) | place
    options.output.exact(json_around(**record, message=Exact(checkpoint.message_texts[-1])))


def reply_text(message: str) -> str:
    """What a reply says, from its message's exact JSON text: its content, or the words by which the model refused."""
    parts = [part for part in read_message(message).parts if part.kind in ("text", "note", "data")]
    return "" if parts == _NOTHING else "\n".join(part.text for part in parts)
