"""Workers that write down each piece of text as it arrives, and the handle by which tests watch and kill them.

`python -m engines.worker` serves `engines.app` on the database in DATABASE, until it is killed or its standard input
ends. The pieces are lines of JSON in the file PIECES, on which all workers of a test write.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import turnkeep
from turnkeep.runner import Agent, Driver, Worker
from turnkeep.store import AsyncBranch


@dataclass(frozen=True)
class Piece:
    """A piece of text that a worker got: when, by the machine's clock, and in which conversation."""

    owner: str
    at: float
    conversation: str
    text: str


def pieces(path: Path) -> list[Piece]:
    """All pieces so far. A kill may have cut the last line short."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [Piece(**json.loads(line)) for line in lines if line.endswith("\n")]


class TellingWorker(Worker):
    """A worker that writes down the pieces of text it gets."""

    name: str
    out: int

    def driver(self, branch: AsyncBranch, agent: Agent) -> Driver:
        """A driver that tells of the pieces it gets."""
        plain = super().driver(branch, agent)

        def tell(text: str) -> None:
            piece = {"owner": self.name, "at": time.time(), "conversation": branch.external_id, "text": text}
            os.write(self.out, json.dumps(piece).encode() + b"\n")

        return Driver(branch, agent, plain.model, tell)


class WorkerProcess:
    """A worker in a process of its own, which is killed at the end of the block if not before.

    What it logs is in `log`: why it waits for a model server, above all.
    """

    def __init__(self, name: str, database: str, directory: Path, env: Mapping[str, str], *, lease: float) -> None:
        self._log = directory / f"{name}.log"
        self._env = {
            **os.environ,
            **env,
            "DATABASE": database,
            "PIECES": str(directory / "pieces"),
            "OWNER": name,
            "LEASE": str(lease),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engines.worker"], env=self._env, stdin=subprocess.PIPE, stderr=log
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


async def work() -> None:
    """Serve."""
    from engines.app import agent

    async with turnkeep.open(os.environ["DATABASE"]) as store:
        worker = TellingWorker(
            store, [agent], owner=os.environ["OWNER"], lease_seconds=float(os.environ["LEASE"]), poll_seconds=0.05
        )
        worker.name = os.environ["OWNER"]
        worker.out = os.open(os.environ["PIECES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        await worker.run()


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("turnkeep.runner").setLevel(logging.INFO)
    threading.Thread(target=_end_with_input, daemon=True).start()
    asyncio.run(work())
