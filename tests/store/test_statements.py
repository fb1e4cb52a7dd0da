"""One home for each statement: each can be prepared, and each has a caller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

import turnkeep
from turnkeep.store._statements import statements

FILES = tuple(f"sql/{path.name}" for path in (Path(turnkeep.__file__).parent / "store" / "sql").glob("*.sql"))
NAMES = sorted((file, name) for file in FILES for name in statements("turnkeep", file))
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
        statements("turnkeep", file)[name].decode(),
    )
    with psycopg.connect(dsn) as connection:
        connection.execute(text if ";" in text else f"PREPARE s AS {text}")


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
