"""The store for threads, awaited: each call runs in a thread, so that one test tells of both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any, Self, cast

import psycopg

import turnkeep

THREADS = 64  # more than calls of a test that wait for each other


class InThreads:
    """A stand-in whose methods are awaited, and whose attributes are those of what it stands for."""

    def __init__(self, inner: Any, threads: ThreadPoolExecutor) -> None:
        self.__dict__.update(inner=inner, threads=threads)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        return partial(self._called, value) if callable(value) else self._wrapped(value)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.inner, name, value)

    async def _called(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        call = partial(method, *args, **kwargs)
        return self._wrapped(await asyncio.get_running_loop().run_in_executor(self.threads, call))

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrapped(one) for one in value]
        stand_in = next((stand_in for kind, stand_in in STAND_INS.items() if isinstance(value, kind)), None)
        return value if stand_in is None else stand_in(value, self.threads)


class AsyncStore(InThreads):
    """Stands for a `Store`."""

    def tenant(self, name: str) -> AsyncStore:
        """One tenant's view."""
        return AsyncStore(self.inner.tenant(name), self.threads)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncBranch(InThreads):
    """Stands for a `Branch`."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Enter and leave in threads."""
        block: AbstractContextManager[turnkeep.Transaction] = self.inner.transaction()
        opened = await self._called(block.__enter__)
        try:
            yield opened
        except BaseException as error:
            await self._called(block.__exit__, type(error), error, error.__traceback__)
            raise
        else:
            await self._called(block.__exit__, None, None, None)


STAND_INS = {
    turnkeep.Branch: AsyncBranch,
    turnkeep.Transaction: InThreads,
    psycopg.Connection: InThreads,
    psycopg.Cursor: InThreads,
}


@asynccontextmanager
async def open_in_threads(*args: Any, **kwargs: Any) -> AsyncIterator[turnkeep.AsyncStore]:
    """What `turnkeep.open` gives, by `turnkeep.open_sync`."""
    with ThreadPoolExecutor(THREADS) as threads:
        async with AsyncStore(turnkeep.open_sync(*args, **kwargs), threads) as store:
            yield cast("turnkeep.AsyncStore", store)
