"""A user of an embedded Postgres, to be driven and killed.

Its directory is its first input line (empty: the default one). Every other line is a command, an operation
and its arguments in JSON, and is answered by a line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Dozens of these are started: each loads what it uses, and not all of turnkeep.
bare = types.ModuleType("turnkeep")
bare.__path__ = [str(Path(__file__).parents[2] / "src" / "turnkeep")]
sys.modules["turnkeep"] = bare

from turnkeep.embedded import EmbeddedPostgres, status, stop  # noqa: E402
from turnkeep.errors import EmbeddedError  # noqa: E402

directory = sys.stdin.readline().rstrip("\n") or None
uses: list[EmbeddedPostgres] = []


def start() -> str:
    """Become a user, once more if it is one."""
    uses.append(EmbeddedPostgres.start(directory))
    return uses[-1].conninfo


def sql(statement: str) -> list[Any]:
    """Run a statement on a connection of its own."""
    import psycopg

    try:
        with psycopg.connect(uses[-1].conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []
    except psycopg.Error as error:
        raise RuntimeError(str(error)) from error


def fork(ensure: bool) -> int:
    """Make a child that does nothing, or first becomes a user."""
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        if ensure:
            uses[-1].ensure()
        os.close(tell)
        while True:
            signal.pause()
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)
    return child


OPERATIONS: dict[str, Callable[..., object]] = {
    "start": start,
    "ensure": lambda: uses[-1].ensure(),
    "release": lambda: uses.pop(0).release(),
    "postmaster": lambda: uses[-1].postmaster_pid(),
    "directory": lambda: str(uses[-1].directory),
    "status": lambda: repr(status(directory)),
    "stop": lambda: stop(directory),
    "fork": fork,
    "spawn": lambda: subprocess.Popen(["sleep", "1000"]).pid,
    "sql": sql,
}

for line in sys.stdin:
    operation, *arguments = json.loads(line)
    try:
        answer = ["done", OPERATIONS[operation](*arguments)]
    except (EmbeddedError, RuntimeError) as error:
        answer = [type(error).__name__, str(error)]
    print(json.dumps(answer), flush=True)
