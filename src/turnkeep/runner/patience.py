"""How long a request waits for a model server that fails: pure, it is told the time."""

from __future__ import annotations

from turnkeep.runner.deltas import ModelUnavailableError
from turnkeep.runner.effects import ModelRefused

_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0
_PATIENCE = 60.0
_MOST_BREAKS = 10


class Patience:
    """The failures of one request so far.

    A server that is away is waited for, at growing intervals; after a minute the branch is better handed back. Two
    things look as if they passed and never do: a request that the server answers with the same 500 all that time, and
    one whose reply breaks off again and again, which may be what kills the server.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._wait = _FIRST_WAIT
        self._breaks = 0
        self._first = ""
        self._alike = True

    def after(self, error: ModelUnavailableError, now: float) -> float | ModelRefused | None:
        """The seconds to wait before the next try, the failure that it comes to, or None: hand back.

        `now` is the time of a monotonic clock, in seconds.
        """
        if error.begun:
            self._breaks += 1
            self._since, self._wait = None, _FIRST_WAIT
        if self._breaks >= _MOST_BREAKS:
            return ModelRefused(f"the reply broke off {self._breaks} times in a row: {error}", error.status)
        if self._since is None:
            self._since, self._first, self._alike = now, error.reason, True
        self._alike = self._alike and error.status == 500 and error.reason == self._first
        if now - self._since > _PATIENCE:
            return ModelRefused(error.reason, error.status) if self._alike else None
        wait, self._wait = self._wait, min(self._wait * 2, _LONGEST_WAIT)
        return max(wait, error.retry_after or 0.0)
