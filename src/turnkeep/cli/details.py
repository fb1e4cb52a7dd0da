"""`turnkeep edit`, `end` and `reopen`: what is said of a conversation, and whether it goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from turnkeep.cli.ages import lasting, time_to_live
from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.options import Options, conversation_command
from turnkeep.cli.output import json_text
from turnkeep.cli.reference import CONVERSATION, find_only
from turnkeep.cli.text import one_line
from turnkeep.errors import ConflictError, InvalidInputError

if TYPE_CHECKING:
    from turnkeep.model import Conversation
    from turnkeep.store import AsyncStore

_TRIES = 5

ConversationArgument = Annotated[
    str, typer.Argument(metavar="CONVERSATION", help=CONVERSATION, show_default=False, autocompletion=complete)
]


@conversation_command
def edit(
    options: Options,
    reference: ConversationArgument,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help='Give it a title; "" takes the title away.')
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Add a tag; may be repeated.")] = None,
    untag: Annotated[
        list[str] | None, typer.Option("--untag", metavar="TAG", help="Remove a tag; may be repeated.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key of its metadata to JSON, or else to text."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="KEY", help="Remove a key of its metadata.")
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(
            "--ttl", metavar="AGE", help="Keep it so long after its newest write, as 30d; none: as its agent's."
        ),
    ] = None,
) -> None:
    """Change a conversation's title, tags, metadata and time to live."""
    changes: dict[str, Any] = {} if title is None else {"title": title or None}
    if ttl is not None:
        changes["ttl"] = time_to_live("--ttl", ttl)
    metadata = pairs("--set", set_ or []) | dict.fromkeys(unset or [])
    if metadata:
        changes["metadata"] = metadata
    if not changes and not tag and not untag:
        raise InvalidInputError("nothing to change: give --title, --tag, --untag, --set, --unset or --ttl")

    async def change(store: AsyncStore, conversation: UUID) -> Conversation:
        if not tag and not untag:
            return await store.update(conversation, **changes)
        for attempt in range(_TRIES):
            about = await store.describe(conversation)
            tags = [*(one for one in about.tags if one not in (untag or [])), *(tag or [])]
            try:
                return await store.update(conversation, tags=tags, version=about.version, **changes)
            except ConflictError:  # somebody else was faster
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError

    _print(options, _do(options, reference, change))


@conversation_command
def end(options: Options, reference: ConversationArgument) -> None:
    """End a conversation.

    It takes no more turns and messages, and stays readable.
    """
    _print(options, _do(options, reference, lambda store, conversation: store.end(conversation)))


@conversation_command
def reopen(options: Options, reference: ConversationArgument) -> None:
    """Take the end of a conversation back."""
    _print(options, _do(options, reference, lambda store, conversation: store.reopen(conversation)))


def pairs(option: str, given: Sequence[str]) -> dict[str, Any]:
    """The values of `KEY=VALUE`, each JSON or else text."""
    found: dict[str, Any] = {}
    for one in given:
        key, mark, text = one.partition("=")
        if not key or not mark:
            raise InvalidInputError(f"{option}: {one!r} is no KEY=VALUE")
        try:
            found[key] = json.loads(text)
        except (ValueError, RecursionError):
            found[key] = text
    return found


def _do(
    options: Options, reference: str, action: Callable[[AsyncStore, UUID], Awaitable[Conversation]]
) -> Conversation:
    async def run() -> Conversation:
        async with opened(options) as store:
            return await action(store, await find_only(store, reference))

    return asyncio.run(run())


def detail_rows(about: Conversation) -> list[tuple[str, str]]:
    """What is said of a conversation, by name, for people."""
    rows = []
    if about.title is not None:
        rows.append(("title", one_line(about.title)))
    if about.tenant is not None:
        rows.append(("tenant", one_line(about.tenant)))
    if about.tags:
        rows.append(("tags", one_line(", ".join(about.tags))))
    if about.metadata:
        rows.append(("metadata", one_line(json_text(about.metadata))))
    if about.parent is not None:
        rows.append(("child of", str(about.parent)))
    if about.ttl is not None:
        rows.append(("kept for", lasting(about.ttl)))
    if about.ended_at is not None:
        rows.append(("ended", f"{about.ended_at:%Y-%m-%d %H:%M:%S %Z}"))
    if about.archived_at is not None:
        rows.append(("archived", f"{about.archived_at:%Y-%m-%d %H:%M:%S %Z}"))
    return rows


def _print(options: Options, about: Conversation) -> None:
    output = options.output
    if options.json:
        output.record(asdict(about))
    elif not options.quiet:
        output.line((one_line(about.external_id), "bold"))
        for name, value in detail_rows(about) or [("status", "goes on")]:
            output.line((f"  {name:<9}", "dim"), value)
