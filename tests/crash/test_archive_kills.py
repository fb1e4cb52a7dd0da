"""Kill -9 at every exchange of an archiving, an unarchiving and an import, beside a writer: whole or not at all.

The same call again finishes it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import turnkeep
from tests.conftest import Server, _database
from tests.observing import Observer, branches_held
from tests.store.whole_rows import exported, rich, rows
from turnkeep import AsyncStore

KILLED = -signal.SIGKILL
HOT = ("branch", "message", "checkpoint", "request")


class Mover:
    """Runs jobs in processes of their own, one after the other."""

    def __init__(self) -> None:
        self.child = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.mover"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, **job: Any) -> tuple[int, int]:
        """How many exchanges it made, and its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        made = 0
        for line in self._process.stdout:
            event = json.loads(line)
            assert "error" not in event, event
            self.child = event.get("child", self.child)
            made = event.get("made", made)
            if "exit" in event:
                return made, event["exit"]
        raise AssertionError("the mover has gone")

    def close(self) -> None:
        """End it."""
        self._process.communicate()


@pytest.fixture(scope="module")
def mover() -> Iterator[Mover]:
    running = Mover()
    yield running
    running.close()


@asynccontextmanager
async def writing(store: AsyncStore) -> AsyncIterator[None]:
    """A writer beside it all. What it has been told is saved must be there in the end."""
    branch = await store.conversation("beside")
    saved = 0

    async def write() -> None:
        nonlocal saved
        while True:
            await branch.begin_turn({"role": "user", "content": str(saved)})
            await branch.save([{"role": "assistant", "content": "ok"}], final=True)
            saved += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(write())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert saved > 0
    messages = (await store.restore("beside")).messages
    assert [message["content"] for message in messages[::2]][:saved] == [str(number) for number in range(saved)]


def held(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """What an archive holds, and the conversation itself without the time of its archiving."""
    return {table: found[table] for table in HOT}


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_around_any_exchange_an_archiving_is_whole_or_has_not_been(
    mover: Mover, store: AsyncStore, dsn: str, moment: str
) -> None:
    conversation = await rich(store, "c", ended=True)
    hot = held(rows(dsn, [conversation], exact=True))
    exchanges, code = await asyncio.to_thread(mover.run, dsn=dsn, action="archive", conversation="c")
    assert code == 0
    assert exchanges > 8
    seen = set()
    async with writing(store):
        await store.unarchive("c")
        for number in range(1, exchanges + 1):
            _, code = await asyncio.to_thread(
                mover.run, dsn=dsn, action="archive", conversation="c", kill_at=number, moment=moment
            )
            assert code == KILLED, number
            found = rows(dsn, [conversation], exact=True)
            archived = bool(found["archive"])
            seen.add(archived)
            assert held(found) == ({table: [] for table in HOT} if archived else hot), number
            assert ((await store.describe("c")).archived_at is not None) == archived
            _, code = await asyncio.to_thread(mover.run, dsn=dsn, action="archive", conversation="c")
            assert code == 0
            assert not any(held(rows(dsn, [conversation])).values())
            await store.unarchive("c")
            assert held(rows(dsn, [conversation], exact=True)) == hot, number
    assert seen >= ({False} if moment == "before" else {False, True})


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_around_any_exchange_an_unarchiving_is_whole_or_has_not_been(
    mover: Mover, store: AsyncStore, dsn: str, moment: str
) -> None:
    conversation = await rich(store, "c", ended=True)
    hot = held(rows(dsn, [conversation], exact=True))
    await store.archive("c")
    exchanges, code = await asyncio.to_thread(mover.run, dsn=dsn, action="unarchive", conversation="c")
    assert code == 0
    async with writing(store):
        for number in range(1, exchanges + 1):
            await store.archive("c")
            before = rows(dsn, [conversation], exact=True)
            _, code = await asyncio.to_thread(
                mover.run, dsn=dsn, action="unarchive", conversation="c", kill_at=number, moment=moment
            )
            assert code == KILLED, number
            found = rows(dsn, [conversation], exact=True)
            if found["archive"]:
                assert found == before, number
            else:
                assert held(found) == hot, number
            _, code = await asyncio.to_thread(mover.run, dsn=dsn, action="unarchive", conversation="c")
            assert code == 0
            found = rows(dsn, [conversation], exact=True)
            assert held(found) == hot
            assert not found["archive"]


@pytest.fixture
def other_dsn(server: Server, template: str) -> Any:
    yield from _database(server, template)


@pytest.mark.parametrize("action", ["import", "copy"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_around_any_exchange_an_import_has_made_whole_conversations_only(
    mover: Mover, store: AsyncStore, dsn: str, other_dsn: str, moment: str, action: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        await rich(store, name)
    await rich(store, "c", ended=True)
    await store.archive("c")
    file = tmp_path / "export"
    file.write_bytes(await exported(store))
    async with turnkeep.open(other_dsn) as target:
        job = {"dsn": other_dsn, "action": action, "file": str(file)}
        exchanges, code = await asyncio.to_thread(mover.run, **job)
        assert code == 0
        whole = rows(other_dsn)
        if action == "import":
            assert whole == rows(dsn)
        ids = [uuid.UUID(row[0]) for row in whole["conversation"]]
        by_id = {one: rows(other_dsn, [one]) for one in ids}
        made = set()
        async with writing(target):
            for number in range(1, exchanges + 1):
                for one in ids:
                    await target.erase(one)
                _, code = await asyncio.to_thread(mover.run, **job, kill_at=number, moment=moment)
                assert code == KILLED, number
                found = [one for one in ids if any(rows(other_dsn, [one]).values())]
                made.add(len(found))
                for one in found:
                    assert rows(other_dsn, [one]) == by_id[one], (number, one)
                _, code = await asyncio.to_thread(mover.run, **job)
                assert code == 0
                assert rows(other_dsn, ids) == whole, number
        assert made >= {0, 1, 2}


async def test_killed_while_it_waits_for_a_writer_an_archiving_has_not_been(
    mover: Mover, store: AsyncStore, dsn: str, observer: Observer
) -> None:
    conversation = await rich(store, "c")
    before = rows(dsn, exact=True)
    with branches_held(dsn, conversation):
        run = asyncio.create_task(asyncio.to_thread(mover.run, dsn=dsn, action="archive", conversation="c"))
        await observer.see_waiting(1)
        os.kill(mover.child, signal.SIGKILL)
        assert (await run)[1] == KILLED
    assert rows(dsn, exact=True) == before
    await store.archive("c")


async def test_a_server_that_loses_the_session_in_the_middle_is_asked_again(
    store: AsyncStore, dsn: str, observer: Observer
) -> None:
    conversation = await rich(store, "c")
    with branches_held(dsn, conversation):
        task = asyncio.create_task(store.archive("c"))
        (pid,) = await observer.see_waiting(1)
        observer.rows("SELECT pg_terminate_backend(%s)", pid)
        await observer.see_waiting(1)
    assert not (await task).repeated
    assert not any(held(rows(dsn, [conversation])).values())
