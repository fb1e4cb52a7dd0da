"""The server's disk is full: writes fail in words or wait, nothing is half written, and all goes on with room."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.acceptance.load import Load
from tests.clusters import Cluster, room
from tests.observing import Observer, until

USER = {"role": "user", "content": "hello"}
LARGE = {"role": "assistant", "content": "".join(uuid.uuid4().hex for _ in range(3_000))}  # nothing to compress

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[None]:
    """A file system of that size at a directory."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


class Ballast:
    """A file that takes all the room there is, until it is thrown away."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"

    def take(self, leave: int = 0) -> None:
        """Fill the disk, but for so many bytes."""
        with self._path.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                while (free := os.statvfs(self._path).f_bavail * os.statvfs(self._path).f_frsize - leave) >= size:
                    file.write(bytes(min(size, free)))

    def throw_away(self) -> None:
        """Make room again."""
        self._path.unlink()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server of the test's own."""
    with room() as place:
        made = Cluster(place / "cluster")
        made.initialise()
        made.start()
        yield made
        made.stop()


@pytest.fixture
def disk(cluster: Cluster) -> Iterator[Path]:
    """A small disk, for tables alone."""
    with small_disk(cluster.directory / "disk", 24):
        yield cluster.directory / "disk"


@pytest.fixture
def dsn(cluster: Cluster, disk: Path) -> Iterator[str]:
    """A database whose tables are on the small disk."""
    folder = disk / "tables"
    folder.mkdir()
    os.chown(folder, cluster.data.stat().st_uid, cluster.data.stat().st_gid)
    with psycopg.connect(cluster.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'".encode())
        connection.execute("CREATE DATABASE small TABLESPACE small")
    dsn = make_conninfo(cluster.conninfo, dbname="small")
    turnkeep.migrate(dsn)
    yield dsn
    cluster.stop()  # before the disk goes


async def fill_up(branch: turnkeep.AsyncBranch) -> uuid.UUID:
    """Save until there is no room, and give the id of the save that did not get any."""
    ids = [uuid.uuid4()]

    async def go_on() -> None:
        while await branch.save([LARGE], write_id=ids[-1]):
            ids.append(uuid.uuid4())

    with pytest.raises(
        turnkeep.UnavailableError, match=r"disk is full; nothing was written: .*No space left on device"
    ):
        await go_on()
    return ids[-1]


async def test_a_write_that_finds_no_room_is_an_error_that_says_so_and_leaves_nothing(dsn: str, disk: Path) -> None:
    ballast = Ballast(disk)
    async with turnkeep.open(dsn, timeout=4) as store:
        branch = await store.conversation("c")
        await branch.begin_turn(USER)
        ballast.take(leave=1 << 20)
        write_id = await fill_up(branch)
        head = (branch.turn_index, branch.sub_step)
        with Observer(dsn) as observer:
            before = observer.counts()
            assert before["message"] == before["checkpoint"] == branch.sub_step + 1
            assert not observer.in_transaction()
        restored = await store.restore("c")  # reading goes on
        assert (restored.turn_index, restored.sub_step) == head
        ballast.throw_away()
        saved = await branch.save([LARGE], write_id=write_id)
        assert (saved.sub_step, saved.repeated) == (head[1] + 1, False)
        assert len((await store.restore("c")).messages) == saved.sub_step + 1


async def test_a_write_waits_within_its_deadline_for_somebody_to_make_room(dsn: str, disk: Path) -> None:
    ballast = Ballast(disk)
    async with turnkeep.open(dsn, timeout=4) as hasty, turnkeep.open(dsn, timeout=120) as patient:
        branch = await hasty.conversation("c")
        await branch.begin_turn(USER)
        ballast.take(leave=1 << 20)
        await fill_up(branch)
        waiting = await patient.conversation("c")
        save = asyncio.ensure_future(waiting.save([LARGE]))
        with Observer(dsn) as observer:
            failed = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            ((seen,),) = observer.rows(failed)
            await until(lambda: observer.rows(failed) > [(seen + 1,)], "a save that found no room")
        assert not save.done()
        ballast.throw_away()
        await save


async def test_a_server_whose_log_finds_no_room_goes_down_and_nothing_acknowledged_is_lost() -> None:
    with room() as place, small_disk(place / "disk", 80):
        cluster = Cluster(place / "cluster")
        cluster.initialise(max_wal_size="'48MB'", restart_after_crash="off")
        move_log(cluster, place / "disk")
        cluster.start()
        try:
            turnkeep.migrate(cluster.conninfo)
            ballast = Ballast(place / "disk")
            async with turnkeep.open(cluster.conninfo, pool_size=10, timeout=300) as store:
                async with Load([store], 8) as load:
                    bulk = await store.conversation("bulk")
                    await bulk.begin_turn(USER)
                    ballast.take()
                    saves = asyncio.ensure_future(save_large(bulk, 500))
                    await until(lambda: not (cluster.data / "postmaster.pid").exists(), "the end of the server")
                    assert "PANIC" in (cluster.data / "server.log").read_text()
                    ballast.throw_away()
                    await asyncio.to_thread(cluster.start)
                    await load.progress()
                    await saves
                load.check(cluster.conninfo)
                assert len((await store.restore("bulk")).messages) == 501
        finally:
            cluster.stop()


def move_log(cluster: Cluster, disk: Path) -> None:
    """Put what a stopped server writes ahead on a disk of its own."""
    subprocess.run(["mv", cluster.data / "pg_wal", disk], check=True)  # with its owner
    (cluster.data / "pg_wal").symlink_to(disk / "pg_wal")


async def save_large(branch: turnkeep.AsyncBranch, times: int) -> None:
    """Save so much that the log needs new files."""
    for _ in range(times):
        await branch.save([LARGE])
