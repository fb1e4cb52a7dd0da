"""`turnkeep prune`: what is old, removed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.erase import counts as erased_counts
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options, command, conversation_command
from turnkeep.cli.output import Column
from turnkeep.cli.reference import CONVERSATION, find_only
from turnkeep.cli.text import count, duration, one_line, size
from turnkeep.errors import InvalidInputError

if TYPE_CHECKING:
    from turnkeep.model import Expired, Pruned
    from turnkeep.store._async_prune import Progress

_AGE = re.compile(r"(\d+(?:\.\d+)?)(min|h|d|w)")
_UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_LONGEST = timedelta(days=365_000)


class Keep(StrEnum):
    """What stays of what is old."""

    LAST_PER_TURN = "last-per-turn"
    HEADS = "heads"


@conversation_command
def prune(
    options: Options,
    references: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONVERSATION",
            help=f"{CONVERSATION} All of them if none is given.",
            show_default=False,
            autocompletion=complete,
        ),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Only what is older: 12h, 30d or 4w.")
    ] = None,
    keep: Annotated[
        Keep, typer.Option("--keep", help="Of what is old, the last sub-step of each turn stays, or only the heads.")
    ] = Keep.LAST_PER_TURN,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Only conversations of this agent.")
    ] = None,
    expired: Annotated[
        bool, typer.Option("--expired", help="Erase the conversations whose time to live is over, instead.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
) -> Exit:
    """Remove old checkpoints, and messages that none holds any more.

    Never a branch's head, a place where a branch was forked, or anything of an open turn. It works in small steps
    beside what is written, and can be stopped at any time.
    """
    if expired:
        if references or older_than or agent is not None:
            raise InvalidInputError("--expired: it takes no conversations, no --older-than and no --agent")
        return _expire(options, dry_run=dry_run)
    if older_than is None:
        raise InvalidInputError("--older-than: needed, such as --older-than 30d")
    if references and agent is not None:
        raise InvalidInputError("--agent: it chooses among all conversations; leave it out where some are named")
    wanted = {"keep": keep.value, "older_than": age("--older-than", older_than), "dry_run": dry_run}
    pruned = asyncio.run(_run(options, references or [], agent, wanted))
    if options.json:
        options.output.record({**asdict(pruned), "dry_run": dry_run})
    elif not options.quiet:
        options.output.text(_in_words(pruned, dry_run=dry_run))
    if pruned.held_back:
        options.output.note(
            f"{count(pruned.held_back, 'checkpoint')} stayed because no document has been made of them yet: "
            "`turnkeep embed` makes them."
        )
    if pruned.busy:
        options.output.note(
            f"{count(pruned.busy, 'conversation')} had a branch that somebody kept locked: prune again later."
        )
    return Exit.OK


def _expire(options: Options, *, dry_run: bool) -> Exit:
    async def run() -> Expired:
        async with opened(options) as store:
            return await store.expire(dry_run=dry_run)

    found = asyncio.run(run())
    if options.json:
        options.output.record({**asdict(found.erased), "busy": found.busy, "dry_run": dry_run})
    elif not options.quiet:
        what = count(found.erased.conversations, "conversation")
        options.output.text(f"Would erase {what}." if dry_run else f"Erased {erased_counts(found.erased)}.")
    if found.busy:
        options.output.note(
            f"{count(found.busy, 'conversation')} had a branch that somebody kept locked: try again later."
        )
    return Exit.OK


@command
def retention(
    options: Options,
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="An agent; all that have one if none is given.")
    ] = None,
    ttl: Annotated[str | None, typer.Argument(metavar="TTL", help="How long, such as 30d; none: for ever.")] = None,
) -> None:
    """Say, or set, how long the conversations of an agent are kept after their newest write.

    A conversation's own time goes before it: `turnkeep edit --ttl`. Those whose time is over are erased by
    `turnkeep prune --expired`.
    """
    found = asyncio.run(_retention(options, agent, ttl))
    if options.json:
        for name, kept in found.items():
            options.output.record({"agent_id": name, "ttl_seconds": kept and kept.total_seconds()})
    elif found:
        columns = (Column("agent", flexible=True), Column("kept for", right=True))
        options.output.table(columns, [(one_line(name), lasting(kept)) for name, kept in found.items()])
    elif not options.quiet:
        options.output.note("No agent has a time to live: conversations are kept for ever unless they have their own.")


async def _retention(options: Options, agent: str | None, ttl: str | None) -> dict[str, timedelta | None]:
    wanted = None if ttl is None else time_to_live("TTL", ttl)
    async with opened(options) as store:
        if agent is not None and ttl is not None:
            await store.set_retention(agent, wanted)
        found = await store.retention()
    return {**found} if agent is None else {agent: found.get(agent)}


def time_to_live(option: str, text: str) -> timedelta | None:
    """A length of time such as 30d, or `none`."""
    return None if text == "none" else age(option, text)


def lasting(kept: timedelta | None) -> str:
    """A time to live in words."""
    if kept is None:
        return "for ever"
    exact = kept.total_seconds() % 3600 == 0
    return duration(kept) if exact else str(kept)


async def _run(options: Options, references: list[str], agent: str | None, wanted: dict[str, Any]) -> Pruned:
    from turnkeep.model import Pruned

    async with opened(options) as store:
        found = [await find_only(store, reference) for reference in references]
        with bar(options, "pruning") as progress:
            if not found:
                return await store.prune_all(**wanted, agent_id=agent, progress=progress)
            total = Pruned()
            for done, conversation in enumerate(dict.fromkeys(found), 1):
                total += await store.prune(conversation, **wanted)
                progress(done, len(found), total)
            return total


@contextmanager
def bar(options: Options, what: str) -> Iterator[Progress]:
    """A bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=options.no_color, highlight=False)
    shown = console.is_terminal and not options.quiet and not options.json
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[counts]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task(what, total=None, counts="")

        def tell(done: int, all_: int, pruned: Pruned) -> None:
            counts = f"{pruned.checkpoints:,} checkpoints, {size(pruned.bytes)}"
            progress.update(task, completed=done, total=all_, counts=counts)

        yield tell


def age(option: str, text: str) -> timedelta:
    """A length of time such as 30d."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise InvalidInputError(f"{option}: {text!r} is no length of time: a number and min, h, d or w, such as 30d")
    number, unit = float(found[1]), _UNITS[found[2]]
    if number * unit.total_seconds() > _LONGEST.total_seconds():
        raise InvalidInputError(f"{option}: {text!r} is longer than a thousand years")
    return number * unit


def _in_words(pruned: Pruned, *, dry_run: bool) -> str:
    counts = f"{count(pruned.checkpoints, 'checkpoint')} and {count(pruned.messages, 'message')} ({size(pruned.bytes)})"
    where = f"of {count(pruned.conversations, 'conversation')}"
    return f"Would remove {counts} {where}." if dry_run else f"Removed {counts} {where}."
