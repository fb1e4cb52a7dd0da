"""Space that was freed is used again, by autovacuum alone and under the settings that the schema gives its tables."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator

import pytest

import turnkeep
from tests.clusters import Cluster, room
from tests.observing import until

CONVERSATIONS = 60
STATE = 75_000  # random bytes, a third more as text


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server that looks every second whether there is something to vacuum."""
    with room() as place:
        one = Cluster(place / "cluster")
        one.initialise(autovacuum_naptime="'1s'", fsync="off")
        one.start()
        turnkeep.migrate(one.conninfo)
        yield one
        one.stop()


async def fill(store: turnkeep.AsyncStore, first: int, last: int) -> int:
    """Write conversations with a large state each, and give the bytes of those."""
    written = 0
    for number in range(first, last):
        branch = await store.conversation(f"c{number}")
        text = base64.b64encode(os.urandom(STATE)).decode()
        await branch.begin_turn([{"role": "user", "content": os.urandom(200).hex()}] * 20, state={"text": text})
        await branch.save([{"role": "assistant"}], final=True)
        written += 2 * len(text)  # a checkpoint that keeps the state stores it
    return written


def size(cluster: Cluster) -> int:
    ((found,),) = cluster.rows(
        "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c"
        " WHERE c.relnamespace = 'turnkeep'::regnamespace AND c.relkind = 'r'"
    )
    assert isinstance(found, int)
    return found


async def test_bloat_what_ninety_of_a_hundred_conversations_took_is_used_again(cluster: Cluster) -> None:
    async with turnkeep.open(cluster.conninfo) as store:
        live = await fill(store, 0, CONVERSATIONS)
        full = size(cluster)
        assert full <= 3 * live
        for number in range(CONVERSATIONS):
            if number % 10:
                await store.erase(f"c{number}")
        dead = (
            "SELECT count(*) FROM pg_class AS c JOIN pg_stat_all_tables AS u ON u.relid IN (c.oid, c.reltoastrelid)"
            " WHERE c.oid = 'turnkeep.checkpoint'::regclass AND u.n_dead_tup < 20 AND u.autovacuum_count > 0"
        )
        await until(lambda: cluster.rows(dead) == [(2,)], "autovacuum of the table and of its long values")
        await fill(store, CONVERSATIONS, CONVERSATIONS + CONVERSATIONS * 9 // 10)
    assert size(cluster) <= 1.2 * full


def test_bloat_tables_that_lose_many_rows_at_once_are_vacuumed_before_a_fifth_is_dead(cluster: Cluster) -> None:
    rows = cluster.rows(
        "SELECT c.relname, o.option_value::float8 FROM pg_class AS c CROSS JOIN pg_options_to_table(c.reloptions) AS o"
        " WHERE c.relnamespace = 'turnkeep'::regnamespace AND o.option_name = 'autovacuum_vacuum_scale_factor'"
        " ORDER BY 1"
    )
    assert rows == [("checkpoint", 0.05), ("document", 0.05), ("message", 0.05), ("request", 0.05)]
    long_values = cluster.rows(
        "SELECT c.relname FROM pg_class AS c JOIN pg_class AS t ON t.oid = c.reltoastrelid"
        " CROSS JOIN pg_options_to_table(t.reloptions) AS o WHERE c.relnamespace = 'turnkeep'::regnamespace"
        " AND o.option_name = 'autovacuum_vacuum_scale_factor' ORDER BY 1"
    )
    assert long_values == [("checkpoint",), ("document",), ("message",)]
