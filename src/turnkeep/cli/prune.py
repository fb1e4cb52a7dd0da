"""`turnkeep prune`: what is old, removed."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeep.cli.ages import age, lasting, time_to_live
from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.erase import counts as erased_counts
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options, command, conversation_command
from turnkeep.cli.output import Column
from turnkeep.cli.progress import bar
from turnkeep.cli.reference import CONVERSATION, find_only
from turnkeep.cli.text import count, one_line, size
from turnkeep.errors import InvalidInputError

if TYPE_CHECKING:
    from turnkeep.model import Expired, Pruned


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


async def _run(options: Options, references: list[str], agent: str | None, wanted: dict[str, Any]) -> Pruned:
    from turnkeep.model import Pruned

    async with opened(options) as store:
        found = [await find_only(store, reference) for reference in references]
        with bar(options, "pruning", len(found) or None) as tell:
            if not found:
                return await store.prune_all(
                    **wanted, agent_id=agent, progress=lambda done, all_, pruned: tell(done, pruned.bytes, all_)
                )
            total = Pruned()
            for done, conversation in enumerate(dict.fromkeys(found), 1):
                total += await store.prune(conversation, **wanted)
                tell(done, total.bytes)
            return total


def _in_words(pruned: Pruned, *, dry_run: bool) -> str:
    counts = f"{count(pruned.checkpoints, 'checkpoint')} and {count(pruned.messages, 'message')} ({size(pruned.bytes)})"
    where = f"of {count(pruned.conversations, 'conversation')}"
    return f"Would remove {counts} {where}." if dry_run else f"Removed {counts} {where}."
