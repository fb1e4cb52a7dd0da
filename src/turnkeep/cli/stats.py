"""`turnkeep stats`: how much there is, and what is under way."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeep.cli.database import opened
from turnkeep.cli.options import Options, check_seconds, command
from turnkeep.cli.output import Column, Output
from turnkeep.cli.text import ago, count, duration, one_line, size
from turnkeep.errors import InvalidInputError

if TYPE_CHECKING:
    from turnkeep.store._save_times import SaveTimes
    from turnkeep.store._stats import DocumentLag, Number, Rates, Stats, TableSize

_TABLE = (
    Column("table"),
    Column("rows on disk", right=True),
    Column("indexes", right=True),
    Column("dead rows", right=True),
    Column("vacuumed", right=True),
)
_MEASURED = (Column("dead", right=True), Column("free", right=True))
_AGENTS = (Column("agent", flexible=True), Column("conversations", right=True))


@command
def stats(
    options: Options,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Count large tables too, and measure what is dead where pgstattuple is there."),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again and again, with rates, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float | None, typer.Option("--interval", metavar="SECONDS", help="With --watch: look so often; 2 if not given.")
    ] = None,
) -> None:
    """Count what there is, and what is under way.

    Tables of over 200,000 rows are estimated, and then marked with ~. With --watch and --json each look is an object
    on a line. A database that goes away meanwhile is waited for.
    """
    if interval is not None and not watch:
        raise InvalidInputError("--interval goes with --watch")
    check_seconds("--interval", 2.0 if interval is None else interval)
    if watch:
        from turnkeep.cli.watch import watch_stats

        asyncio.run(watch_stats(options, interval or 2.0, exact=exact))
        return
    found = asyncio.run(_read(options, exact))
    if options.json:
        options.output.record(stats_record(found))
    else:
        print_stats(options.output, found)


async def _read(options: Options, exact: bool) -> Stats:
    from turnkeep.store._stats import read_stats

    async with opened(options) as store:
        return await read_stats(store, exact=exact)


def stats_record(found: Stats) -> dict[str, object]:
    """Everything for `--json`. Percentiles of saves are bounds: pg_stat_statements keeps none."""
    times = found.save_times
    bounds = (
        {}
        if times is None
        else {name: getattr(times, name) for name in ("mean_ms", "p50_at_most_ms", "p95_at_most_ms")}
    )
    return {
        **asdict(found),
        "statuses": {name: asdict(number) for name, number in found.statuses},
        "agents": [{"agent_id": name, **asdict(number)} for name, number in found.agents],
        "save_times": None if times is None else {**asdict(times), **bounds},
        "tables": [{**asdict(one), "dead_share": round(one.dead_share, 4)} for one in found.tables],
    }


def print_stats(output: Output, found: Stats, rates: Rates | None = None) -> None:
    """Print it for people."""
    now = found.taken_at

    def row(name: str, *parts: str | tuple[str, str]) -> None:
        output.line((f"{name:<14}", "dim"), *parts)

    for name in ("conversations", "checkpoints", "messages"):
        row(name, shown(getattr(found, name)))
    if found.archived.value:
        row("archived", count(found.archived.value, "conversation"))
    row("branches", ", ".join(f"{shown(number)} {name}" for name, number in found.statuses) or "0")
    row("running", _running(found, now))
    if found.expired_leases:
        row(
            "", (f"{count(found.expired_leases, 'lease')} expired, {_since(found.oldest_expired_lease, now)}", "yellow")
        )
    if found.oldest_open_turn is not None:
        row("open", f"without a lease, the oldest turn {_since(found.oldest_open_turn, now)}")
    waiting = count(found.waiting_requests, "request")
    row("waiting", f"{waiting}, the oldest {_since(found.oldest_request, now)}" if found.oldest_request else waiting)
    calls = f", {found.uncertain_calls:,} of which may have run" if found.uncertain_calls else ""
    row("pending", f"{count(found.pending_calls, 'tool call')} without a result{calls}")
    row("documents", *_documents(found.documents, now))
    row("a second", _rates(rates)) if rates is not None else row(
        "last minute", f"{count(found.turns_begun, 'branch', 'branches')} began a turn"
    )
    row("saves took", _took(found.save_times, rates))
    crowded = found.connections > 0.8 * found.connection_limit
    row("connections", (f"{found.connections:,} of {found.connection_limit:,}", "yellow" if crowded else ""))
    if found.agents:
        output.line()
        output.table(_AGENTS, [(one_line(name or "-"), shown(number)) for name, number in found.agents])
    output.line()
    _print_tables(output, found.tables, now)


def _print_tables(output: Output, tables: tuple[TableSize, ...], now: datetime) -> None:
    measured = any(one.dead_bytes is not None for one in tables)
    rows = [
        (
            one.name,
            size(one.table_bytes),
            size(one.index_bytes),
            f"{one.dead_rows:,} ({one.dead_share:.0%})" if one.dead_rows else "0",
            "never" if one.vacuumed_at is None else ago(one.vacuumed_at, now),
            *((size(one.dead_bytes or 0), size(one.free_bytes or 0)) if measured else ()),
        )
        for one in tables
    ]
    sums = [sum(getattr(one, name) for one in tables) for name in ("table_bytes", "index_bytes")]
    last = ("all", size(sums[0]), size(sums[1]), "", "", *(("", "") if measured else ()))
    output.table((*_TABLE, *(_MEASURED if measured else ())), [*rows, last])


def _running(found: Stats, now: datetime) -> str:
    if found.oldest_live_turn is None:
        return "no branch"
    branches = count(found.live_leases, "branch", "branches")
    return f"{branches} under a live lease, the oldest turn {_since(found.oldest_live_turn, now)}"


def _documents(lag: DocumentLag, now: datetime) -> list[str | tuple[str, str]]:
    """What search does not know yet."""
    more = "over " if lag.capped else ""
    parts: list[str | tuple[str, str]] = [f"{more}{lag.to_fill:,} to read, {lag.to_embed:,} to embed"]
    if lag.oldest_due is not None:
        parts.append(f", the oldest due {_since(lag.oldest_due, now)}")
    if lag.dead_letters:
        parts.append((f", {count(lag.dead_letters, 'dead letter')}", "yellow"))
    return parts


def _rates(rates: Rates) -> str:
    saves = "? saves" if rates.saves is None else f"{rates.saves:,.1f} saves"
    return f"{saves}, {rates.requests:,.1f} requests, {rates.turns:,.1f} branches that began a turn"


def _took(times: SaveTimes | None, rates: Rates | None) -> str:
    """How long saves took on the server. Bounds, not percentiles: see `SaveTimes`."""
    if times is None:
        return "not known: pg_stat_statements is not there, or may not be read"
    lately = f", {rates.save_mean_ms:.2f} ms lately" if rates is not None and rates.save_mean_ms is not None else ""
    bounds = f"half within {times.p50_at_most_ms:.2f} ms, 95 % within {times.p95_at_most_ms:.2f} ms"
    return f"{times.mean_ms:.2f} ms in the mean of {times.calls:,}{lately}; {bounds}"


def _since(then: datetime | None, now: datetime) -> str:
    return "" if then is None else f"for {duration(now - then)}"


def shown(number: Number) -> str:
    """A number, marked where it is an estimate."""
    return f"{'' if number.exact else '~'}{number.value:,}"
