"""One home for each statement: each can be prepared, and each has a caller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import turnkeep
from turnkeep.store._search_statements import Ground, fitting, index_pieces, statement
from turnkeep.store._statements import statements, texts

FILES = tuple(f"sql/{path.name}" for path in (Path(turnkeep.__file__).parent / "store" / "sql").glob("*.sql"))
NAMES = sorted((file, name) for file in FILES for name in texts(file))
UTILITY = ("create_index", "drop_index")  # take no parameters, and can't be prepared
SOURCES = "\n".join(
    path.read_text()
    for path in (Path(turnkeep.__file__).parent / "store").glob("*.py")
    if not path.name.startswith("_sync_")  # generated
)


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_each_statement_can_be_prepared(dsn: str, file: str, name: str) -> None:
    numbers: dict[str, int] = {}
    text = re.sub(
        r"%\((\w+)\)s",
        lambda m: f"${numbers.setdefault(m.group(1), len(numbers) + 1)}",
        as_sent(file, name).decode(),
    )
    with psycopg.connect(dsn) as connection:
        for extension in re.findall(r'"public"\.(pg_stat_statements|pgstattuple)', text):
            connection.execute(f"CREATE EXTENSION IF NOT EXISTS {extension}")
        if name in UTILITY:
            text = text.replace(" CONCURRENTLY", "")  # which no transaction block takes
        connection.execute(text if ";" in text or name in UTILITY else f"PREPARE s AS {text}")


def as_sent(file: str, name: str) -> bytes:
    """A statement as the database gets it: a search's with what fits a model put in."""
    if file != "sql/search.sql":
        return statements("turnkeep", file)[name]
    ground = Ground(768, "public", True)
    newest = sql.SQL(statement("newest_with", "turnkeep", number=sql.SQL("1"), words=sql.SQL("%(words)s")).decode())
    found = sql.SQL("({}) UNION ALL ({})").format(newest, newest)
    pieces: dict[str, sql.Composable] = {**index_pieces("a model", ground), **fitting("a model", ground)}
    pieces |= {"number": sql.SQL("1"), "words": sql.SQL("%(words)s"), "found": found, "lock": sql.Literal("")}
    return statement(name, "turnkeep", **pieces)


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_each_statement_has_one_caller(file: str, name: str) -> None:
    assert len(re.findall(rf'(?:fetch|statement)\(\s*"{name}"', SOURCES)) == 1


async def test_no_statement_or_function_depends_on_the_search_path(dsn: str) -> None:
    from psycopg.conninfo import make_conninfo

    hostile = make_conninfo(dsn, options="-c search_path=nowhere")
    async with turnkeep.open(hostile) as store:
        branch = await store.conversation("c")
        await branch.begin_turn({"role": "user"}, key="k")
        await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1"}])
        await branch.save([], tool_results=[{"id": "1"}], final=True)
        fork = await store.fork("c", at=(0, 1))
        await fork.claim()
        await fork.release()
        assert len(await store.history("c")) == 3
    with psycopg.connect(hostile) as connection:
        rows: list[Any] = connection.execute("SELECT * FROM turnkeep.agent_checkpoints").fetchall()
    assert len(rows) == 3
