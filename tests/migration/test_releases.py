"""Clients of the release before work on with today's schema, and today's refuses an older one before it writes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import turnkeep
from turnkeep.store import status

RELEASES = sorted((Path(__file__).parent / "releases").glob("*.whl"))
CLIENT = Path(__file__).parent / "client.py"


def name_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


class Client:
    """A process of a release."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def __call__(self, *operation: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(operation).encode() + b"\n")
        await self._process.stdin.drain()
        return await self.answer()

    async def answer(self) -> Any:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        assert line, "the client has ended"
        return json.loads(line)


@asynccontextmanager
async def client(wheel: Path | None, unpacked: Path, dsn: str, *options: str) -> AsyncIterator[Client]:
    """A client of a release, or of today's code."""
    environment = dict(os.environ)
    if wheel is not None:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        environment["PYTHONPATH"] = str(unpacked)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CLIENT), dsn, *options),
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    running = Client(process)
    try:
        version = await running.answer()
        assert version == (turnkeep.__version__ if wheel is None else name_of(wheel))
        yield running
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


@pytest.fixture(params=RELEASES, ids=name_of)
def release(request: pytest.FixtureRequest) -> Path:
    """The wheel of a release before this one."""
    wheel: Path = request.param
    assert name_of(wheel) != turnkeep.__version__
    return wheel


def rows(dsn: str) -> list[Any]:
    """What is written, by table."""
    tables = ("conversation", "branch", "checkpoint", "message", "request", "document", "migration")
    with psycopg.connect(dsn) as connection:
        return [connection.execute(f"SELECT count(*) FROM turnkeep.{table}").fetchone() for table in tables]  # noqa: S608


async def a_day(one: Client, number: int, turns: int) -> None:
    """Everything a client does, some times over: statements are prepared then."""
    await one("take", "c")
    for turn in range(turns):
        assert len(await one("turn", "c", f"{number}.{turn}")) == 3
        assert await one("request", f"r{number}.{turn}", f"question {number}.{turn}") == f"QUESTION {number}.{turn}"
        assert len(await one("fork", "c")) == 3
        assert "messages" in await one("read", "c")


async def test_a_client_works_on_while_the_schema_is_migrated(release: Path, empty_dsn: str, tmp_path: Path) -> None:
    async with client(release, tmp_path, empty_dsn, "--migrate") as old:
        await a_day(old, 1, 4)
        await old("take", "open")
        assert await old("open_turn", "open", "go on") == [0, 1, 2]
        assert not status(empty_dsn).current
        turnkeep.migrate(empty_dsn)
        assert status(empty_dsn).current
        assert await old("end_turn", "open") == [0, 3, 4]
        await a_day(old, 2, 4)
        async with client(None, tmp_path, empty_dsn) as new:
            await a_day(new, 3, 2)
            await a_day(old, 4, 2)
            for each, other in ((old, new), (new, old)):
                await each("take", "open")
                await each("open_turn", "open", "yours")
                call = f"look (call_1) of turn {place_of(await each('read', 'open'))}"
                assert (await other("read", "open"))["pending"] == [call]
                await other("take", "open")
                await other("end_turn", "open")
            assert await old("read", "c") == await new("read", "c")


def place_of(read: Any) -> str:
    turn_index, sub_step = read["places"][0]
    return f"{turn_index}.{sub_step}"


async def test_a_client_reads_what_only_this_release_writes(release: Path, empty_dsn: str, tmp_path: Path) -> None:
    async with client(release, tmp_path, empty_dsn, "--migrate") as old:
        await a_day(old, 1, 1)
        turnkeep.migrate(empty_dsn)
        async with turnkeep.open(empty_dsn) as store:
            branch = await store.conversation("c")
            whole = [{"role": "system", "content": "short"}, *branch.messages[2:]]
            await branch.save_all(whole, state={"n": 1}, final=True)
            read = await old("read", "c")
            assert (read["messages"], read["state"]) == (whole, {"n": 1})
            await old("take", "c")
            await old("turn", "c", "after the list")
            await branch.refresh()
            assert branch.messages[: len(whole)] == whole
            await store.fork("c", into="copy")
            assert (await old("read", "copy"))["messages"] == branch.messages
            await store.fork("c", at=(0, 0), name="named")
            await store.switch("c", "named")
            assert (await old("read", "c"))["places"] == [[0, 0]]
            await store.switch("c", 0)
            await store.update("c", title="t", metadata={"k": 1})
            await store.end("c")
            for operation in (("turn", "c", "x"), ("fork", "c")):
                refused = await old(*operation)
                assert refused["error"] == "ConversationEndedError", refused
            await store.reopen("c")
            await old("take", "c")
            assert len(await old("turn", "c", "reopened")) == 3
            await store.erase("c")
            assert (await old("turn", "c", "y"))["error"] == "NotFoundError"


async def test_an_older_schema_is_refused_and_nothing_is_written(release: Path, empty_dsn: str, tmp_path: Path) -> None:
    async with client(release, tmp_path, empty_dsn, "--migrate") as old:
        await a_day(old, 1, 1)
        before = rows(empty_dsn)
        with pytest.raises(turnkeep.SchemaError, match="turnkeep migrate"):
            async with turnkeep.open(empty_dsn):
                pass
        assert rows(empty_dsn) == before
        assert len(await old("turn", "c", "as before")) == 3


async def test_an_older_migrate_leaves_todays_schema_alone(release: Path, dsn: str, tmp_path: Path) -> None:
    before = rows(dsn)
    async with client(release, tmp_path, dsn, "--migrate") as old:
        await a_day(old, 1, 1)
    assert status(dsn).current
    assert rows(dsn)[-1] == before[-1]
