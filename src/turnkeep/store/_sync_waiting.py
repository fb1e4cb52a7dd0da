"""What waiting means in threads. `_async_waiting` says it for an event loop.

These two are written by hand; what is built on them is written once, and generated for threads.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from time import monotonic
from types import TracebackType
from typing import Any, ParamSpec, TypeAlias, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from turnkeep.store._main_thread import GRACE, Call, Interrupted, carried_out

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

Lock = threading.RLock

ELSEWHERE = "this store was opened before this process was forked: open one in each process that uses one"

_UNUSED = (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


class Connection(psycopg.Connection[Any]):
    """A connection whose statements end at a deadline, in the server too, as they would after Ctrl-C."""

    deadline: float | None = None

    def wait(self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None) -> Result:
        """Wait as psycopg does, until the deadline. Raises `TimeoutError` then."""
        deadline = self.deadline
        if deadline is None or timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, max(deadline - monotonic(), 0.0))
        except psycopg.OperationalError as error:
            if monotonic() < deadline or self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            try:
                self.cancel_safe(timeout=GRACE)
                return super().wait(gen, interval, GRACE)
            except psycopg.errors.QueryCanceled:
                pass
            except psycopg.Error:
                self.pgconn.finish()  # the network is gone too
            raise TimeoutError from error


Pool: TypeAlias = ConnectionPool[Connection]


def here() -> object:
    """What a store belongs to: this process."""
    return os.getpid()


def is_copy(home: object) -> bool:
    """Whether what was opened at `home` is a fork's copy: closed here, it would be closed to the process it is of."""
    return home != os.getpid()


def in_thread(function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
    """Call what may take long: this thread is the caller's own."""
    return function(*args, **kwargs)


def undisturbed(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """For methods that bookkeeping depends on: Ctrl-C ends the caller's waiting, and lets them come to their end."""

    @wraps(method)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if threading.current_thread() is not threading.main_thread():
            return method(*args, **kwargs)
        return Call(partial(method, *args, **kwargs)).outcome()

    return call


class until:
    """Bound what is done with a connection: at the deadline it ends in the server too, and raises `TimeoutError`."""

    def __init__(self, deadline: float, connection: Connection) -> None:
        self._deadline = deadline
        self._connection = connection
        self._call = carried_out()

    def __enter__(self) -> None:
        if self._call is not None:
            self._call.begin(self._connection)
        self._connection.deadline = self._deadline

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.deadline = None
        if self._call is not None:
            self._call.end()


def within(seconds: float, action: Callable[[], None]) -> None:
    """Do something that holds nothing, or raise `TimeoutError`."""

    def work() -> None:
        if (call := carried_out()) is not None:
            call.park()
        action()

    Call(work).outcome(seconds)


def take(pool: Pool, seconds: float) -> Connection:
    """Take a connection out of the pool."""
    call = carried_out()
    if call is not None:
        call.park()
    connection = pool.getconn(seconds)
    if call is not None:
        try:
            call.go_on()
        except Interrupted:
            give_back(pool, connection)
            raise
    return connection


class Slots:
    """A number of places, to be taken and given back."""

    def __init__(self, count: int) -> None:
        self._semaphore = threading.Semaphore(count)

    def take(self, seconds: float) -> None:
        """Take one, or raise `TimeoutError`."""
        call = carried_out()
        if call is not None:
            call.park()
        if not self._semaphore.acquire(timeout=seconds):
            raise TimeoutError
        if call is not None:
            try:
                call.go_on()
            except Interrupted:
                self.give()
                raise

    def give(self) -> None:
        """Give it back."""
        self._semaphore.release()


def sleep(seconds: float) -> None:
    """Let time pass."""
    call = carried_out()
    if call is not None:
        call.park()
    time.sleep(seconds)
    if call is not None:
        call.go_on()


def give_back(pool: Pool, connection: Connection) -> None:
    """Give a connection back to the pool, and close it first if something was left open in it."""
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.ACTIVE:
        with suppress(psycopg.Error):
            connection.cancel_safe(timeout=GRACE)
    if status not in _UNUSED:
        connection.close()
    pool.putconn(connection)


class Background:
    """Work beside the calls, one piece at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._again = False

    def start(self, work: Callable[[], None]) -> None:
        """Begin, or begin again after the piece that is being done. Raises what the last one failed of.

        What it is to mend may have broken since that piece has looked at it.
        """
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                self._again = True
                return
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            self._thread = threading.Thread(target=self._do, args=(work,), name="turnkeep-background", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Give up what is being done: nothing can stop a thread, and nobody waits for it."""

    def _do(self, work: Callable[[], None]) -> None:
        self._again = True
        try:
            while self._again:
                self._again = False
                work()
        except BaseException as failure:  # noqa: BLE001 - raised by the next start
            self._failure = failure
