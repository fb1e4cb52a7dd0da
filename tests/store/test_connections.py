"""Connections cut by the server or on the way, idle or in use: the next call does not notice."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import sys
import uuid
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import turnkeep
from tests.observing import Observer, branches_held, until
from tests.store.conftest import OpenStore

USER = {"role": "user", "content": "weather?"}
STEP = {"role": "assistant", "content": "let me see"}
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'turnkeep'"
_ABORT = struct.pack("ii", 1, 0)

SAVE = """
import asyncio, sys, uuid, turnkeep
async def main():
    async with turnkeep.open(sys.argv[1]) as store:
        branch = await store.conversation("c")
        await branch.save([{"role": "assistant"}], write_id=uuid.UUID(sys.argv[2]))
asyncio.run(main())
"""


class Proxy:
    """What stands between a store and its server on the network, and can cut what passes through it."""

    def __init__(self, dsn: str) -> None:
        named = conninfo_to_dict(dsn)
        self._socket = Path(str(named["host"])) / f".s.PGSQL.{named['port']}"
        self._served: dict[asyncio.Task[None], StreamWriter] = {}
        self.silent = asyncio.Event()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Pass on what comes, both ways."""
        task = asyncio.current_task()
        assert task is not None
        self._served[task] = writer
        server_reader, server_writer = await asyncio.open_unix_connection(str(self._socket))
        ways = [(reader, server_writer), (server_reader, writer)]
        try:
            await asyncio.gather(*(self._pass_on(*way, self.silent) for way in ways))
        except OSError:
            return
        finally:
            for one in (server_writer, writer):
                one.transport.abort()

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter, silent: asyncio.Event) -> None:
        while data := await reader.read(1 << 16):
            if not silent.is_set():
                writer.write(data)
        writer.close()

    def swallow(self) -> None:
        """Let nothing pass any more on the connections there are, and say nothing about it."""
        self.silent.set()
        self.silent = asyncio.Event()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._served.values():
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            writer.transport.abort()

    async def end(self) -> None:
        """Cut everything, and wait until it is gone."""
        self.cut()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)


@asynccontextmanager
async def proxied(dsn: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the server of a conninfo, and the conninfo through it."""
    proxy = Proxy(dsn)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, make_conninfo(dsn, host="127.0.0.1", hostaddr="", port=port, requirepeer="")
    finally:
        server.close()
        await proxy.end()
        await server.wait_closed()


async def busy(store: turnkeep.AsyncStore, names: list[str]) -> list[turnkeep.AsyncBranch]:
    """Branches in the middle of a turn, for which several connections were needed."""
    branches = [await store.conversation(name) for name in names]
    await asyncio.gather(*(branch.begin_turn(USER) for branch in branches))
    return branches


async def test_sessions_that_the_server_ends_for_idleness_are_not_missed(
    dsn: str, observer: Observer, open_store: OpenStore
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = psycopg.sql.Identifier(connection.info.dbname)
        connection.execute(psycopg.sql.SQL("ALTER DATABASE {} SET idle_session_timeout = '100ms'").format(name))
    async with open_store(dsn, pool_size=4) as store:
        for turn in range(3):
            branches = await busy(store, [f"c{turn}.{n}" for n in range(6)])
            await until(lambda: not observer.rows(SESSIONS), "the end of all sessions")
            await asyncio.gather(*(branch.save([STEP]) for branch in branches))
        assert observer.counts()["checkpoint"] == 36


async def test_idle_sessions_ended_by_an_administrator_are_not_missed(
    dsn: str, observer: Observer, open_store: OpenStore
) -> None:
    async with open_store(dsn, pool_size=4) as store:
        branches = await busy(store, [f"c{n}" for n in range(6)])
        observer.rows(
            "SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [p for (p,) in observer.rows(SESSIONS)]
        )
        await asyncio.gather(*(branch.save([STEP]) for branch in branches))
    assert observer.counts()["checkpoint"] == 12


async def test_connections_reset_on_the_way_are_not_missed(dsn: str, observer: Observer) -> None:
    async with proxied(dsn) as (proxy, through), turnkeep.open(through, pool_size=4) as store:
        branches = await busy(store, [f"c{n}" for n in range(6)])
        proxy.cut()  # idle ones
        await asyncio.gather(*(branch.save([STEP]) for branch in branches))
        with branches_held(dsn, branches[0].conversation_id):
            save = asyncio.ensure_future(branches[0].save([STEP]))
            await observer.see_waiting(1)
            proxy.cut()  # one in use
        assert (await save).sub_step == 2
    assert observer.counts()["checkpoint"] == 13


async def test_connections_that_fall_silent_end_at_the_deadline_and_are_used_no_more(
    dsn: str, observer: Observer
) -> None:
    async with proxied(dsn) as (proxy, through), turnkeep.open(through, pool_size=1, timeout=4) as store:
        (branch,) = await busy(store, ["c"])
        proxy.swallow()
        write_id = uuid.uuid4()
        with pytest.raises(turnkeep.UnavailableError, match="write_id"):
            await branch.save([STEP], write_id=write_id)
        assert (await branch.save([STEP], write_id=write_id)).sub_step == 1
    assert observer.counts()["checkpoint"] == 2


async def test_a_program_ended_by_ctrl_c_in_a_save_writes_nothing_after_it_has_ended(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    (branch,) = await busy(store, ["c"])
    before = observer.counts(), observer.heads()
    write_id = uuid.uuid4()
    with branches_held(dsn, branch.conversation_id):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", SAVE, dsn, str(write_id), stderr=PIPE)
        await observer.see_waiting(1)
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
        assert b"KeyboardInterrupt" in said
        assert process.returncode in (1, 130, -signal.SIGINT)
        assert not observer.waiting()  # it has ended in the server too
    assert (observer.counts(), observer.heads()) == before
    assert not (await branch.save([{"role": "assistant"}], write_id=write_id)).repeated
