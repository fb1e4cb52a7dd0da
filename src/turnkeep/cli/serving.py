"""What commands that serve until they are stopped have in common: being stopped, and a log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from datetime import UTC, datetime
from typing import Any, Protocol

from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options
from turnkeep.cli.text import printable


class Stoppable(Protocol):
    """What can be told to come to its end."""

    def stop(self) -> None:
        """Come to an end."""


class Stop:
    """Listens to SIGTERM and SIGINT: the first lets the worker come to its end, the second ends the process."""

    def __init__(self, worker: Stoppable, log: Log) -> None:
        self.asked = False
        self._worker = worker
        self._log = log
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        if self.asked:
            os._exit(Exit.INTERRUPTED)
        self.asked = True
        self._worker.stop()  # first: there may be nobody any more who reads the log
        self._log.tell("stopping: what is under way is handed back; a second signal ends at once")


# -- the log


class Log:
    """What workers log, on stderr, unless the app has handlers of its own for that."""

    def __init__(self, options: Options, *, verbose: bool) -> None:
        self._options = options
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Lines() if not options.json else _Objects())
        for name in ("turnkeep.runner", "turnkeep.search"):
            logger = logging.getLogger(name)
            if verbose:
                logger.setLevel(logging.INFO)
            if not logger.hasHandlers():
                logger.addHandler(handler)

    def tell(self, words: str, **facts: Any) -> None:
        """Say how the worker itself gets on."""
        if not self._options.json:
            self._options.output.note(words)
        elif not self._options.quiet:
            print(
                json.dumps({"time": _time(), "level": "INFO", "message": words, **facts}), file=sys.stderr, flush=True
            )


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{datetime.fromtimestamp(record.created):%H:%M:%S} {record.levelname} {record.getMessage()}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return printable("\n".join(lines))


class _Objects(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = {"time": _time(record.created), "level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def _time(seconds: float | None = None) -> str:
    now = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return now.isoformat(timespec="milliseconds")
