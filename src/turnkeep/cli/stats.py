"""`turnkeep stats`: how much there is, and what is under way."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeep.cli.database import opened
from turnkeep.cli.options import Options, command
from turnkeep.cli.output import Column, Output
from turnkeep.cli.text import count, duration, one_line, size

if TYPE_CHECKING:
    from turnkeep.store._stats import Number, Stats

_TABLE = (Column("table"), Column("rows on disk", right=True), Column("indexes", right=True))
_AGENTS = (Column("agent", flexible=True), Column("conversations", right=True))


@command
def stats(
    options: Options,
    exact: Annotated[bool, typer.Option("--exact", help="Count tables of over a million rows too.")] = False,
) -> None:
    """Count what there is, and what is under way.

    Tables of over a million rows are estimated, and then marked with ~.
    """
    found = asyncio.run(_read(options, exact))
    if options.json:
        options.output.record(_record(found))
    else:
        _print(options.output, found, datetime.now(UTC))


async def _read(options: Options, exact: bool) -> Stats:
    from turnkeep.store._stats import read_stats

    async with opened(options) as store:
        return await read_stats(store, exact=exact)


def _record(found: Stats) -> dict[str, object]:
    return {
        **asdict(found),
        "statuses": {name: asdict(number) for name, number in found.statuses},
        "agents": [{"agent_id": name, **asdict(number)} for name, number in found.agents],
    }


def _print(output: Output, found: Stats, now: datetime) -> None:
    def row(name: str, *parts: str | tuple[str, str]) -> None:
        output.line((f"{name:<14}", "dim"), *parts)

    for name in ("conversations", "checkpoints", "messages"):
        row(name, _shown(getattr(found, name)))
    row("branches", ", ".join(f"{_shown(number)} {name}" for name, number in found.statuses) or "0")
    row("running", _running(found, now))
    if found.expired_leases:
        row(
            "", (f"{count(found.expired_leases, 'lease')} expired, {_since(found.oldest_expired_lease, now)}", "yellow")
        )
    waiting = count(found.waiting_requests, "request")
    row("waiting", f"{waiting}, the oldest {_since(found.oldest_request, now)}" if found.oldest_request else waiting)
    calls = f", {found.uncertain_calls:,} of which may have run" if found.uncertain_calls else ""
    row("pending", f"{count(found.pending_calls, 'tool call')} without a result{calls}")
    if found.agents:
        output.line()
        output.table(_AGENTS, [(one_line(name or "-"), _shown(number)) for name, number in found.agents])
    output.line()
    rows = [(one.name, size(one.table_bytes), size(one.index_bytes)) for one in found.tables]
    sums = [sum(getattr(one, name) for one in found.tables) for name in ("table_bytes", "index_bytes")]
    output.table(_TABLE, [*rows, ("all", size(sums[0]), size(sums[1]))])


def _running(found: Stats, now: datetime) -> str:
    if found.oldest_live_turn is None:
        return "no branch"
    branches = count(found.live_leases, "branch", "branches")
    return f"{branches} under a live lease, the oldest turn {_since(found.oldest_live_turn, now)}"


def _since(then: datetime | None, now: datetime) -> str:
    return "" if then is None else f"for {duration(now - then)}"


def _shown(number: Number) -> str:
    return f"{'' if number.exact else '~'}{number.value:,}"
