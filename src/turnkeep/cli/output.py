"""Where things are printed: data on stdout, notes and errors on stderr, colours and boxes on a terminal only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from turnkeep.cli.text import harmless_json, one_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# Wide enough that nothing sent to a file or a pipe is wrapped or cut.
_NO_LIMIT = 1_000_000
_LEAST = 6  # characters of a column that may be cut


@dataclass(frozen=True)
class Column:
    """A column of a table: whether it may be cut where a terminal is narrow, and how it is aligned."""

    title: str
    flexible: bool = False
    right: bool = False


def json_text(value: object) -> str:
    """JSON on one line; times as ISO 8601, ids as text."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def json_around(**members: object) -> str:
    """A JSON object on a line; a member that is an `Exact` is put in as it is."""
    return f"{{{', '.join(f'{json_text(name)}: {_member(value)}' for name, value in members.items())}}}"


def json_array(texts: Iterable[str | None]) -> Exact:
    """A JSON array of exact texts."""
    return Exact(f"[{', '.join('null' if text is None else text for text in texts)}]")


class Exact(str):
    """JSON text that is printed as it was stored (G3)."""

    __slots__ = ()


def _member(value: object) -> str:
    return value if isinstance(value, Exact) else json_text(value)


@dataclass
class Output:
    """The streams of one command."""

    json: bool = False
    quiet: bool = False
    no_color: bool = False

    @cached_property
    def terminal(self) -> bool:
        """Whether a person sees what goes to stdout."""
        return sys.stdout.isatty()

    # -- for programs

    def exact(self, text: str) -> None:
        """Print a text and a line break as UTF-8, byte by byte; on a terminal, JSON that can't control it."""
        sys.stdout.flush()
        shown = harmless_json(text) if self.terminal else text
        sys.stdout.buffer.write(shown.encode() + b"\n")

    def record(self, record: Mapping[str, Any]) -> None:
        """Print one JSON object on a line."""
        self.exact(json_text(record))

    # -- for people

    @cached_property
    def console(self) -> Console:
        """Rich's console on stdout. Text for it must be printable already."""
        return self._console(error=False)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print a line of texts, each alone or with its style. Lines are never cut."""
        from rich.text import Text

        self.console.print(Text.assemble(*parts), soft_wrap=not self.terminal)

    def block(self, text: Text, indent: int = 2) -> None:
        """Print a text whose every line is indented, so that none can pass for a heading."""
        from rich.padding import Padding
        from rich.text import Text as Lines

        if self.terminal and self.console.width > 20 + indent:
            self.console.print(Padding(text, (0, 0, 0, indent), expand=False))
            return
        lines = text.split("\n", allow_blank=True)
        self.console.print(Lines("\n").join(Lines(" " * indent) + line for line in lines), soft_wrap=True)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str | tuple[str, str]]]) -> None:
        """Print a table. A cell is a text, alone or with its style. On a narrow terminal each row is a list."""
        from rich import box
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

        texts = [[cell if isinstance(cell, tuple) else (cell, "") for cell in row] for row in rows]
        cells = [
            [Text(one_line(text), style, no_wrap=True, overflow="ellipsis") for text, style in row] for row in texts
        ]
        least = sum(
            min(_LEAST, len(column.title))
            if column.flexible
            else max((len(column.title), *(len(text) for text, _ in below)))
            for column, *below in zip(columns, *texts, strict=True)
        )
        if self.terminal and least + 2 * len(columns) > self.console.width:
            self._print_lists(columns, cells)
            return
        table = Table(
            box=box.SIMPLE_HEAD if self.terminal else None,
            pad_edge=False,
            padding=(0, 1 if self.terminal else 2, 0, 0),
            header_style="bold",
            show_edge=False,
        )
        for column, *below in zip(columns, *cells, strict=True):
            width = max(map(cell_len, (column.title, *(cell.plain for cell in below))))
            justify: Literal["right", "left"] = "right" if column.right else "left"
            table.add_column(column.title, justify=justify, width=None if column.flexible else width)
        for row_cells in cells:
            table.add_row(*row_cells)
        self._print_grid(table)

    def _print_lists(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
        from rich.text import Text

        width = max(len(column.title) for column in columns)
        for number, row in enumerate(rows):
            if number:
                self.line()
            for column, cell in zip(columns, row, strict=True):
                if cell.plain != "-":
                    self.console.print(Text.assemble((f"{column.title:<{width}}  ", "dim"), cell), overflow="fold")

    def paragraphs(self, rows: Sequence[Sequence[Text]]) -> None:
        """Print rows without a heading, the last column of which may take several lines."""
        from rich.table import Table

        grid = Table.grid(padding=(0, 2, 0, 0))
        for row in rows:
            grid.add_row(*row)
        self._print_grid(grid)

    def text(self, text: str) -> None:
        """Print a text and a line break as it is; on a terminal, with everything that could control it as an escape."""
        print(printable(text) if self.terminal else text)

    def note(self, text: str, style: str = "") -> None:
        """Tell something beside the data, on stderr. A style shows on a terminal only."""
        if self.quiet:
            return
        sys.stdout.flush()
        if style:
            from rich.text import Text

            self._errors.print(Text(printable(text), style), soft_wrap=not self._errors.is_terminal)
        else:
            print(printable(text), file=sys.stderr, flush=True)

    def error(self, kind: str, message: str, code: int) -> None:
        """Tell what went wrong, on stderr: in words, or as an object where JSON is asked for."""
        if self.json:
            print(json.dumps({"error": kind, "message": message, "exit_code": int(code)}), file=sys.stderr)
            return
        from rich.text import Text

        self._errors.print(Text.assemble(("error:", "bold red"), " ", printable(message)), soft_wrap=True)

    @cached_property
    def _errors(self) -> Console:
        return self._console(error=True)

    def _print_grid(self, grid: Table) -> None:
        if self.terminal:
            self.console.print(grid)
            return
        with self.console.capture() as captured:
            self.console.print(grid)
        for line in captured.get().splitlines():
            print(line.rstrip())

    def _console(self, *, error: bool) -> Console:
        from rich.console import Console

        class PipingConsole(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError  # where Rich would exit with a code of its own

        stream = sys.stderr if error else sys.stdout
        terminal = stream.isatty()
        return PipingConsole(
            file=stream,
            force_terminal=terminal,
            color_system="auto" if terminal and not self.no_color else None,
            width=None if terminal else _NO_LIMIT,
            markup=False,
            emoji=False,
            highlight=False,
        )


def _plain(value: object) -> str | float:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"no JSON for {type(value).__name__}")
