"""A connection to the server that breaks at the worst moment: what was sent has arrived, and nobody hears of it."""

from __future__ import annotations

import asyncio

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Wire:
    """A wire to the server that can be cut right after some words have gone over it, before their answer comes back."""

    def __init__(self, dsn: str, words: bytes = b"COMMIT") -> None:
        self.cut_next = False
        self._words = words
        self.cuts = 0
        self._dsn = dsn
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return make_conninfo(self._dsn, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        given = conninfo_to_dict(self._dsn)
        path = f"{given['host']}/.s.PGSQL.{given.get('port', 5432)}"
        server, to_server = await asyncio.open_unix_connection(path)
        tasks = [
            asyncio.create_task(self._pass_on(client, to_server, to_client)),
            asyncio.create_task(self._pass_on(server, to_client, None)),
        ]
        self._tasks.update(tasks)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for writer in (to_client, to_server):
            writer.transport.abort() if writer is to_client else writer.close()

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
