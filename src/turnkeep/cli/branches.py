"""`turnkeep fork`, `switch` and `branch delete`: the lines of turns of a conversation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.options import Options, conversation_command
from turnkeep.cli.reference import BRANCH, CHECKPOINT, find, find_branch
from turnkeep.cli.text import one_line
from turnkeep.errors import InvalidInputError

if TYPE_CHECKING:
    from turnkeep.store import AsyncBranch, AsyncStore

app = typer.Typer(help="Delete a branch of a conversation.", no_args_is_help=False)

BranchArgument = Annotated[
    str, typer.Argument(metavar="ID:BRANCH", help=BRANCH, show_default=False, autocompletion=complete)
]


@conversation_command
def fork(
    options: Options,
    reference: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help=CHECKPOINT, show_default=False, autocompletion=complete)
    ],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Give the new branch a name.")] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="NEW-ID", help="Copy the history into a new conversation of this id instead."),
    ] = None,
) -> None:
    """Start another line of turns at a checkpoint.

    Prints its name: ID:branch, or the new conversation's id. Nothing is copied, and the current branch stays the
    current one. With --into the history up to that point becomes a conversation of its own.
    """

    async def run() -> AsyncBranch:
        async with opened(options) as store:
            found = await find(store, reference)
            return await store.fork(found.conversation, at=found.at, branch=found.branch, name=name, into=into)

    made = asyncio.run(run())
    output = options.output
    if options.json:
        names = ("conversation_id", "external_id", "branch", "turn_index", "sub_step")
        output.record({**{key: getattr(made, key) for key in names}, "name": name})
        return
    output.text(made.external_id if into is not None else f"{made.external_id}:{made.branch}")
    place = f"turn {made.turn_index}.{made.sub_step}"
    if into is not None:
        output.note(f"A conversation with the history up to {place}.", "dim")
    else:
        output.note(f"A branch that starts at {place}; `turnkeep switch` makes it the current one.", "dim")


@conversation_command
def switch(options: Options, reference: BranchArgument) -> None:
    """Make a branch the current one.

    That is the one that is shown, posted to and resumed where no branch is named.
    """

    async def run() -> tuple[str, int]:
        async with opened(options) as store:
            conversation, branch = await _branch(store, reference)
            await store.switch(conversation, branch)
            about = await store.describe(conversation)
            return about.external_id, about.current_branch

    external_id, branch = asyncio.run(run())
    if options.json:
        options.output.record({"external_id": external_id, "current_branch": branch})
    elif not options.quiet:
        options.output.text(f"{one_line(external_id)}: branch {branch} is the current one.")


@app.command("delete")
@conversation_command
def delete(options: Options, reference: BranchArgument) -> None:
    """Delete a branch, with what is its own.

    The current branch and those that others were forked from are refused.
    """

    async def run() -> bool:
        async with opened(options) as store:
            return await store.delete_branch(*await _branch(store, reference))

    deleted = asyncio.run(run())
    if options.json:
        options.output.record({"deleted": deleted})
    elif not options.quiet:
        options.output.text("Deleted." if deleted else "It was deleted before.")


async def _branch(store: AsyncStore, reference: str) -> tuple[UUID, int | str]:
    """The conversation and the branch that a reference names."""
    found = await find_branch(store, reference)
    if found.branch is None:
        raise InvalidInputError(f"{reference!r} names no branch: write it as ID:branch")
    return found.conversation, found.branch
