"""`turnkeep embed`: the texts of turns for a search, and their embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeep.cli.database import opened, place_of
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import EmbeddingsOption, ModelOption, Options, check_seconds, command
from turnkeep.cli.serving import Log, Stop
from turnkeep.cli.text import count
from turnkeep.errors import PermissionDeniedError, TurnkeepError
from turnkeep.search.text import KINDS, USUAL

if TYPE_CHECKING:
    from turnkeep.search import EmbedWorker, Progress, Provider
    from turnkeep.store import AsyncStore
    from turnkeep.store._documents import Lag

_USUAL = ",".join(kind for kind in KINDS if kind in USUAL)


@command
def embed(
    options: Options,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left to do.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what was given up, first.")] = False,
    embeddings: EmbeddingsOption = None,
    model: ModelOption = None,
    include: Annotated[
        str | None,
        typer.Option(
            "--include",
            metavar="KINDS",
            help=f"Whose words are searched, with commas: {', '.join(KINDS)}; else {_USUAL}.",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=2048, metavar="N", help="Embed so many texts at once.")
    ] = 64,
    poll: Annotated[float, typer.Option("--poll", metavar="SECONDS", help="Look for work about this often.")] = 1.0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every batch, too.")] = False,
) -> Exit:
    """Make what a search looks through: the text of each turn that has ended, and its embedding.

    Any number of these may run at once. Without embeddings, texts are made, and a search is by words. A turn is tried
    again when it fails, and given up in the end, with its reason: `turnkeep doctor` says so. Where embeddings are of
    another model than the one named, they are made anew when nothing else is left to do. SIGTERM and Ctrl-C hand back
    what is under way.
    """
    check_seconds("--poll", poll)
    from turnkeep.search import provider_from_settings

    provider = provider_from_settings(embeddings, model)
    settings: dict[str, Any] = {"batch": batch, "poll_seconds": poll}
    if include is not None:
        settings["include"] = [kind.strip() for kind in include.split(",")]
    log = Log(options, verbose=verbose)
    return asyncio.run(_serve(options, provider, log, settings, once=once, retry_failed=retry_failed))


async def _serve(
    options: Options, provider: Provider | None, log: Log, settings: dict[str, Any], *, once: bool, retry_failed: bool
) -> Exit:
    from turnkeep.search import EmbedWorker
    from turnkeep.store._documents import read_lag

    model = None if provider is None else provider.name
    async with closed_in_the_end(provider), opened(options, pool_size=2) as store:
        worker = EmbedWorker(store, provider, **settings)
        stop = Stop(worker, log)
        retried = await worker.retry_dead() if retry_failed else 0
        if retried:
            log.tell(f"{count(retried, 'dead letter')} will be tried again", retried=retried)
        if not once:
            what = "texts only" if model is None else f"texts and embeddings by {model}"
            log.tell(f"making {what} on {place_of(store, options)}", model=model)
        with _bar(options, await read_lag(store, model) if once else None) as tell:
            done = await worker.run(drain=once, tell=tell)
        lag = await read_lag(store, model)
    if once:
        _report(options, done, lag, retried)
    elif stop.asked:
        log.tell("everything is handed back", **asdict(done))
    return Exit.INTERRUPTED if once and stop.asked else Exit.OK


@asynccontextmanager
async def closed_in_the_end(provider: Provider | None) -> AsyncIterator[None]:
    """Close a provider that can be closed."""
    try:
        yield
    finally:
        if provider is not None and hasattr(provider, "close"):
            await provider.close()


async def beside(store: AsyncStore, provider: Provider | None, log: Log, agents: Coroutine[Any, Any, None]) -> None:
    """Run agents, and make documents beside them; they go on whatever comes of that."""
    from turnkeep.search import EmbedWorker

    worker = EmbedWorker(store, provider)
    making = asyncio.create_task(_make(worker, log))
    try:
        await agents
    finally:
        worker.stop()
        await making


async def _make(worker: EmbedWorker, log: Log) -> None:
    try:
        await worker.run()
    except TurnkeepError as error:
        hint = "; `turnkeep embed` makes them as another role" if isinstance(error, PermissionDeniedError) else ""
        log.tell(f"no more documents are made for the search: {error}{hint}", error=type(error).__name__)


def _report(options: Options, done: Progress, lag: Lag, retried: int) -> None:
    dead = lag.dead_texts + lag.dead_embeddings
    if options.json:
        left = {"to_fill": lag.to_fill, "to_embed": lag.to_embed, "dead_letters": dead, "archived": lag.archived}
        options.output.record({**asdict(done), "retried": retried, **left})
        return
    if not options.quiet:
        options.output.text(f"{count(done.filled, 'turn')} read, {count(done.embedded, 'embedding')} made.")
    if lag.to_fill or lag.to_embed:
        options.output.note(f"Left, and tried again later: {lag.to_fill:,} to read, {lag.to_embed:,} to embed.")
    if lag.archived:
        options.output.note(
            f"{count(lag.archived, 'turn')} went into the archive without a text, and no search finds them: "
            "`turnkeep unarchive` puts them back, to be read."
        )
    if dead:
        options.output.note(f"{count(dead, 'dead letter')}: `turnkeep embed --retry-failed` tries them again.")


@contextmanager
def _bar(options: Options, lag: Lag | None) -> Iterator[Any]:
    """A bar on stderr where that is a terminal, and there is an end to come to."""
    if lag is None or options.json or options.quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=options.no_color, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        read = progress.add_task("read", total=lag.to_fill)
        made = progress.add_task("embedded", total=lag.to_embed)

        def tell(more: Any) -> None:
            progress.update(read, advance=more.filled)
            # What is read is to be embedded too: how much that is shows only then.
            task = progress.tasks[made]
            ahead = max(task.completed + more.embedded, (task.total or 0) + more.filled)
            progress.update(made, advance=more.embedded, total=ahead)

        yield tell
