"""`turnkeep ls`: conversations, or what was interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.details import pairs
from turnkeep.cli.options import Options, conversation_command
from turnkeep.cli.output import Column, Output
from turnkeep.cli.reference import find_only
from turnkeep.cli.text import ago, duration, short_ids, size
from turnkeep.errors import InvalidInputError

if TYPE_CHECKING:
    from turnkeep.model import ArchivedConversation, ConversationSummary

_PAGE = 1000
STATUS_STYLES = {"running": "green", "idle": "dim", "ended": "dim", "failed": "bold red"}
_STATUSES = ("idle", "open", "ready", "running", "waiting", "failed", "ended")
_OPTIONAL = ("title", "tags", "tenant", "lease")
_COLUMNS = (
    Column("id"),
    Column("conversation", flexible=True),
    Column("title", flexible=True),
    Column("tags", flexible=True),
    Column("tenant", flexible=True),
    Column("agent", flexible=True),
    Column("branch"),
    Column("status"),
    Column("turn", right=True),
    Column("last turn", right=True),
    Column("lease"),
)

_ARCHIVED_COLUMNS = (
    Column("id"),
    Column("conversation", flexible=True),
    Column("title", flexible=True),
    Column("agent", flexible=True),
    Column("messages", right=True),
    Column("unpacked", right=True),
    Column("size", right=True),
    Column("archived", right=True),
)


@conversation_command
def ls(
    options: Options,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only this agent's.")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", metavar="STATUS", help=f"Only in this status: {', '.join(_STATUSES)}; may be repeated."
        ),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Only those with this tag; may be repeated.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="Only those whose metadata have this, as JSON or else text."),
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option("--parent", metavar="ID", help="Only children of this conversation.", autocompletion=complete),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")] = 50,
    interrupted: Annotated[
        bool,
        typer.Option("--interrupted", help="Branches in the middle of a turn that no live lease holds."),
    ] = False,
    archived: Annotated[bool, typer.Option("--archived", help="What is in the archive, and how large it is.")] = False,
) -> None:
    """List conversations, those with the newest turns first."""
    filters = {
        "tags": tag or None,
        "metadata": pairs("--where", where) if where else None,
        "status": status or None,
    }
    if interrupted and (parent is not None or any(filters.values())):
        raise InvalidInputError("--interrupted goes with --agent and --tenant only")
    if archived:
        if interrupted or parent is not None or filters.pop("status"):
            raise InvalidInputError("--archived goes with --agent, --tag, --where and --tenant only")
        _print_archived(options, asyncio.run(_read_archived(options, agent, limit, filters)), limit)
        return
    found = asyncio.run(_read(options, agent, limit, interrupted, parent, filters))
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
        such = " that this fits" if parent is not None or any(filters.values()) else ""
        output.note(f"Nothing is interrupted{whose}." if interrupted else f"There are no conversations{whose}{such}.")


async def _read(
    options: Options, agent: str | None, limit: int, interrupted: bool, parent: str | None, filters: dict[str, Any]
) -> list[ConversationSummary]:
    """One more than is asked for, where there is one."""
    found: list[ConversationSummary] = []
    async with opened(options) as store:
        if interrupted:
            return await store.interrupted(agent_id=agent)
        above = None if parent is None else await find_only(store, parent)
        while len(found) <= limit:
            asked = min(limit + 1 - len(found), _PAGE)
            last = found[-1] if found else None
            page = await store.conversations(agent_id=agent, parent=above, limit=asked, before=last, **filters)
            found += page
            if len(page) < asked:
                break
    return found


async def _read_archived(
    options: Options, agent: str | None, limit: int, filters: dict[str, Any]
) -> list[ArchivedConversation]:
    """One more than is asked for, where there is one."""
    found: list[ArchivedConversation] = []
    async with opened(options) as store:
        while len(found) <= limit:
            asked = min(limit + 1 - len(found), _PAGE)
            page = await store.archived(agent_id=agent, limit=asked, before=found[-1] if found else None, **filters)
            found += page
            if len(page) < asked:
                break
    return found


def _print_archived(options: Options, found: Sequence[ArchivedConversation], limit: int) -> None:
    output, now = options.output, datetime.now(UTC)
    if options.json:
        for one in found[:limit]:
            output.record(asdict(one))
    elif found:
        ids = short_ids([one.conversation_id for one in found])
        rows = [
            (
                (short, "cyan"),
                "-" if one.external_id == str(one.conversation_id) else one.external_id,
                one.title or "-",
                one.agent_id or "-",
                f"{one.messages:,}",
                size(one.raw_bytes),
                size(one.bytes),
                ago(one.archived_at, now),
            )
            for short, one in zip(ids, found[:limit], strict=False)
        ]
        output.table(_ARCHIVED_COLUMNS, rows)
    if len(found) > limit:
        output.note(f"There are more than {limit:,}: ask with a larger --limit.")
    if not found:
        output.note("Nothing that this fits is in the archive.")


def _print(output: Output, found: Sequence[ConversationSummary]) -> None:
    now = datetime.now(UTC)
    ids = short_ids([one.conversation_id for one in found])
    cells = {
        column.title: [_cell(column.title, one, short, now) for short, one in zip(ids, found, strict=True)]
        for column in _COLUMNS
    }
    # What nobody has is left out.
    shown = [column for column in _COLUMNS if column.title not in _OPTIONAL or any(cells[column.title])]
    output.table(shown, [[cells[column.title][row] or "-" for column in shown] for row in range(len(found))])


def _cell(title: str, one: ConversationSummary, short: str, now: datetime) -> str | tuple[str, str]:
    begun = one.turn_index >= 0
    match title:
        case "id":
            return short, "cyan"
        case "conversation":
            return "" if one.external_id == str(one.conversation_id) else one.external_id
        case "title":
            return one.title or ""
        case "tags":
            return ", ".join(one.tags)
        case "tenant":
            return one.tenant or ""
        case "agent":
            return one.agent_id or ""
        case "branch":
            return branch_label(one.branch, one.branch_name)
        case "status":
            return one.status, STATUS_STYLES.get(one.status, "yellow")
        case "turn":
            return f"{one.turn_index}.{one.sub_step}" if begun else ""
        case "last turn":
            return ago(one.turn_started_at, now) if begun else ""
        case _:
            return _lease(one.lease_until, now)


def _lease(until: datetime | None, now: datetime) -> str:
    if until is None:
        return ""
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
