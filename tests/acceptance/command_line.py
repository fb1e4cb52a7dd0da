"""The command `turnkeep` run as a process: its two streams and its exit code."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).with_name("turnkeep"))
PATIENCE = 60
# What would name a database, or change what a stream does.
_UNWANTED = {"TURNKEEP_DATABASE_URL", "DATABASE_URL", "NO_COLOR", "FORCE_COLOR", "PYTHONUNBUFFERED"}
PLAIN = {name: value for name, value in os.environ.items() if name not in _UNWANTED and not name.startswith("PG")}


class Ran:
    """What a command did."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code = done.returncode
        self.bytes = done.stdout
        self.out = done.stdout.decode()
        self.err = done.stderr.decode()
        assert "Traceback" not in self.err
        assert "Exception ignored" not in self.err


def run(*arguments: str, dsn: str | None = None, **environment: str) -> Ran:
    naming = {} if dsn is None else {"TURNKEEP_DATABASE_URL": dsn}
    done = subprocess.run(
        [COMMAND, *arguments], env=PLAIN | naming | environment, capture_output=True, timeout=PATIENCE, check=False
    )
    return Ran(done)


def lines(ran: Ran) -> list[dict[str, Any]]:
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def on_terminal(*arguments: str, dsn: str, **environment: str) -> str:
    """What a terminal of 80 columns is sent."""
    ours, theirs = pty.openpty()
    settings = {"TERM": "xterm-256color", "COLUMNS": "80", "TURNKEEP_DATABASE_URL": dsn}
    process = subprocess.Popen([COMMAND, *arguments], env=PLAIN | settings | environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    sent = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # Linux' way to say that nobody has it open any more
            break
        if not read:
            break
        sent += read
    os.close(ours)
    assert process.wait(PATIENCE) == 0
    return sent.decode()
