"""What a command's end means: one table of exit codes, and errors in words."""

from __future__ import annotations

import os
import sys
from enum import IntEnum

from turnkeep import errors


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    NO_REPLY = 4
    CONFLICT = 5
    FINDINGS = 6
    UNREACHABLE = 7
    INTERRUPTED = 130
    BROKEN_PIPE = 141


EXPLAINED = {
    Exit.OK: "done",
    Exit.FAILURE: "failed, or a turn has",
    Exit.USAGE: "wrong usage or configuration",
    Exit.NOT_FOUND: "no such conversation, branch or checkpoint",
    Exit.NO_REPLY: "no reply within the time given",
    Exit.CONFLICT: "another writer was faster, or holds a lease",
    Exit.FINDINGS: "doctor found a problem, or migrate --status something to do",
    Exit.UNREACHABLE: "the database can't be reached",
    Exit.INTERRUPTED: "interrupted",
    Exit.BROKEN_PIPE: "the reader of the output went away",
}

# The first class that fits an error decides.
_CODES: tuple[tuple[type[errors.TurnkeepError], Exit], ...] = (
    (errors.ConfigurationError, Exit.USAGE),
    (errors.InvalidInputError, Exit.USAGE),
    (errors.NotFoundError, Exit.NOT_FOUND),
    (errors.ReplyTimeoutError, Exit.NO_REPLY),
    (errors.ConflictError, Exit.CONFLICT),
    (errors.LeaseError, Exit.CONFLICT),
    (errors.UnavailableError, Exit.UNREACHABLE),
    (errors.PoolExhaustedError, Exit.UNREACHABLE),
    (errors.EmbeddedError, Exit.UNREACHABLE),
    (errors.TurnkeepError, Exit.FAILURE),
)


def exit_code(error: errors.TurnkeepError) -> Exit:
    """The exit code that stands for an error."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


def stop_writing() -> None:
    """Let nothing more go to a stream that takes nothing any more, not even what is buffered."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
