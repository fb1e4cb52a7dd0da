"""The page about SQL: tables, views, indexes and functions as a migrated database describes them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg

import turnkeep
from tools.reference.markdown import code, page, table
from tools.reference.python import SOURCE
from turnkeep import embedded
from turnkeep.embedded import EmbeddedPostgres

SCHEMA = "turnkeep"
FILES = SOURCE / "turnkeep" / "store" / "schema"

_INTRODUCTION = """\
What `turnkeep init` makes in the schema (`turnkeep`, unless another is named), in a database with pgvector. [How to
read it](../how-to/plain-sql.md), and [how it is laid out](../explanation/storage.md). Read views and tables as you
like; write through functions and views, never to tables: the functions keep what the tables promise each other.
Names and types stay within a major release, columns may be added: name those you want."""

_FUNCTIONS = """\
Each is one statement, `SELECT * FROM turnkeep.save_v1(…)`, and harmless when it is sent twice (G4). JSON is passed
as `json`, which keeps its text. A refusal is an `outcome`, see below, and nothing has been written then; a caller's
mistake is an error, with a [SQLSTATE](errors.md#sqlstates). A signature changes only by a parameter with a default
at its end; anything else is a function of another number, and the old one stays for one release.

`p_token` is that of a lease, or 0 without one. `p_write_id` and `p_fork_id` are UUIDs that the caller makes, a new
one for each write, and the same one when it is repeated. `p_digest` tells whether two bodies under one key are the
same: any bytes that are made from the body alone, always in the same way."""

OUTCOMES = {
    "saved": "It is done, and durable once the statement has committed.",
    "repeated": "The same write had been made before: the place is that of the first one.",
    "taken": "The key has begun a turn before, or waits on another branch: `turn_index` and `branch` say which.",
    "none": "No request waits.",
    "posted": "The request is accepted.",
    "forked": "The branch, or the conversation, is made.",
    "created": "The conversation is made.",
    "there": "There was one already; it is as it was.",
    "updated": "The changes are made.",
    "ended": "The conversation is ended; as a refusal: it has ended, and takes neither writes nor requests.",
    "reopened": "Its branches are as they were before its end.",
    "deleted": "The branch is removed.",
    "gone": "It has been removed before.",
    "claimed": "The lease is taken.",
    "ready": "A worker will take it up.",
    "idle": "There is nothing left to do.",
    "conflict": "The head, or the version, is not the one that the caller has seen, but the one given back.",
    "lease_held": "Somebody else's lease is live, until the time given back.",
    "lease_lost": "The token is stale, or its lease has expired.",
    "key_reused": "The key has come before with another body.",
    "write_id_reused": "The write id has come before with other content.",
    "not_found": "There is no such conversation or branch.",
    "no_checkpoint": "There is no such checkpoint to fork at.",
    "name_taken": "The conversation has another branch of that name.",
    "exists": "There is another conversation of the id that was to be made.",
    "too_large": "The metadata would become too large.",
    "no_parent": "There is no such parent conversation.",
    "current": "The branch is the current one.",
    "request_waits": "A request waits on the branch.",
    "built_on": "Branches that are named go on from its checkpoints.",
    "not_waiting": "No worker is waited for, or somebody is just at it.",
    "filled": "The text is kept.",
    "lost": "The claim does not hold any more, or what it was of is gone.",
    "archived": "It is in the archive already: there is nothing here to work on.",
    "locked": "Nothing stands in the way, and nobody writes to it until the transaction ends.",
    "turn_open": "A turn of the branch is open.",
    "more": "That much is done: call it again with the place given back.",
    "messages": "All checkpoints are done, and messages are left: `prune_messages_v1` takes them.",
    "done": "There is nothing left to do.",
    "expired": "Its time was over: it is erased.",
    "alive": "Its time is not over, somebody is at it, or a request waits.",
    "not_due": "It has not been ended, or at rest, for as long as was asked for: somebody has used it meanwhile.",
    "busy": "Somebody has held a lock for a second: nothing was done.",
    "failed": "Its workers have died five times in a row: it is failed instead.",
}

_OTHERS = "What views and the functions above are made of, and what is useful beside them."

_COMMENTED = re.compile(r"((?:^--.*\n)+)CREATE (?:OR REPLACE )?FUNCTION \{schema\}\.(\w+)", re.MULTILINE)
_TOLD = re.compile(r"^\s*\('(\w+)', (?:'(\w+)'|NULL),", re.MULTILINE)
_PUBLIC = re.compile(r"_v\d+$")
_NAMES = re.compile(r"\b(?:p_\w+|\w+_v\d+)\b")
_OUTCOME = re.compile(r"outcome := '(\w+)'|(?:THEN|ELSE) '([a-z_]+)'")
_STATUSES = {"failed", "idle", "open", "ready", "running", "waiting"}
_SEPARATOR = re.compile(r", (?=(?:OUT |INOUT |VARIADIC )?\w+ )")


class Column(NamedTuple):
    """A column of a table or a view."""

    name: str
    type: str
    nullable: bool
    default: str | None
    comment: str | None


class Relation(NamedTuple):
    """A table or a view."""

    name: str
    kind: str
    comment: str | None
    columns: list[Column]
    indexes: list[str]
    triggers: list[str]


def text(conninfo: str) -> str:
    """The page, from a migrated database. Raises `LookupError` for what has no comment."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        # What the session's settings would leave out of a definition.
        connection.execute("SET search_path = pg_catalog, pg_temp")
        relations = _relations(connection)
        functions = list(_functions(connection))
    _check_comments(relations)
    views = [one for one in relations if one.kind == "v"]
    told = {(one.name, one.type): one.comment for view in views for one in view.columns if one.comment}
    views_told = [_relation(one, told) for one in views]
    tables = [_relation(one, {}) for one in relations if one.kind != "v"]
    public = [told for name, told in functions if _PUBLIC.search(name)]
    others = [told for name, told in functions if not _PUBLIC.search(name)]
    return page(
        "SQL", _INTRODUCTION, "## Views", *views_told, "## Functions", _FUNCTIONS, *public,
        "### Outcomes", _outcomes(), "## Other functions", _OTHERS, *others, "## Tables", *tables,
    )  # fmt: skip


@contextmanager
def database() -> Iterator[str]:
    """A migrated database on a Postgres of its own, which is gone at the end."""
    directory = Path(tempfile.mkdtemp(prefix="turnkeep-reference-"))
    directory.chmod(0o755)
    try:
        with EmbeddedPostgres.start(directory / "postgres") as server:
            turnkeep.migrate(server.conninfo)
            yield server.conninfo
    finally:
        embedded.stop(directory / "postgres")
        shutil.rmtree(directory)


# -- tables and views


def _relations(connection: psycopg.Connection) -> list[Relation]:
    rows = connection.execute(
        "SELECT c.oid, c.relname, c.relkind::text, obj_description(c.oid, 'pg_class') FROM pg_class AS c"
        " WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p', 'v') ORDER BY c.relname",
        (SCHEMA,),
    ).fetchall()
    return [
        Relation(name, kind, comment, _columns(connection, oid), _indexes(connection, oid), _triggers(connection, oid))
        for oid, name, kind, comment in rows
    ]


def _columns(connection: psycopg.Connection, relation: int) -> list[Column]:
    rows = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,"
        " CASE WHEN a.attidentity <> '' THEN 'counts up' ELSE pg_get_expr(d.adbin, d.adrelid) END,"
        " col_description(a.attrelid, a.attnum)"
        " FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
        " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (relation,),
    ).fetchall()
    return [Column(*row) for row in rows]


