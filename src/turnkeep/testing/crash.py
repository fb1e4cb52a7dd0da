"""Crash points: worker processes that kill themselves with SIGKILL right before or after a chosen effect."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self


@dataclass(frozen=True)
class CrashPoint:
    """The `number`th effect of a worker, from 1; `when` says on which side of it the process dies."""

    number: int
    when: Literal["before", "after"]


@dataclass(frozen=True)
class WorkerRun:
    """What became of a worker process: the names of the effects it began, and whether it has killed itself."""

    effects: tuple[str, ...]
    killed: bool


class WorkerProcesses:
    """Runs workers of an app ("module:attribute"), each in a process of its own, one after the other.

    As a context manager it keeps one process with the app loaded, and each worker is a fork of it: they share the
    program and nothing else, and start at once. `lease_seconds` is how long a worker's branches wait for the next
    worker after it was killed; a `FakeClock` makes that short.
    """

    def __init__(self, app: str, *, lease_seconds: float = 15.0) -> None:
        self._order = {"app": app, "lease_seconds": lease_seconds}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "turnkeep.testing.crash_process", json.dumps(self._order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.communicate()

    def run(self, database: str, *, schema: str = "turnkeep", crash: CrashPoint | None = None) -> WorkerRun:
        """Run a worker until its agents have nothing left to do, or until it dies at `crash`.

        Raises `RuntimeError` with its last words if it ends in any other way.
        """
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("use WorkerProcesses as a context manager")
        point = None if crash is None else [crash.number, crash.when]
        process.stdin.write(json.dumps({"database": database, "schema": schema, "crash": point}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the app could not be loaded: standard error says why")
        said = json.loads(line)
        if said["ended"] not in (0, -signal.SIGKILL if crash is not None else 0):
            raise RuntimeError(f"the worker ended with {said['ended']}: {said['error']}")
        return WorkerRun(tuple(said["effects"]), said["ended"] != 0)
