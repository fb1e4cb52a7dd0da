"""What a failed statement means: by SQLSTATE and by outcome, in one place."""

from __future__ import annotations

import re
import shlex
from enum import Enum
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from turnkeep.errors import (
    ConfigurationError,
    ConflictError,
    ConversationArchivedError,
    ConversationEndedError,
    CorruptionError,
    DatabaseError,
    EmbeddingDimensionsError,
    PermissionDeniedError,
    SchemaError,
    TurnkeepError,
    TurnNotOpenError,
    TurnOpenError,
    UnavailableError,
)
from turnkeep.settings import DEFAULT_SCHEMA


def parsed(conninfo: str) -> dict[str, Any]:
    """The parameters of a conninfo. Raises `ConfigurationError`, without quoting it: it may hold a password."""
    try:
        return dict(conninfo_to_dict(conninfo))
    except psycopg.ProgrammingError:
        scheme = conninfo.partition("://")[0]
        hint = f"; leave out {scheme[scheme.index('+') :]!r}" if "+" in scheme else ""
        raise ConfigurationError(
            "the DSN can't be read: a URL that begins with postgresql:// (special characters in the password written "
            f"as %XX) or a libpq string such as host=… dbname=… is needed{hint}"
        ) from None


class Remedy(Enum):
    """What to do about a failed statement. Every statement of ours may be repeated (G4)."""

    GIVE_UP = "raise"
    TRY_AGAIN = "repeat on the same connection"
    RECONNECT = "repeat on another connection"


# The server is there, and the statement alone was unlucky, or has to wait for somebody to make room on a full disk.
_UNLUCKY = {"40001", "40P01", "55P03", "53100"}
# The connection is of no use: the server stops, starts, is a standby now, or has no room for one more.
_UNUSABLE = {"57P01", "57P02", "57P03", "57P05", "25006", "53300", "08P01"}
# A pooler's words where it has no server to give; it has no SQLSTATE for them.
_POOLER_WITHOUT_SERVER = (
    "server_login_retry",
    "no more connections",
    "query_wait_timeout",
    "pgbouncer cannot connect",
)

_REFUSALS = (
    "does not exist",
    "authentication failed",
    "no pg_hba.conf entry",
    "no password supplied",
    "is not permitted to log in",
    "no such database",
    "no such user",
    "invalid integer value",
    "invalid port number",
    "invalid connection option",
    "invalid sslmode value",
    "unsupported startup parameter",
)


def remedy_for(error: psycopg.Error) -> Remedy:
    """Say whether a statement that failed with `error` is worth another try."""
    state = error.sqlstate
    if state in _UNLUCKY:
        return Remedy.TRY_AGAIN
    if state in _UNUSABLE or (state or "").startswith("08"):
        return Remedy.RECONNECT
    if is_refusal(error):
        return Remedy.GIVE_UP
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        state is None or any(words in str(error) for words in _POOLER_WITHOUT_SERVER)
    ):
        return Remedy.RECONNECT
    return Remedy.GIVE_UP


def is_refusal(error: psycopg.Error) -> bool:
    """Whether a server has turned a connection down for good. Such an error has no SQLSTATE, only words."""
    return error.sqlstate is None and any(words in str(error) for words in _REFUSALS)


def translated(error: psycopg.Error, schema: str) -> TurnkeepError:
    """The error of ours that stands for an error of the database."""
    text = error.diag.message_primary or str(error).strip()
    if is_refusal(error):
        return ConfigurationError(
            f"the database can't be used as named: {text}: mend the DSN, or the server's settings"
        )
    match error.sqlstate:
        case "TK001":
            return TurnOpenError("a turn is open on this branch: go on with it, or end it, before a new one begins")
        case "TK002":
            return TurnNotOpenError("no turn is open on this branch: call begin_turn first")
        case "TK003":
            return ConversationEndedError(
                f"{text}; nothing was written: reopen it first (store.reopen, `turnkeep reopen`)"
            )
        case "TK005":
            return ConversationArchivedError(
                f"{text}; nothing was written: unarchive it first (store.unarchive, `turnkeep unarchive`)"
            )
        case "XX001":
            return CorruptionError(f"{text}; nothing was changed")
        case "TK006":
            numbers = [int(number) for number in re.findall(r"\d+", text)[:2]]
            return EmbeddingDimensionsError(f"{text}; nothing was written: {error.diag.message_hint}", *numbers)
        case "TK004":
            return ConflictError(
                f"{text} than was seen there; nothing was written. A failover has lost writes: "
                "call refresh() and decide again"
            )
        case "2BP01":
            return SchemaError(
                f"{text} ({error.diag.message_detail}): nothing was changed. "
                "Drop those, run `turnkeep migrate`, and make them anew"
            )
        case "3F000" | "42P01" | "42883":
            which = "" if schema == DEFAULT_SCHEMA else f" --schema {shlex.quote(schema)}"
            return SchemaError(
                f"schema {schema!r} is missing here, or is of another release ({text}): run `turnkeep init{which}`"
            )
        case "42703" | "42704" if error.sqlstate == "42703" or text.startswith("type "):
            return SchemaError(f"schema {schema!r} lacks what this release has there ({text}): run `turnkeep migrate`")
        case "42501" if text.startswith("must be owner"):
            return PermissionDeniedError(
                f"{text}: only the role that owns the schema's tables makes indexes and migrations; "
                "run this as that role"
            )
        case "42501":
            return PermissionDeniedError(f"{text}: ask the owner for this right; `turnkeep doctor` names the GRANT")
        case "3D000" | "28P01" | "28000":
            return ConfigurationError(f"the database can't be used as named: {text}")
        case "55P03":
            return UnavailableError(f"somebody else held a lock for too long ({text}): see pg_locks for whom")
        case "53100":
            return UnavailableError(f"the database's disk is full; nothing was written: {text}")
    if remedy_for(error) is not Remedy.GIVE_UP:
        return UnavailableError(f"the database is not available: {text}")
    return DatabaseError(text)


def is_missing_schema(error: psycopg.Error) -> bool:
    """Whether an error says that the schema, or a table of it, is not there."""
    return isinstance(error, pg.UndefinedTable | pg.InvalidSchemaName)
