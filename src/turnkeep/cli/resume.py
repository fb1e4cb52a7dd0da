"""`turnkeep resume`: what has stopped, given to the workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.options import Options, conversation_command
from turnkeep.cli.output import Column, Output
from turnkeep.cli.reference import BRANCH, find_branch
from turnkeep.cli.text import count, one_line
from turnkeep.errors import InvalidInputError, LeaseHeldError, NotFoundError

if TYPE_CHECKING:
    from turnkeep.model import ConversationSummary
    from turnkeep.store import AsyncStore

_PAGE = 1000
_DONE, _IDLE, _RUNNING, _WAITING = "resumed", "nothing left to do", "running", "with the workers"
_STYLES = {_DONE: "green", _RUNNING: "yellow"}
_COLUMNS = (
    Column("conversation", flexible=True),
    Column("agent", flexible=True),
    Column("branch"),
    Column("turn", right=True),
    Column("was"),
    Column("now"),
)


@dataclass(frozen=True)
class Resumed:
    """A branch that was asked for, and what came of it: `outcome` is in words, `resumed` says whether it changed."""

    conversation_id: UUID
    external_id: str
    agent_id: str | None
    branch: int
    turn_index: int
    sub_step: int
    status: str
    resumed: bool
    outcome: str


@conversation_command
def resume(
    options: Options,
    reference: Annotated[
        str | None,
        typer.Argument(metavar="CONVERSATION", help=BRANCH, show_default=False, autocompletion=complete),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every turn that has failed or was left open, of all conversations.")
    ] = False,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="With --all: this agent's.")] = None,
) -> None:
    """Let workers go on with what has stopped.

    A branch has stopped when its turn has failed or waits, was left open outside any worker, or was forked off. What a
    worker has left behind needs no resuming: another takes it up when the lease has expired.
    """
    if (reference is None) is not every:
        raise InvalidInputError("name a conversation, or ask for --all; not both")
    if agent is not None and not every:
        raise InvalidInputError("--agent goes with --all")
    if reference is not None:
        _print_one(options, asyncio.run(_resume_one(options, reference)))
    else:
        _print_all(options, asyncio.run(_resume_all(options, agent)), agent)


async def _resume_one(options: Options, reference: str) -> Resumed:
    async with opened(options) as store:
        found = await find_branch(store, reference)
        before = await store.restore(found.conversation, branch=found.branch)
        done = await store.resume(found.conversation, branch=before.branch)
        return Resumed(
            found.conversation,
            before.external_id,
            before.agent_id,
            before.branch,
            before.turn_index,
            before.sub_step,
            before.status,
            done,
            _DONE if done else _IDLE,
        )


async def _resume_all(options: Options, agent: str | None) -> list[Resumed]:
    async with opened(options) as store:
        return [await _resume_listed(store, one) async for one in _stopped(store, agent)]


async def _stopped(store: AsyncStore, agent: str | None) -> AsyncIterator[ConversationSummary]:
    """What was left open, then what has failed on the current branch of its conversation."""
    for one in await store.interrupted(agent_id=agent):
        yield one
    last: ConversationSummary | None = None
    while True:
        page = await store.conversations(agent_id=agent, limit=_PAGE, before=last)
        for one in page:
            if one.status == "failed":
                yield one
        if len(page) < _PAGE:
            return
        last = page[-1]


async def _resume_listed(store: AsyncStore, one: ConversationSummary) -> Resumed:
    outcome = _WAITING
    if one.status not in ("ready", "running"):  # these are taken up without being asked for
        try:
            outcome = _DONE if await store.resume(one.conversation_id, branch=one.branch) else _IDLE
        except LeaseHeldError:
            outcome = _RUNNING
        except NotFoundError:
            outcome = _IDLE
    return Resumed(
        one.conversation_id,
        one.external_id,
        one.agent_id,
        one.branch,
        one.turn_index,
        one.sub_step,
        one.status,
        outcome == _DONE,
        outcome,
    )


def _print_one(options: Options, one: Resumed) -> None:
    output = options.output
    if options.json:
        output.record(asdict(one))
    elif not options.quiet:
        words = f"branch {one.branch} is ready for a worker" if one.resumed else "nothing is left to do"
        output.text(f"{one_line(one.external_id)}: {words}.")
    if one.resumed and one.agent_id is None:
        output.note("The conversation has no agent, by which workers know what is theirs: none takes it up.")


def _print_all(options: Options, found: list[Resumed], agent: str | None) -> None:
    output = options.output
    if options.json:
        for one in found:
            output.record(asdict(one))
    elif found and not options.quiet:
        _print_table(output, found)
    whose = "" if agent is None else f" of agent {agent!r}"
    if not found:
        output.note(f"Nothing has failed or was left open{whose}.")
    else:
        output.note(f"{count(sum(one.resumed for one in found), 'branch', 'branches')} resumed{whose}.")


def _print_table(output: Output, found: list[Resumed]) -> None:
    output.table(
        _COLUMNS,
        [
            (
                one.external_id,
                one.agent_id or "-",
                str(one.branch),
                f"{one.turn_index}.{one.sub_step}",
                one.status,
                (one.outcome, _STYLES.get(one.outcome, "dim")),
            )
            for one in found
        ],
    )
