"""A bar on a terminal, for what takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from turnkeep.cli.options import Options
from turnkeep.cli.text import size


class Tell(Protocol):
    """Is told how much is done, how many bytes that was, and of how much, where that shows only then."""

    def __call__(self, done: int, number: int, total: int | None = None) -> None: ...


@contextmanager
def bar(options: Options, what: str, total: int | None) -> Iterator[Tell]:
    """A bar on stderr where that is a terminal. Without a total it only shows that work goes on."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=options.no_color, highlight=False)
    shown = console.is_terminal and not options.quiet and not options.json
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, TextColumn("{task.fields[bytes]}"), console=console, disable=not shown, transient=True
    ) as progress:
        task = progress.add_task(what, total=total, bytes="")

        def tell(done: int, number: int, total: int | None = None) -> None:
            progress.update(task, completed=done, bytes=size(number), total=total)

        yield tell
