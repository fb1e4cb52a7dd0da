"""`turnkeep metrics`: the numbers of `turnkeep stats` for Prometheus."""

from __future__ import annotations

import asyncio
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeep.cli.database import conninfo, opened
from turnkeep.cli.options import Options, check_seconds, command
from turnkeep.errors import ConfigurationError

if TYPE_CHECKING:
    from turnkeep.store._stats import Stats

_PATIENCE = 5.0  # seconds that the database has for a scrape
_AGENTS = 20  # that have a label of their own

PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Serve on this port.")]


@command
def metrics(
    options: Options,
    port: PortOption = 9187,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Serve on this address.")] = "127.0.0.1",
    max_age: Annotated[
        float, typer.Option("--max-age", metavar="SECONDS", help="Answer with numbers that are up to so old.")
    ] = 5.0,
) -> None:
    """Serve /metrics for Prometheus, until SIGTERM or Ctrl-C. Needs the extra turnkeep[metrics].

    A scrape asks the database a fixed number of cheap questions, no more often than --max-age says. A database that
    gives no answer is turnkeep_up 0. Numbers only, nothing of what was said; of agents, the 20 with the most
    conversations are named.
    """
    check_seconds("--max-age", max_age)
    check_installed()
    from prometheus_client import CollectorRegistry

    from turnkeep.cli.exposition import Exposition, serve

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with conninfo(options) as database:
        asked = replace(options, dsn=database, timeout=min(options.timeout, _PATIENCE))

        async def look() -> Stats:
            from turnkeep.store._stats import read_stats

            async with opened(asked) as store:
                return await read_stats(store, agents=_AGENTS)

        registry = CollectorRegistry()
        registry.register(Exposition(lambda: asyncio.run(look()), options.schema, max_age, options.output.note))
        with serve(registry, host, port) as where:
            options.output.note(f"serving {where}")
            while not ended.wait(1.0):
                pass


def check_installed() -> None:
    """Raise `ConfigurationError` where what serves Prometheus is not there."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("prometheus-client is missing: pip install 'turnkeep[metrics]'") from error
