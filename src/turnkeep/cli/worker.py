"""`turnkeep worker`: agents served until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeep.cli.agents import load
from turnkeep.cli.database import opened, place_of
from turnkeep.cli.embed import beside, closed_in_the_end
from turnkeep.cli.failures import Exit
from turnkeep.cli.metrics import check_installed
from turnkeep.cli.options import Options, RedactOption, check_seconds, command
from turnkeep.cli.serving import Log, Stop

if TYPE_CHECKING:
    from turnkeep.runner import Agent, Worker
    from turnkeep.store import AsyncStore

AppArgument = typer.Argument(
    metavar="APP",
    help="An agent, or a list of them, as module:attribute; the current directory counts.",
    show_default=False,
)

_MOST_AT_ONCE = 1000
_MOST_CONNECTIONS = 20
_SPARE_CONNECTIONS = 3  # for claims, for leases to be renewed, and for documents
_LAST_SECONDS = 2.0


@command
def worker(
    options: Options,
    apps: Annotated[list[str], AppArgument],
    concurrency: Annotated[
        int,
        typer.Option("--concurrency", "-c", min=1, max=_MOST_AT_ONCE, metavar="N", help="At most so many at once."),
    ] = 50,
    lease: Annotated[
        float,
        typer.Option("--lease", metavar="SECONDS", help="After a crash, others take up its conversations after this."),
    ] = 15.0,
    poll: Annotated[float, typer.Option("--poll", metavar="SECONDS", help="Look for work about this often.")] = 0.25,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="SECONDS", help="Told to stop, wait so long for tools that run."),
    ] = 10.0,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is left to do.")] = False,
    pool_size: Annotated[
        int | None,
        typer.Option("--pool-size", min=1, metavar="N", help="At most so many connections; enough if not given."),
    ] = None,
    search: Annotated[
        bool, typer.Option("--search/--no-search", help="Make what a search looks through too, as `turnkeep embed`.")
    ] = True,
    redact: RedactOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is waited for, too.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", min=0, max=65535, metavar="PORT", help="Serve this worker's own /metrics for Prometheus."
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", metavar="ADDRESS", help="Serve them on this address.")
    ] = "127.0.0.1",
) -> Exit:
    """Answer what is posted to agents' conversations.

    Any number of workers may serve the same agents; what a crashed one has left, another goes on with when its lease
    has expired. SIGTERM and Ctrl-C hand everything back, and others go on at once; a second one ends at once. With
    --json the log is one object a line.
    """
    for option, seconds in (("--lease", lease), ("--poll", poll), ("--grace", grace)):
        check_seconds(option, seconds)
    agents = load(apps)
    options = replace(options, redact=redact)
    settings = {
        "concurrency": concurrency,
        "lease_seconds": lease,
        "poll_seconds": poll,
        "grace_seconds": grace,
        "owner": f"{socket.gethostname()}:{os.getpid()}",
    }
    connections = pool_size or _connections(agents, concurrency)
    log = Log(options, verbose=verbose)
    if metrics_port is not None:
        check_installed()
    metering = None if metrics_port is None else (metrics_host, metrics_port)
    return asyncio.run(
        _serve(options, agents, log, settings, connections=connections, drain=drain, metering=metering, search=search)
    )


async def _serve(
    options: Options,
    agents: Sequence[Agent],
    log: Log,
    settings: dict[str, Any],
    *,
    connections: int,
    drain: bool,
    metering: tuple[str, int] | None,
    search: bool,
) -> Exit:
    from turnkeep.runner import Worker
    from turnkeep.search import provider_from_settings

    provider = provider_from_settings() if search else None
    async with closed_in_the_end(provider), opened(options, pool_size=connections) as store:
        serving = Worker(store, agents, **settings)
        stop = Stop(serving, log)
        names = [agent.name for agent in agents]
        where = f"on {place_of(store, options)}, {settings['concurrency']} at a time, as {settings['owner']}"
        log.tell(f"serving {', '.join(names)} {where}", agents=names, **settings)
        with _measured(store, serving, log, metering):
            if search:
                await beside(store, provider, log, serving.run(drain=drain))
            else:
                await serving.run(drain=drain)
        log.tell("everything is handed back" if stop.asked else "nothing is left to do")
    code = Exit.INTERRUPTED if stop.asked and drain else Exit.OK
    _end_soon(code)
    return code


@contextmanager
def _measured(store: AsyncStore, worker: Worker, log: Log, metering: tuple[str, int] | None) -> Iterator[None]:
    """Serve what this worker measures of itself meanwhile, where that is wanted."""
    if metering is None:
        yield
        return
    from turnkeep.cli.exposition import serve
    from turnkeep.cli.metering import Metering

    with serve(Metering(store, lambda: worker.driven).registry, *metering) as where:
        log.tell(f"metrics on {where}", metrics=where)
        yield


def _connections(agents: Sequence[Agent], concurrency: int) -> int:
    """How many connections are enough. A transactional tool holds one for as long as it runs."""
    holding = any(tool.policy == "transactional" for agent in agents for tool in agent.tools)
    return (concurrency if holding else min(concurrency, _MOST_CONNECTIONS)) + _SPARE_CONNECTIONS


def _end_soon(code: Exit) -> None:
    """See to it that the process ends, though a tool that was given up may still be running in its thread."""
    ending = threading.Timer(_LAST_SECONDS, os._exit, (int(code),))
    ending.daemon = True
    ending.start()
