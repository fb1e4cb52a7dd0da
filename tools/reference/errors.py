"""The page about errors: the tree, what each means, and what it becomes on the command line and comes from in SQL."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import psycopg

from tools.reference import sql
from tools.reference.markdown import page, prose, table
from turnkeep import errors
from turnkeep.cli import failures
from turnkeep.store import _failures

_INTRODUCTION = """\
Everything that Turnkeep raises on purpose is a `TurnkeepError`. Its message says what happened, to which
conversation, and what to do; `str(error)` is fit for people. Every class can be imported from `turnkeep`, and sent
to another process by pickle."""

_SQL = """\
A client that calls the [functions](sql.md#functions) itself sees SQLSTATEs, and outcomes where something was
refused. This is what the Python store makes of them. *Repeated* says what it does first, within its `timeout`: each
of its statements may be sent twice (G4)."""

_CODES = """\
The command line prints an error's words on stderr, with `--json` as an object with `error`, `message` and
`exit_code`, and exits with one of these codes."""

_REPEATED = {
    _failures.Remedy.GIVE_UP: "no",
    _failures.Remedy.TRY_AGAIN: "on the same connection",
    _failures.Remedy.RECONNECT: "on another connection",
}
# SQLSTATEs of our own; Postgres' have their names in psycopg.
_OWN = {
    "TK001": "a turn is open",
    "TK002": "no turn is open",
    "TK003": "the conversation has ended",
    "TK004": "the place is taken by other content, or the head has moved",
    "TK005": "the conversation is in the archive",
    "TK006": "an embedding is longer than the column",
}
_RAISED = re.compile(r"'(TK\d{3})'")
_STATE = re.compile(r'"([0-9A-Z]{5})"')


def text() -> str:
    """The page."""
    tree = prose(inspect.getdoc(errors) or "").partition("\n\n")[2]
    classes = [
        found
        for found in vars(errors).values()
        if inspect.isclass(found) and issubclass(found, errors.TurnkeepError) and not found.__name__.startswith("_")
    ]
    means = table(("error", "means", "exit code"), map(_means, classes))
    codes = table(("code", "meaning"), ((str(int(code)), words) for code, words in failures.EXPLAINED.items()))
    states = table(("SQLSTATE", "stands for", "becomes", "repeated"), map(_row, _states()))
    return page(
        "Errors", _INTRODUCTION, tree, "## Each of them", means,
        "## Exit codes", _CODES, codes, "## SQLSTATEs", _SQL, states,
    )  # fmt: skip


def _means(kind: type[errors.TurnkeepError]) -> tuple[str, str, str]:
    code = next(code for fits, code in failures._CODES if issubclass(kind, fits))
    return f"`{kind.__name__}`", " ".join(prose(inspect.getdoc(kind) or "").split()), str(int(code))


def _states() -> list[str]:
    """The SQLSTATEs that the store tells apart, as its source names them, and all that its functions raise."""
    source = Path(_failures.__file__).read_text(encoding="utf-8")
    raised = {state for path in sql.FILES.glob("*.sql") for state in _RAISED.findall(path.read_text(encoding="utf-8"))}
    return sorted(raised | set(_STATE.findall(source)), key=lambda state: (state[:2] != "TK", state))


def _row(state: str) -> tuple[str, str, str, str]:
    """What becomes of an error with that SQLSTATE."""
    if state.startswith("TK"):
        if state not in _OWN:
            raise LookupError(f"SQLSTATE {state}: say in tools/reference/errors.py what it stands for")
        kind, words = type(state, (psycopg.DatabaseError,), {"sqlstate": state}), _OWN[state]
    else:
        kind = psycopg.errors.lookup(state)
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
    error = kind(words)
    becomes = type(_failures.translated(error, "turnkeep")).__name__
    return f"`{state}`", words, f"`{becomes}`", _REPEATED[_failures.remedy_for(error)]
