"""Commands that serve agents, run as processes: an app for them, what they say, and their end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.acceptance.command_line import COMMAND, PATIENCE, PLAIN
from tests.observing import until

APP = '''
import asyncio, os, threading
import turnkeep

URL = os.environ["MODEL_URL"]


@turnkeep.tool(idempotent=True)
async def find_order(order: int) -> str:
    """Find an order."""
    return f"order {order} was shipped on Monday"


@turnkeep.tool
async def hang() -> str:
    """Never return."""
    await asyncio.Event().wait()


@turnkeep.tool
def hang_thread() -> str:
    """Never return, in a thread."""
    threading.Event().wait()


@turnkeep.tool(on_crash="ask")
async def pay(cents: int) -> str:
    """Pay."""
    return "paid"


support = turnkeep.Agent("support", "scripted", base_url=URL, tools=[find_order, hang, hang_thread, pay])
sales = turnkeep.Agent("sales", "scripted", base_url=URL)
agents = [support, sales]
'''


# Colours, and what readline says about pasting.
_STYLES = re.compile(r"\x1b\[(\?2004[hl]|[0-9;]*m)\r?")


class Running:
    """A command that runs in a directory with an app, until the end of the block at the latest."""

    def __init__(self, place: Path, *arguments: str, dsn: str, stdin: bytes | None = None, **environment: str) -> None:
        self._err = place / f"err-{len(list(place.glob('err-*')))}"
        self._out = self._err.with_name(self._err.name.replace("err", "out"))
        naming = {"TURNKEEP_DATABASE_URL": dsn, **environment}
        with self._err.open("wb") as err, self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [COMMAND, *arguments],
                cwd=place,
                env=PLAIN | naming,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=out,
                stderr=err,
            )
        if stdin is not None:
            assert self.process.stdin is not None
            with self.process.stdin as sending:
                sending.write(stdin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def out(self) -> str:
        return self._out.read_text()

    async def says(self, words: str) -> None:
        """Wait until stderr holds these words."""
        await until(lambda: words in self.err or self._ended(words), words)

    def _ended(self, words: str) -> bool:
        assert self.process.poll() is None, f"it ended without saying {words!r}: {self.err}"
        return False

    async def end(self) -> int:
        """Wait for its end, and give its exit code."""
        await until(lambda: self.process.poll() is not None, f"the end of {self.process.args!r}")
        assert "Exception ignored" not in self.err
        return self.process.returncode

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self.process.kill()
        self.process.wait(PATIENCE)


class Terminal:
    """A command in a terminal of its own: what it has shown, and keys to type."""

    def __init__(self, place: Path, *arguments: str, dsn: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 400, 0, 0))
        settings = {"TERM": "xterm-256color", "TURNKEEP_DATABASE_URL": dsn, **environment}
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            cwd=place,
            env=PLAIN | settings,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self._sent = b""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._reading.join(PATIENCE)
        os.close(self._ours)

    def _read(self) -> None:
        with suppress(OSError):  # Linux' way to say that nobody has it open any more
            while read := os.read(self._ours, 65536):
                self._sent += read

    @property
    def shown(self) -> str:
        """What there is to read, without colours."""
        return _STYLES.sub("", self._sent.decode(errors="replace")).replace("\r\n", "\n")

    async def shows(self, words: str, times: int = 1) -> None:
        """Wait until it has shown these words that often."""

        def look() -> bool:
            if self.shown.count(words) >= times:
                return True
            assert self.process.poll() is None or self._reading.is_alive(), f"never shown: {words!r} in {self.shown}"
            return False

        await until(look, words)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    async def end(self) -> int:
        """Wait for its end, and give its exit code."""
        await until(lambda: self.process.poll() is not None and not self._reading.is_alive(), "the terminal's end")
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def app_in(place: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the app, whose model is at a URL; commands that `run` starts run there."""
    (place / "app.py").write_text(APP)
    monkeypatch.setitem(PLAIN, "MODEL_URL", url)
    monkeypatch.chdir(place)
    yield place
