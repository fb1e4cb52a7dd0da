"""A worker of the search that is killed at a chosen statement. Run as a program it is a nursery, as `writer.py` is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import Any

import turnkeep
from tests.crash.writer import say, watch_statements
from tests.embedding_client import HttpProvider
from turnkeep.search import EmbedWorker
from turnkeep.testing import EmbeddingServer

BATCH = 3


def name_of(text: str) -> str:
    """What a statement of the worker does, told by its text."""
    if function := re.search(r"(fill|embedded)_v1\(", text):
        return function.group(1)
    if "AS due" in text or "due AS" in text:
        return "claim_fill" if "d.text IS NULL" in text else "claim_embed"
    if "stale AS" in text:
        return "requeue"
    return "turn" if "final AS" in text else "look"


async def run(job: dict[str, Any]) -> None:
    """Do all there is to do."""
    async with turnkeep.open(job["dsn"], pool_size=1) as store:
        await EmbedWorker(store, HttpProvider(job["port"], job.get("model", EmbeddingServer.model)), batch=BATCH).run(
            drain=True
        )


def live(job: dict[str, Any]) -> None:
    """One life."""
    code = 1
    try:
        say(started=os.getpid())
        with watch_statements(job["kill_at"], job["moment"], name_of):
            asyncio.run(run(job))
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """Fork a worker for each job, and report its end, until the parent has no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - unbuffered: workers read here too
    while line := jobs.readline():
        if not line.strip():
            continue
        if not (pid := os.fork()):
            live(json.loads(line))
        say(pid=pid)
        _, status = os.waitpid(pid, 0)
        say(exit=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
