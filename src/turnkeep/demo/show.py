"""How a demo looks while it goes on: live on a terminal, a line an event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnkeep.demo.events import (
    Acknowledged,
    Checking,
    Ended,
    Event,
    Holding,
    Killed,
    PostgresStarted,
    Recovered,
    Removing,
    Restored,
    View,
    WriterStarted,
)
from turnkeep.demo.script import Script, load_scripts

_KILLS_SHOWN = 5


@contextmanager
def shown(console: Console) -> Iterator[View]:
    """Show a demo on a console, in the way that suits it."""
    if console.is_terminal and not console.is_dumb_terminal:
        board = Board(load_scripts())
        with Live(get_renderable=board.render, console=console, refresh_per_second=10):
            yield board
    else:
        yield Lines(console.file)


def in_words(event: Event) -> str | None:
    """An event in one line; None for those that come by the hundred."""
    match event:
        case PostgresStarted(version, directory, _):
            return f"Postgres {version} serves in {directory}, for this demo only"
        case WriterStarted(number, pid):
            return f"writer {number} starts (process {pid})"
        case Restored(writer, 0, _, _, _):
            return f"writer {writer} finds nothing interrupted"
        case Restored(writer, conversations, messages, pending, seconds):
            return (
                f"writer {writer} restores all that was interrupted in {seconds * 1000:.0f} ms: "
                f"{count(conversations, 'conversation')}, {count(messages, 'message')}, "
                f"{count(pending, 'tool call')} without result"
            )
        case Holding(kill, conversations):
            return f"kill {kill} waits for saves in flight: {', '.join(conversations)}"
        case Killed(kill, target, in_flight):
            return f"kill {kill}: SIGKILL to {target.words}, with {count(in_flight, 'save')} in flight"
        case Recovered(kill, seconds):
            return f"kill {kill}: {seconds:.2f} s later the next save is acknowledged"
        case Ended(conversation, None):
            return f"{conversation} is played to its end"
        case Ended(conversation, why):
            return f"{conversation} is stuck: {why}"
        case Checking():
            return "all is played: comparing ledger, database and source"
        case Removing():
            return "removing the demo's Postgres and its directory"
        case Acknowledged():
            return None


def count(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Lines:
    """A line an event, with the seconds since the start."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._started = time.monotonic()

    def tell(self, event: Event) -> None:
        """Print the event, at once."""
        if words := in_words(event):
            print(f"{time.monotonic() - self._started:6.2f} s  {words}", file=self._file, flush=True)


@dataclass
class _Row:
    saves: int
    done: int = 0
    note: str = ""
    style: str = "dim"


@dataclass
class _KillRow:
    words: str
    in_flight: int
    at: float
    recovery: float | None = None


@dataclass
class Board:
    """Twelve rows with bars, the ledger's count, and the newest kills: 23 lines of 80 columns."""

    scripts: Sequence[Script]
    _rows: dict[str, _Row] = field(init=False)
    _kills: list[_KillRow] = field(default_factory=list)
    _held: tuple[str, ...] = ()
    _acknowledged: int = 0
    _postgres: str = "Postgres starts"
    _writer: str = ""
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._rows = {script.external_id: _Row(script.saves) for script in self.scripts}

    def tell(self, event: Event) -> None:
        """Take note of an event; it is seen with the next refresh."""
        match event:
            case PostgresStarted(version, _, _):
                self._postgres = f"Postgres {version}"
            case WriterStarted(number, pid):
                self._writer = f"writer {number} (process {pid})"
            case Holding(_, conversations):
                self._held = conversations
                self._mark(conversations, "save held in flight", "yellow")
            case Killed(_, target, in_flight):
                self._kills.append(_KillRow(target.words, in_flight, time.monotonic()))
                self._mark(self._held, "killed in flight", "bold red")
            case Recovered(kill, seconds):
                self._kills[kill - 1].recovery = seconds
            case Acknowledged(conversation, (turn, sub_step), repeated, total):
                self._acknowledged = total
                row = self._rows[conversation]
                row.done += 1
                row.note, row.style = f"turn {turn}.{sub_step}{' again' if repeated else ''}", ""
            case Ended(conversation, why):
                row = self._rows[conversation]
                row.note, row.style = (
                    ("done", "green") if why is None else (f"stuck: {why.partition(':')[0]}", "bold red")
                )
            case Checking():
                self._writer = "comparing ledger, database and source"
            case Removing():
                self._writer = "being removed"

    def render(self) -> RenderableType:
        """The board as it is now."""
        seconds = time.monotonic() - self._started
        title = Text.assemble(("turnkeep demo", "bold"), f"  {self._postgres}, {self._writer}", no_wrap=True)
        ledger = Text.assemble(
            ("ledger", "bold"),
            f"  {self._acknowledged} of {sum(row.saves for row in self._rows.values())} saves acknowledged, ",
            f"on disk outside the database  {seconds:5.1f} s",
            no_wrap=True,
        )
        return Group(title, Text(), self._conversations(), Text(), ledger, self._newest_kills())

    def _conversations(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, min_width=max(map(len, self._rows)))
        table.add_column(width=24)
        table.add_column(justify="right", no_wrap=True, min_width=7)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, row in self._rows.items():
            bar = ProgressBar(total=row.saves, completed=row.done, width=24)
            table.add_row(name, bar, f"{row.done}/{row.saves}", Text(row.note, style=row.style))
        return table

    def _newest_kills(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        numbered = list(enumerate(self._kills, start=1))[-_KILLS_SHOWN:]
        for number, kill in numbered:
            back = f"back after {kill.recovery:.2f} s" if kill.recovery is not None else "…"
            table.add_row(
                Text(f"kill {number}", style="bold red"),
                f"SIGKILL: {kill.words.removeprefix('the ')}",
                f"{count(kill.in_flight, 'save')} in flight",
                Text(back, style="green" if kill.recovery is not None else "yellow"),
            )
        for _ in range(_KILLS_SHOWN - len(numbered)):
            table.add_row()
        return table

    def _mark(self, conversations: Sequence[str], note: str, style: str) -> None:
        for name in conversations:
            row = self._rows[name]
            if row.done < row.saves:
                row.note, row.style = note, style
