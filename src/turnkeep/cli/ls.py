"""`turnkeep ls`: conversations, or what was interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeep.cli.database import opened
from turnkeep.cli.options import Options, command
from turnkeep.cli.output import Column, Output
from turnkeep.cli.text import ago, duration, short_ids

if TYPE_CHECKING:
    from turnkeep.model import ConversationSummary

_PAGE = 1000
_STYLES = {"running": "green", "idle": "dim", "ended": "dim", "failed": "bold red"}
_COLUMNS = (
    Column("id"),
    Column("conversation", flexible=True),
    Column("agent", flexible=True),
    Column("branch"),
    Column("status"),
    Column("turn", right=True),
    Column("last turn", right=True),
    Column("lease"),
)


@command
def ls(
    options: Options,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only this agent's.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")] = 50,
    interrupted: Annotated[
        bool,
        typer.Option("--interrupted", help="Branches in the middle of a turn that no live lease holds."),
    ] = False,
) -> None:
    """List conversations, those with the newest turns first."""
    found = asyncio.run(_read(options, agent, limit, interrupted))
    output = options.output
    if options.json:
        for one in found[:limit]:
            output.record(asdict(one))
    elif found:
        _print(output, found[:limit])
    if len(found) > limit:
        output.note(f"There are more than {limit:,}: ask with a larger --limit.")
    if not found:
        whose = "" if agent is None else f" of agent {agent!r}"
        output.note(f"Nothing is interrupted{whose}." if interrupted else f"There are no conversations{whose}.")


async def _read(options: Options, agent: str | None, limit: int, interrupted: bool) -> list[ConversationSummary]:
    """One more than is asked for, where there is one."""
    found: list[ConversationSummary] = []
    async with opened(options) as store:
        if interrupted:
            return await store.interrupted(agent_id=agent)
        while len(found) <= limit:
            asked = min(limit + 1 - len(found), _PAGE)
            page = await store.conversations(agent_id=agent, limit=asked, before=found[-1] if found else None)
            found += page
            if len(page) < asked:
                break
    return found


def _print(output: Output, found: Sequence[ConversationSummary]) -> None:
    now = datetime.now(UTC)
    ids = short_ids([one.conversation_id for one in found])
    rows = []
    for short, one in zip(ids, found, strict=True):
        rows.append(
            (
                (short, "cyan"),
                "-" if one.external_id == str(one.conversation_id) else one.external_id,
                one.agent_id or "-",
                branch_label(one.branch, one.branch_name),
                (one.status, _STYLES.get(one.status, "yellow")),
                "-" if one.turn_index < 0 else f"{one.turn_index}.{one.sub_step}",
                "-" if one.turn_index < 0 else ago(one.turn_started_at, now),
                _lease(one.lease_until, now),
            )
        )
    output.table(_COLUMNS, rows)


def _lease(until: datetime | None, now: datetime) -> str:
    if until is None:
        return "-"
    return f"{duration(until - now)} left" if until > now else "expired"


def branch_label(number: int, name: str | None) -> str:
    """A branch's number, which names it on the command line, and its name if it has one of its own."""
    return f"{number}" if name in (None, "main") else f"{number} {name}"


def lease_label(owner: str | None, until: datetime | None, now: datetime) -> str:
    """Who holds a lease and for how long, or since when it has expired."""
    if until is None:
        return "-"
    state = f"{duration(until - now)} left" if until > now else f"expired {ago(until, now)}"
    return f"{owner or 'unnamed'}, {state}"
