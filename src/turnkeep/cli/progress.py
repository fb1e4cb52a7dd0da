"""A bar on a terminal, for what takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from turnkeep.cli.options import Options
from turnkeep.cli.text import size

Tell = Callable[[int, int], None]
"""Is told how much is done, and how many bytes that was."""


@contextmanager
def bar(options: Options, what: str, total: int | None) -> Iterator[Tell]:
    """A bar on stderr where that is a terminal. Without a total it only shows that work goes on."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=options.no_color, highlight=False)
    shown = console.is_terminal and not options.quiet and not options.json
    counts = (MofNCompleteColumn(), TimeRemainingColumn()) if total is not None else (TextColumn("{task.completed:,}"),)
    columns = (TextColumn(what), BarColumn(), *counts, TextColumn("{task.fields[bytes]}"))
    with Progress(*columns, console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task(what, total=total, bytes="")

        def tell(done: int, number: int) -> None:
            progress.update(task, completed=done, bytes=size(number))

        yield tell
