"""One home for each statement: each can be prepared, and each has a caller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

import turnkeep
from turnkeep.store._statements import statements

NAMES = sorted(statements("turnkeep"))
SOURCES = "\n".join(path.read_text() for path in (Path(turnkeep.__file__).parent / "store").glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_each_statement_can_be_prepared(dsn: str, name: str) -> None:
    numbers: dict[str, int] = {}
    text = re.sub(
        r"%\((\w+)\)s",
        lambda m: f"${numbers.setdefault(m.group(1), len(numbers) + 1)}",
        statements("turnkeep")[name].decode(),
    )
    with psycopg.connect(dsn) as connection:
        connection.execute(f"PREPARE s AS {text}")


@pytest.mark.parametrize("name", NAMES)
def test_each_statement_has_a_caller(name: str) -> None:
    assert re.search(rf'fetch\(\s*"{name}"', SOURCES)


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
