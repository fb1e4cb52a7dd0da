"""A process that archives, unarchives, exports and imports, and is killed at a chosen exchange with the server.

Run as a program it has imported everything and connected to nothing, forks a process for each job that it reads, and
says how that ended. Exchanges (statements, BEGIN and COMMIT) are seen from outside the store, by replacing the driver's
`wait`.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, BinaryIO
from unittest import mock

import psycopg

import turnkeep
from tests.crash.writer import die, say


def watch_exchanges(kill_at: int, moment: str) -> Any:
    """Number every exchange from 1, and kill this process `before` or `after` one of them."""
    wait = psycopg.AsyncConnection.wait
    made = 0

    async def watched(connection: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal made
        made += 1
        number = made
        if number == kill_at and moment == "before":
            die()
        result = await wait(connection, *arguments, **options)
        if number == kill_at and moment == "after":
            die()
        say(made=number)
        return result

    return mock.patch.object(psycopg.AsyncConnection, "wait", watched)


def file_of(job: dict[str, Any]) -> BinaryIO:
    """What is to be imported."""
    return open(job["file"], "rb")


async def move(job: dict[str, Any]) -> None:
    """Do what a job says."""
    async with turnkeep.open(job["dsn"], pool_size=1) as store:
        match job["action"]:
            case "archive":
                await store.archive(job["conversation"])
            case "unarchive":
                await store.unarchive(job["conversation"])
            case action:
                with file_of(job) as file:
                    await store.import_(file, as_copy=action == "copy")


def main() -> None:
    """Fork a process for each job, and report its end, until the parent has no more."""
    jobs = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - for the process's life
    while line := jobs.readline():
        job = json.loads(line)
        if not (pid := os.fork()):
            status = 1
            say(child=os.getpid())
            try:
                with watch_exchanges(job.get("kill_at", 0), job.get("moment", "")):
                    asyncio.run(move(job))
                status = 0
            except BaseException as error:  # noqa: BLE001 - reported, and the process ends here
                say(error=f"{type(error).__name__}: {error}")
            finally:
                os._exit(status)
        _, ended = os.waitpid(pid, 0)
        say(exit=os.waitstatus_to_exitcode(ended))


if __name__ == "__main__":
    main()
