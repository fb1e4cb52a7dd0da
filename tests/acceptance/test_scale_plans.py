"""What people ask of a large database never reads all of a large table: by the plans that the server writes down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import turnkeep
from bench.population import MESSAGES, Population, populate
from bench.scale import explained, measured, plans
from tests.acceptance.command_line import run
from tests.clusters import Cluster, room
from turnkeep.store import _stats

CONVERSATIONS = 600


@pytest.fixture(scope="module")
def full() -> Iterator[Cluster]:
    """A server with some ten thousand messages, which writes down the plan of everything."""
    with room() as place:
        cluster = Cluster(place / "cluster")
        cluster.initialise(logging_collector="on", log_directory="'log'", jit="off")
        cluster.start()
        turnkeep.migrate(cluster.conninfo)
        populate(cluster.conninfo, Population(CONVERSATIONS))
        yield cluster
        cluster.stop()


def logs(cluster: Cluster) -> Path:
    return cluster.data / "log"


async def test_the_rows_are_as_a_store_would_have_written_them(full: Cluster) -> None:
    looked = run("doctor", "--deep", dsn=full.conninfo)
    assert looked.code == 0, looked.out
    assert f"{CONVERSATIONS} looked at, all branches" in looked.out
    assert full.rows("SELECT count(*) FROM turnkeep.message") == full.rows("SELECT count(*) FROM turnkeep.checkpoint")
    async with turnkeep.open(full.conninfo) as store:
        restored = await store.restore("ticket-10")
        assert (len(restored.messages), restored.turn_open, restored.agent_id) == (MESSAGES, False, "agent-10")
        assert (await store.restore("ticket-101")).turn_open
        (waiting,) = await store.claim_waiting(["agent-2"], limit=1)
        assert await waiting.take_request() is not None
        await waiting.save([{"role": "assistant"}], final=True)
        assert len((await store.restore(waiting.conversation_id)).messages) == MESSAGES + 2


def test_no_command_reads_a_large_table_from_end_to_end(full: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stats, "_COUNTED", 1_000)  # as if there were millions
    found = list(measured(full.conninfo, logs(full)))
    assert len(found) >= 8
    read = {one.what: one.scanned for one in found if one.scanned and one.what != "stats"}  # which counts so few rows
    assert read == {}


async def test_a_table_that_is_read_from_end_to_end_is_noticed(full: Cluster) -> None:
    with explained(full.conninfo), plans(full.conninfo, logs(full)) as scanned:
        full.rows("SELECT count(*) FROM turnkeep.message WHERE body::text LIKE '%nowhere%'")
        assert scanned() == ("message",)
    with explained(full.conninfo), plans(full.conninfo, logs(full)) as scanned:
        async with turnkeep.open(full.conninfo) as store:
            await store.restore("ticket-10")
        assert scanned() == ()
