"""The worker's process: one at a time, killed and started again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from psycopg.conninfo import make_conninfo

from turnkeep.demo.events import View, WorkerStarted
from turnkeep.errors import TurnkeepError

_STEP = 0.02  # seconds between two looks whether a process has ended


class DemoError(TurnkeepError):
    """The demo could not go on, for a reason that is not among those it is there to show."""


class Workers:
    """Starts workers on a store, each under a name of its own, which its sessions in Postgres bear too."""

    def __init__(self, directory: Path, view: View) -> None:
        self.outside = directory / "outside.jsonl"
        self.name = ""
        self._errors = directory / "workers.log"
        self._view = view
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, database: str, base_url: str) -> None:
        """Start a worker that serves until it is killed, or its standard input ends."""
        self._number += 1
        self.name = f"turnkeep demo, worker {self._number}"
        process = self._start(
            name=self.name,
            database=make_conninfo(database, application_name=self.name),
            schema="turnkeep",
            base_url=base_url,
            outside=str(self.outside),
            paced=True,
            drain=False,
        )
        self._view.tell(WorkerStarted(self._number, process.pid))

    async def drain(self, database: str, schema: str, base_url: str) -> None:
        """Have a worker do all there is, as fast as it can. Returns at its end."""
        process = self._start(
            name=f"turnkeep demo, {schema}",
            database=database,
            schema=schema,
            base_url=base_url,
            outside=f"{self.outside}.{schema}",
            paced=False,
            drain=True,
        )
        while True:
            if (status := process.poll()) is not None:
                break
            await asyncio.sleep(_STEP)
        if status != 0:
            raise DemoError(f"the {schema} worker failed. Its last words: {self._last_words()}")

    def kill(self) -> None:
        """Kill the worker with SIGKILL, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self.close()

    def close(self) -> None:
        """End the worker, which the end of its input tells it."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait()

    def raise_failure(self) -> None:
        """Raise `DemoError` if a worker has ended that nobody killed."""
        if self._process is not None and self._process.poll() is not None:
            raise DemoError(f"the worker ended by itself. Its last words: {self._last_words()}")

    def _start(self, **order: object) -> subprocess.Popen[bytes]:
        self.close()
        with self._errors.open("ab") as errors:
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "turnkeep.demo.app"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the client, which ends it
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        return process

    def _last_words(self) -> str:
        lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "none"