def _indexes(connection: psycopg.Connection, relation: int) -> list[str]:
    rows = connection.execute(
        "SELECT CASE WHEN i.indisprimary THEN 'primary key ' WHEN i.indisunique THEN 'unique ' ELSE '' END,"
        " c.relname, pg_get_indexdef(c.oid)"
        " FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = %s ORDER BY i.indisprimary DESC, c.relname",
        (relation,),
    ).fetchall()
    return [
        f"{kind}`{name}` {definition.partition(' USING btree ')[2] or definition}" for kind, name, definition in rows
    ]


def _triggers(connection: psycopg.Connection, relation: int) -> list[str]:
    rows = connection.execute(
        "SELECT pg_get_triggerdef(t.oid) FROM pg_trigger AS t WHERE t.tgrelid = %s AND NOT t.tgisinternal ORDER BY "
        "t.tgname",
        (relation,),
    ).fetchall()
    return [definition for (definition,) in rows]


def _relation(relation: Relation, known: Mapping[tuple[str, str], str | None]) -> str:
    """A section. A column of a view that has no comment has the one that its name and type have in another."""
    _need(relation.name, relation.comment)
    parts = [f"### `{relation.name}`", relation.comment or ""]
    told = [one._replace(comment=one.comment or known.get((one.name, one.type))) for one in relation.columns]
    for column in told:
        _need(f"{relation.name}.{column.name}", column.comment)
    if relation.kind == "v":
        parts.append(table(("column", "type", ""), ((f"`{c.name}`", c.type, c.comment or "") for c in told)))
    else:
        rows = ((f"`{c.name}`", c.type, _default(c), c.comment or "") for c in told)
        parts.append(table(("column", "type", "default", ""), rows))
    parts += ["\n".join(f"- {index}" for index in relation.indexes)] if relation.indexes else []
    parts += [code(trigger) for trigger in relation.triggers]
    return "\n\n".join(parts)


