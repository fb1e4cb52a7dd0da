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
    Killed,
    ModelStarted,
    Moved,
    PostgresStarted,
    Recovered,
    Removing,
    Target,
    Undisturbed,
    View,
    Waiting,
    WorkerStarted,
)
from turnkeep.demo.script import Script, load_scripts

_KILLS_SHOWN = 5
_SEEN_WIDTH = 33


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
        case PostgresStarted(version, directory):
            return f"Postgres {version} serves in {directory}, for this demo only"
        case ModelStarted(pid):
            return f"the model server listens (process {pid})"
        case WorkerStarted(number, pid):
            return f"worker {number} starts (process {pid})"
        case Waiting(kill, what):
            return f"kill {kill} waits for {what}"
        case Killed(kill, target, seen, conversations):
            hit = count(len(conversations), "conversation")
            return f"kill {kill}: SIGKILL to {target.words}, {seen}; {hit} interrupted"
        case Recovered(kill, seconds):
            return f"kill {kill}: {seconds:.2f} s later all of them have gone on"
        case Ended(conversation, None):
            return f"{conversation} has its last reply"
        case Ended(conversation, why):
            return f"{conversation} is stuck: {why}"
        case Undisturbed():
            return "all is answered: the same once more, and nobody disturbs it"
        case Checking():
            return "comparing ledger, database, effects and both runs"
        case Removing():
            return "removing the demo's Postgres and its directory"
        case Acknowledged() | Moved():
            return None


def count(number: int, noun: str, nouns: str | None = None) -> str:
    """A number with its noun."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


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
    requests: int
    total: int
    messages: int = 0
    note: str = ""
    style: str = "dim"
    ended: bool = False


@dataclass
class _KillRow:
    words: str
    seen: str
    recovery: float | None = None


@dataclass
class Board:
    """Twelve rows with bars, the ledger's count, and the newest kills: 23 lines of 80 columns."""

    scripts: Sequence[Script]
    _rows: dict[str, _Row] = field(init=False)
    _kills: list[_KillRow] = field(default_factory=list)
    _acknowledged: int = 0
    _postgres: str = "Postgres starts"
    _worker: str = ""
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._rows = {script.external_id: _Row(len(script.turns), len(script.transcript())) for script in self.scripts}

    def tell(self, event: Event) -> None:
        """Take note of an event; it is seen with the next refresh."""
        match event:
            case PostgresStarted(version, _):
                self._postgres = f"Postgres {version}"
            case WorkerStarted(number, pid):
                self._worker = f"worker {number} (process {pid})"
            case Killed(_, target, seen, conversations):
                self._kills.append(_KillRow(target.words, seen))
                for name in conversations:
                    self._rows[name].note, self._rows[name].style = "interrupted", "bold red"
            case Recovered(kill, seconds):
                self._kills[kill - 1].recovery = seconds
            case Acknowledged(_, _, total):
                self._acknowledged = total
            case Moved(conversation, messages, turn, sub_step):
                row = self._rows[conversation]
                row.messages = messages
                if not row.ended:
                    row.note, row.style = f"turn {turn + 1} of {row.requests}, step {sub_step}", ""
            case Ended(conversation, why):
                row = self._rows[conversation]
                row.ended = True
                row.note, row.style = (
                    ("done", "green") if why is None else (f"stuck: {why.partition(':')[0]}", "bold red")
                )
            case Undisturbed():
                self._worker = "the same once more, undisturbed"
            case Checking():
                self._worker = "comparing ledger, database and both runs"
            case Removing():
                self._worker = "being removed"

    def render(self) -> RenderableType:
        """The board as it is now."""
        seconds = time.monotonic() - self._started
        title = Text.assemble(("turnkeep demo", "bold"), f"  {self._postgres}, {self._worker}", no_wrap=True)
        ledger = Text.assemble(
            ("ledger", "bold"),
            f"  {self._acknowledged} of {sum(row.requests for row in self._rows.values())} requests acknowledged, ",
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
            bar = ProgressBar(total=row.total, completed=row.messages, width=24)
            table.add_row(name, bar, f"{row.messages}/{row.total}", Text(row.note, style=row.style))
        return table

    def _newest_kills(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, min_width=max(len(target.value) for target in Target))
        table.add_column(no_wrap=True, min_width=_SEEN_WIDTH, overflow="ellipsis")
        table.add_column(no_wrap=True)
        numbered = list(enumerate(self._kills, start=1))[-_KILLS_SHOWN:]
        for number, kill in numbered:
            back = f"back in {kill.recovery:.1f} s" if kill.recovery is not None else "…"
            table.add_row(
                Text(f"kill {number}", style="bold red"),
                kill.words.removeprefix("the "),
                kill.seen,
                Text(back, style="green" if kill.recovery is not None else "yellow"),
            )
        for _ in range(_KILLS_SHOWN - len(numbered)):
            table.add_row()
        return table
