"""What waiting means in an event loop. `_sync_waiting` says it for threads.

These two are written by hand; what is built on them is written once, and generated for threads.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

Method = TypeVar("Method")
Connection: TypeAlias = AsyncConnection[Any]
Pool: TypeAlias = AsyncConnectionPool[Connection]

Lock = asyncio.Lock
sleep = asyncio.sleep
in_thread = asyncio.to_thread

ELSEWHERE = "this store belongs to another event loop: open one in each loop that uses one"

_UNUSED = (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
_returning: set[asyncio.Future[None]] = set()


def here() -> object:
    """What a store belongs to: the running event loop."""
    return asyncio.get_running_loop()


def is_copy(home: object) -> bool:
    """Whether what was opened at `home` is a copy of another process's, and not to be closed here."""
    return False


def undisturbed(method: Method) -> Method:
    """For methods that bookkeeping depends on: cancelling comes at an `await` only, and needs nothing more."""
    return method


def until(deadline: float, connection: Connection) -> asyncio.Timeout:
    """Bound what is done with a connection: at the deadline it ends in the server too, and raises `TimeoutError`."""
    return asyncio.timeout(deadline - monotonic())


async def within(seconds: float, action: Callable[[], Awaitable[None]]) -> None:
    """Do something that holds nothing, or raise `TimeoutError`."""
    async with asyncio.timeout(seconds):
        await action()


async def take(pool: Pool, seconds: float) -> Connection:
    """Take a connection out of the pool."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    connection = await pool.getconn(seconds)
    if task is not None and task.cancelling() > before:
        # Up to Python 3.11, waiting with a timeout loses a cancellation that comes together with what is waited for.
        await give_back(pool, connection)
        raise asyncio.CancelledError
    return connection


class Slots:
    """A number of places, to be taken and given back."""

    def __init__(self, count: int) -> None:
        self._semaphore = asyncio.Semaphore(count)

    async def take(self, seconds: float) -> None:
        """Take one, or raise `TimeoutError`."""
        async with asyncio.timeout(seconds):
            await self._semaphore.acquire()

    def give(self) -> None:
        """Give it back."""
        self._semaphore.release()


async def give_back(pool: Pool, connection: Connection) -> None:
    """Give a connection back to the pool, and close it first if something was left open in it."""
    if connection.pgconn.transaction_status not in _UNUSED:
        await connection.close()
    # Cancelled in the middle of this, a call would take its connection along, and the pool end up empty. Nearly
    # always there is no middle; else the rest is a task of its own. (A task each time: 3 % of a save.)
    giving = pool.putconn(connection)
    try:
        waiting_for = giving.send(None)
    except StopIteration:
        return
    returning = asyncio.ensure_future(_the_rest(giving, waiting_for))
    _returning.add(returning)
    returning.add_done_callback(_returning.discard)
    await asyncio.shield(returning)


@types.coroutine
def _the_rest(coroutine: Coroutine[Any, Any, None], waiting_for: Any) -> Generator[Any, Any, None]:
    """Go on with a coroutine that has begun and waits for a future."""
    try:
        while True:
            yield waiting_for
            waiting_for = coroutine.send(None)
    except StopIteration:
        return


class Background:
    """Work beside the calls, one piece at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin, or begin again after the piece that is being done. Raises what the last one failed of.

        What it is to mend may have broken since that piece has looked at it.
        """
        if self._task is not None and not self._task.done():
            self._again = True
            return
        last, self._task = self._task, None
        if last is not None and not last.cancelled():
            last.result()
        self._task = asyncio.get_running_loop().create_task(self._do(work))

    async def _do(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._again = True
        while self._again:
            self._again = False
            await work()

    def stop(self) -> None:
        """Give up what is being done."""
        if self._task is not None:
            self._task.cancel()