def _default(column: Column) -> str:
    if column.default is not None:
        return column.default if column.default == "counts up" else f"`{column.default}`"
    return "null" if column.nullable else ""


def _check_comments(relations: list[Relation]) -> None:
    """Raise `LookupError` for a comment about something that is not there."""
    there = {(one.name, column) for one in relations for column in ("", *(column.name for column in one.columns))}
    for name, column in _TOLD.findall((FILES / "comments.sql").read_text(encoding="utf-8")):
        if (name, column) not in there:
            raise LookupError(f"{name}.{column} is told about in store/schema/comments.sql and is not there")


def _need(name: str, comment: str | None) -> None:
    if not comment:
        raise LookupError(f"{name} has no comment: say in store/schema/comments.sql what it holds")


# -- functions


def _functions(connection: psycopg.Connection) -> Iterator[tuple[str, str]]:
    """Each function of the schema, by name, and its section."""
    comments = {
        name: comment
        for path in sorted(FILES.glob("*.sql"))
        for comment, name in _COMMENTED.findall(path.read_text(encoding="utf-8"))
    }
    rows = connection.execute(
        "SELECT p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid) FROM pg_proc AS p"
        " WHERE p.pronamespace = %s::regnamespace ORDER BY p.proname, p.oid",
        (SCHEMA,),
    ).fetchall()
    for name, arguments, result in rows:
        if name not in comments:
            raise LookupError(f"function {name} has no comment: say before it, in its file, what it does")
        comment = " ".join(line.removeprefix("--").strip() for line in comments[name].splitlines())
        words = _NAMES.sub(r"`\g<0>`", comment.replace("{{}}", "{}"))
        signature = code(_signature(name, arguments, result))
        yield name, f"### `{name}`\n\n{signature}\n\n{words}"


def _outcomes() -> str:
    """What each outcome means. Raises `LookupError` for one that nothing is said about, or that no function gives."""
    files = "".join(path.read_text(encoding="utf-8") for path in FILES.glob("[a-z]*.sql"))
    functions = [one for one in files.split("CREATE OR REPLACE FUNCTION") if "OUT outcome text" in one]
    given = {word for one in functions for words in _OUTCOME.findall(one) for word in words if word}
    gone = {word for word in OUTCOMES if f"'{word}'" not in files}
    for word in sorted((given - set(OUTCOMES) - _STATUSES) | gone):
        raise LookupError(f"outcome {word!r}: tools/reference/sql.py explains those that functions give, and no other")
    return table(("outcome", "meaning"), ((f"`{word}`", words) for word, words in OUTCOMES.items()))


def _signature(name: str, arguments: str, result: str) -> str:
    """What goes in and what comes out: one line, or one parameter a line."""
    every = _SEPARATOR.split(arguments) if arguments else []
    taken = [one for one in every if not one.startswith("OUT ")]
    given = [one.removeprefix("OUT ") for one in every if one.startswith("OUT ")]
    result = f"({', '.join(given)})" if given else result.removeprefix("TABLE")
    line = f"{name}({', '.join(taken)}) → {result}"
    if len(line) <= 100:
        return line
    return f"{name}(\n    " + ",\n    ".join(taken) + f"\n) → {result}"
