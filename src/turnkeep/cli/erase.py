"""`turnkeep erase`: a conversation forgotten for good."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options, conversation_command
from turnkeep.cli.reference import CONVERSATION, find_only
from turnkeep.cli.text import count, one_line
from turnkeep.errors import InvalidInputError

if TYPE_CHECKING:
    from turnkeep.model import Erased
    from turnkeep.store._erasure import Erasure


@conversation_command
def erase(
    options: Options,
    reference: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help=CONVERSATION, show_default=False, autocompletion=complete)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Erase without asking.")] = False,
) -> Exit:
    """Erase a conversation for good.

    Every message, checkpoint and request of it and of its child conversations goes. Says what there is and asks.
    Where nobody can be asked, --yes is needed. Backups, replicas that lag and the server's log keep what they have.
    """
    if not yes:
        found = asyncio.run(_look(options, reference))
        if options.json or sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
            raise InvalidInputError(f"{_in_words(found)}: nothing was erased; say --yes to erase it")
        options.output.note(f"This erases {_in_words(found)}. It can't be undone.", "bold yellow")
        if not _confirmed():
            options.output.note("Nothing was erased.")
            return Exit.FAILURE
        reference = str(found.conversation_id)  # what was asked about, whatever @last is now
    erased = asyncio.run(_erase(options, reference))
    if options.json:
        options.output.record(asdict(erased))
    elif not options.quiet:
        options.output.text(f"Erased {counts(erased)}.")
    return Exit.OK


async def _look(options: Options, reference: str) -> Erasure:
    from turnkeep.store._erasure import look

    async with opened(options) as store:
        return await look(store, await find_only(store, reference))


async def _erase(options: Options, reference: str) -> Erased:
    async with opened(options) as store:
        return await store.erase(await find_only(store, reference))


def _confirmed() -> bool:
    print("Erase it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _in_words(found: Erasure) -> str:
    children = f" and {count(len(found.children), 'child conversation')}" if found.children else ""
    named = (
        f" ({', '.join(one_line(child) for child in found.children[:5])}{', ...' if len(found.children) > 5 else ''})"
    )
    return f"{one_line(found.external_id)}{children}{named if found.children else ''}: {counts(found.counts)}"


def counts(erased: Erased) -> str:
    """What was erased, in words."""
    return ", ".join(
        (
            count(erased.conversations, "conversation"),
            count(erased.branches, "branch", "branches"),
            count(erased.checkpoints, "checkpoint"),
            count(erased.messages, "message"),
            count(erased.requests, "request"),
        )
    )
