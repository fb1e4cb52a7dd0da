"""`turnkeep stats --watch`: the same numbers again and again, in place on a terminal, else one after another."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from turnkeep.cli.database import opened
from turnkeep.cli.options import Options
from turnkeep.cli.stats import print_stats, stats_record
from turnkeep.cli.text import duration, printable
from turnkeep.errors import UnavailableError

if TYPE_CHECKING:
    from turnkeep.store._stats import Rates, Stats

_PATIENCE = 5.0  # seconds that a look may take before it is said that there is no answer
_ROOM_FOR_AGENTS = 40  # lines


async def watch_stats(options: Options, interval: float, *, exact: bool) -> None:
    """Look every `interval` seconds until interrupted. The first look fails as any command does."""
    from turnkeep.store._stats import rates, read_stats

    async with opened(replace(options, timeout=min(options.timeout, _PATIENCE))) as store:
        screen = _Screen(options, interval)
        before = await read_stats(store, exact=exact)
        with screen.shown():
            await screen.show(before, None)
            while True:
                await screen.pause()
                try:
                    found = await read_stats(store, exact=exact, since=before.taken_at)
                except UnavailableError as error:
                    await screen.lost(str(error).splitlines()[0])
                    continue
                await screen.show(found, rates(before, found))
                before = found


class _Screen:
    """Where the looks go: a terminal's own screen, or lines."""

    def __init__(self, options: Options, interval: float) -> None:
        self._output = options.output
        self._quiet = options.quiet
        self._interval = interval
        self._live = self._output.terminal and not options.json
        self._found: Stats | None = None
        self._rates: Rates | None = None
        self._lost: tuple[datetime, str] | None = None
        self._resized = asyncio.Event()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Take the terminal's other screen meanwhile, and leave the last look on the usual one."""
        loop = asyncio.get_running_loop()
        if self._live:
            loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
        try:
            with self._output.console.screen(hide_cursor=True) if self._live else nullcontext():
                yield
        finally:
            if self._live:
                loop.remove_signal_handler(signal.SIGWINCH)
                self._print_all()

    async def pause(self) -> None:
        """Wait for the next look; a terminal that changes its size is drawn anew at once."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._interval
        while (left := end - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._resized.wait()
            except TimeoutError:
                return
            self._resized.clear()
            self._draw()

    async def show(self, found: Stats, rates: Rates | None) -> None:
        """Show a look."""
        if self._lost is not None and not self._live:
            self._output.note("the database answers again")
        self._found, self._rates, self._lost = found, rates, None
        if self._output.json:
            self._output.record({**stats_record(found), "rates": None if rates is None else asdict(rates)})
            sys.stdout.flush()
        elif self._live:
            self._draw()
        else:
            self._print_all()
            self._output.line()
            sys.stdout.flush()

    async def lost(self, why: str) -> None:
        """Say that there was no answer, and go on."""
        first = self._lost is None
        self._lost = (datetime.now(UTC), why) if self._lost is None else (self._lost[0], why)
        if self._live:
            self._draw()
        elif first:
            self._output.note(f"no answer, and trying again: {why}")

    def _draw(self) -> None:
        """Draw the last look over the one before, cut to the terminal's size."""
        console = self._output.console
        with console.capture() as captured:
            self._print_all()
        lines = captured.get().rstrip("\n").split("\n")[: console.height]
        text = "\r\n".join(f"{line}\x1b[K" for line in lines)
        console.file.write(f"\x1b[H{text}\x1b[J")
        console.file.flush()

    def _print_all(self) -> None:
        if self._found is None:
            return
        if self._live:
            self._print_heading()
        low = self._live and self._output.console.height < _ROOM_FOR_AGENTS
        print_stats(self._output, replace(self._found, agents=()) if low else self._found, self._rates)

    def _print_heading(self) -> None:
        assert self._found is not None
        taken = self._found.taken_at.astimezone()
        if self._lost is None:
            self._output.line((f"{taken:%H:%M:%S}, every {self._interval:g} s; Ctrl-C ends", "dim"))
            return
        since, why = self._lost
        gone = duration(datetime.now(UTC) - since)
        self._output.line(
            (printable(f"NO ANSWER for {gone}, these numbers are of {taken:%H:%M:%S}: {why}"), "bold red")
        )
