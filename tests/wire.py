"""A connection to the server that breaks at the worst moment: what was sent has arrived, and nobody hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Wire:
    """A wire to the server that can be cut right after some words have gone over it, before their answer comes back."""

    def __init__(self, dsn: str, words: bytes = b"COMMIT") -> None:
        self.cut_next = False
        self._words = words
        self.cuts = 0
        self._dsn = dsn
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return make_conninfo(self._dsn, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            given = conninfo_to_dict(self._dsn)
            server, to_server = await asyncio.open_unix_connection(
                f"{given['host']}/.s.PGSQL.{given.get('port', 5432)}"
            )
            try:
                await _first_of(self._pass_on(client, to_server, to_client), self._pass_on(server, to_client, None))
            finally:
                to_client.transport.abort()
                await _closed(to_server)
        finally:
            await _closed(to_client)

    async def _pass_on(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, cut: asyncio.StreamWriter | None
    ) -> None:
        while data := await source.read(65536):
            to.write(data)
            await to.drain()
            if cut is not None and self.cut_next and self._words in data:
                self.cut_next = False
                self.cuts += 1
                return


async def _first_of(*ways: Coroutine[None, None, None]) -> None:
    """Run all until the first has ended, and end the others."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close, and wait until it is closed: what is left open is found by some later test."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
