"""What a conversation takes on disk and in the log, and what it costs to get it back."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import uuid

import psycopg

import turnkeep
from bench.scene import Finding, conversation, interleaved, ratio, raw_bytes, replay, sizes

CONVERSATIONS = 20

FLOOR_READ = "SELECT body FROM turnkeep.message WHERE conversation_id = %s AND branch = 0 ORDER BY position"


async def storage_and_log(conninfo: str) -> list[Finding]:
    """Bytes of tables and of WAL for conversations of 50 turns, 500 KB and 200 checkpoints."""
    conversations = [conversation(seed) for seed in range(CONVERSATIONS)]
    raw = sum(map(raw_bytes, conversations))
    with psycopg.connect(conninfo, autocommit=True) as connection:
        async with turnkeep.open(conninfo) as store:
            before = sizes(connection, "turnkeep")
            start = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            for turns in conversations:
                await replay(await store.conversation(uuid.uuid4(), agent_id="bench"), turns)
            row = connection.execute(
                "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)::bigint", start
            ).fetchone()
            after = sizes(connection, "turnkeep")
    assert row is not None
    each = f"{raw / CONVERSATIONS / 1000:.0f} KB of JSON each, {CONVERSATIONS} conversations"
    return [
        Finding("storage against raw JSON", (after - before) / raw, 1.4, False, each),
        Finding("WAL against raw JSON", row[0] / raw, 1.4, False, each),
    ]


async def restoring(conninfo: str) -> Finding:
    """Restoring such a conversation, values parsed, against a SELECT of the same rows with its values parsed."""
    own = uuid.uuid4()
    async with (
        turnkeep.open(conninfo) as store,
        await psycopg.AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=0) as floor,
    ):
        await replay(await store.conversation(own, agent_id="bench"), conversation(99))

        async def read() -> None:
            cursor = await floor.execute(FLOOR_READ, (own,))
            assert len(await cursor.fetchall()) == 200

        async def restore() -> None:
            assert len((await store.restore(own)).messages) == 200

        selects, restores = await interleaved([read, restore], 200, 20)
    found, detail = ratio(restores, selects)
    return Finding("restore of 50 turns, 500 KB", found, 1.5, False, detail)


def importing() -> Finding:
    """`import turnkeep` beyond its drivers, in milliseconds."""
    code = (
        "import time, psycopg, psycopg_pool; s = time.perf_counter(); import turnkeep; print(time.perf_counter() - s)"
    )
    # Where no bytecode is kept, each start would compile all of it.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    runs = [float(subprocess.run(command, capture_output=True, check=True, env=kept).stdout) for _ in range(9)]
    median = statistics.median(runs) * 1000
    return Finding("import turnkeep beyond psycopg, in ms", median, 30, False, f"{min(runs) * 1000:.0f} ms at best")
