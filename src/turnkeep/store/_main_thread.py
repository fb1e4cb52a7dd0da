"""Calls of the main thread, carried out by a helper.

Signal handlers run in the main thread, between any two of its instructions, and may raise there: Ctrl-C in the middle
of the pool's bookkeeping would take a connection along, or a lock. So the main thread has its calls carried out by a
helper, which nothing interrupts, and only waits. Other threads are never interrupted, and do their calls themselves.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import psycopg

Connection = psycopg.Connection[Any]
Result = TypeVar("Result")

GRACE = 5.0
"""Seconds for a cancelled statement to end."""


class Interrupted(BaseException):
    """Ends a call whose caller has gone."""


class Call(Generic[Result]):
    """A call of the main thread's, carried out by a helper.

    Locks here are the plain ones, and are taken by `with`: nothing interrupts that halfway.
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self.interrupted = False
        self._work = work
        self._context = copy_context()
        self._lock = threading.Lock()
        self._started = False
        self._parked = False  # nothing is under way that the caller would have to wait for
        self._connection: Connection | None = None  # in use by a statement
        self._result: list[Result] = []
        self._failure: BaseException | None = None
        self._ended = False
        self._done = threading.Lock()
        self._done.acquire()

    # -- in the main thread

    def outcome(self, seconds: float = -1) -> Result:
        """Have it carried out, and wait: for ever, or so long. A caller that is interrupted waits for its end."""
        try:
            _hand_over(self)
            if not self._done.acquire(timeout=seconds):
                raise TimeoutError
        except BaseException:
            self._give_up()
            raise
        failure, self._failure = self._failure, None  # its traceback leads back here
        if failure is not None:
            raise failure
        return self._result[0]

    def _give_up(self) -> None:
        """Cancel what is under way, and see it end. What has not begun ends by itself, before its first statement."""
        self.interrupted = True
        if not self._started:
            _hand_over(self)  # again, perhaps
        with self._lock:
            if self._parked or self._ended:
                return
            if self._connection is not None:
                with suppress(psycopg.Error):
                    self._connection.cancel_safe(timeout=GRACE)
        if not self._done.acquire(timeout=GRACE):
            with self._lock:
                if self._connection is not None:
                    self._connection.close()

    # -- in the helper

    def carry_out(self) -> None:
        """Do it, and tell the caller."""
        with self._lock:
            if self._started:
                return
            self._started = True
        _helping.call = self
        try:
            self._result.append(self._context.run(self._work))
        except Interrupted:
            pass  # the caller has gone
        except BaseException as failure:  # noqa: BLE001 - raised by the caller
            self._failure = failure
        _helping.call = None
        self._ended = True
        self._done.release()

    def park(self) -> None:
        """From here until `go_on` the caller may go without waiting."""
        with self._lock:
            if self.interrupted:
                raise Interrupted
            self._parked = True

    def go_on(self) -> None:
        """Return to what the caller has to wait for, if it is still there."""
        with self._lock:
            if self.interrupted:
                raise Interrupted
            self._parked = False

    def begin(self, connection: Connection) -> None:
        """From here until `end` the caller may cancel what is done with a connection."""
        with self._lock:
            if self.interrupted:
                raise Interrupted
            self._connection = connection

    def end(self) -> None:
        """The connection is not to be touched by the caller any more."""
        with self._lock:
            self._connection = None
            if self.interrupted:
                raise Interrupted


_helping = threading.local()
_calls: SimpleQueue[Call[Any]] = SimpleQueue()
_idle: deque[None] = deque()  # one for each helper that waits


def carried_out() -> Call[Any] | None:
    """The call that this thread carries out for the main one."""
    call: Call[Any] | None = getattr(_helping, "call", None)
    return call


def _hand_over(call: Call[Any]) -> None:
    try:
        _idle.pop()
    except IndexError:
        threading.Thread(target=_help, name="turnkeep-helper", daemon=True).start()
    _calls.put(call)


def _help() -> None:
    while True:
        _calls.get().carry_out()
        _idle.append(None)


def _forget_helpers() -> None:
    """In a fork's child there are none."""
    global _calls
    _idle.clear()
    _calls = SimpleQueue()


os.register_at_fork(after_in_child=_forget_helpers)
