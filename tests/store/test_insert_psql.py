"""A writer that has nothing but psql, and the store, take turns in one conversation."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from pathlib import Path

import pytest

import turnkeep
from tests.store.plain_sql import PSQL
from turnkeep import AsyncStore

WRITER = Path(__file__).with_name("writer.sh")
ID = str(uuid.UUID(int=7))


def write(dsn: str, *lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", WRITER, dsn, ID],
        input="".join(f"{line}\n" for line in lines),
        env={**os.environ, "PSQL": str(PSQL)},
        capture_output=True,
        text=True,
    )


def written(dsn: str, *lines: str) -> list[str]:
    ran = write(dsn, *lines)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


async def test_the_store_goes_on_where_psql_left_off_and_psql_where_the_store_did(store: AsyncStore, dsn: str) -> None:
    assert written(dsn, "user what's the weather, and the news?", "call call_1 weather") == [
        "0.0 input",
        "0.1 tool_calls",
    ]

    branch = await store.conversation(ID)
    assert branch.agent_id == "shell"
    (pending,) = branch.pending
    assert (pending.call_id, pending.call, pending.uncertain) == ("call_1", {"id": "call_1", "name": "weather"}, False)
    with pytest.raises(turnkeep.PendingCallsError):
        await branch.save(final=True)
    await branch.mark_started([pending])
    await branch.save([{"role": "tool", "content": "sunny"}], tool_results=[{"tool_call_id": "call_1"}])
    await branch.save([{"role": "assistant", "content": None}], tool_calls=[{"id": "call_2", "name": "news"}])

    refused = write(dsn, "user never mind")
    assert refused.returncode != 0
    assert "news (call_2) of turn 0.4" in refused.stderr
    assert "HINT" in refused.stderr
    assert written(dsn, "result call_2 none", "final Sunny; no news.") == ["0.5 tool_results", "0.6 final"]
    assert written(dsn, "user thanks") == ["1.0 input"]

    checkpoint = await branch.refresh()
    assert [message["role"] for message in checkpoint.messages] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant", "user"
    ]  # fmt: skip
    assert checkpoint.messages[-2]["content"] == "Sunny; no news."
    await branch.save([{"role": "assistant", "content": "Any time."}], final=True)
    assert written(dsn, "user bye", "final Bye.") == ["2.0 input", "2.1 final"]
    assert len((await store.restore(ID)).messages) == 10


async def test_two_writers_of_psql_write_one_history(store: AsyncStore, dsn: str) -> None:
    written(dsn, "user go")
    both = await asyncio.gather(*(asyncio.to_thread(write, dsn, f"call call_{number} look") for number in range(2)))
    refused = [ran.stderr for ran in both if ran.returncode]
    assert len(refused) < 2
    assert all("head is" in error or "extends" in error for error in refused)
    assert len((await store.restore(ID)).pending) == 2 - len(refused)
