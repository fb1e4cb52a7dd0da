"""What matters most, on every major of Postgres that this machine has; `make postgres-versions` runs more on each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

import turnkeep
from tests.acceptance.load import Load
from tests.clusters import Cluster, installed, room
from turnkeep.store import plan, script
from turnkeep.store._doctor import examine

VERSIONS = installed()
USER = {"role": "user", "content": "refund order 7"}
CALL = {"id": "call_1", "name": "refund"}


@pytest.fixture(scope="module", params=sorted(VERSIONS))
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A server of one of them."""
    with room() as place:
        running = Cluster(place / "cluster", VERSIONS[request.param])
        running.initialise()
        running.start()
        yield running
        running.stop()


def test_there_is_another_version_to_run_on() -> None:
    assert VERSIONS, "the tests need another Postgres beside the embedded one: apt-get install postgresql"


async def test_the_schema_can_be_made_by_its_printed_sql(cluster: Cluster) -> None:
    with psycopg.connect(cluster.conninfo, autocommit=True) as connection:
        connection.execute(script(cluster.conninfo, "printed").encode())
    assert plan(cluster.conninfo, "printed") == ()
    found = await examine(cluster.conninfo, "printed", 30)
    assert found.server.version_number // 10_000 == int(cluster.home.name)
    assert found.rights is not None


async def test_a_turn_with_everything_in_it_survives_a_killed_server(cluster: Cluster) -> None:
    turnkeep.migrate(cluster.conninfo)
    async with turnkeep.open(cluster.conninfo, timeout=60) as store:
        await store.post("c", USER, key="k", agent_id="desk")
        (branch,) = await store.claim_waiting(["desk"], limit=1)
        taken = await branch.take_request()
        assert taken is not None
        await branch.save([{"role": "assistant", "content": "\u0000 1e400"}], tool_calls=[CALL], state={"step": 1.50})
        await branch.mark_started(branch.pending)
        cluster.kill()
        cluster.start()
        write_id = uuid.uuid4()
        async with branch.transaction() as transaction:
            await transaction.connection.execute("CREATE TABLE IF NOT EXISTS public.ledger (cents int)")
            await transaction.connection.execute("INSERT INTO public.ledger VALUES (4200)")
            await transaction.save([{"role": "tool"}], tool_results=[{"tool_call_id": "call_1"}])
        first = await branch.save([{"role": "assistant", "content": "done"}], final=True, write_id=write_id)
        again = await branch.save([{"role": "assistant", "content": "done"}], final=True, write_id=write_id)
        assert (again.turn_index, again.sub_step, again.repeated) == (first.turn_index, first.sub_step, True)
        assert (await store.wait_reply("c", "k", seconds=30)).content == "done"
        fork = await store.fork("c", at=(0, 1))
        assert [call.uncertain for call in fork.pending] == [True]
        assert len((await store.restore("c")).messages) == 4
    assert cluster.rows("SELECT cents FROM public.ledger") == [(4200,)]
    shown = cluster.rows("SELECT messages, state FROM turnkeep.agent_checkpoints ORDER BY turn_index, sub_step")
    assert shown[-1] == (shown[-1][0], {"step": 1.5, "sub_step": first.sub_step})
    assert len(cluster.rows("SELECT * FROM turnkeep.all_checkpoints")) == 5


async def test_writers_go_on_after_a_killed_server_and_lose_nothing(cluster: Cluster) -> None:
    turnkeep.migrate(cluster.conninfo)
    async with turnkeep.open(cluster.conninfo, timeout=60) as store:
        async with Load([store], 6) as load:
            await load.in_flight(2)
            cluster.kill()
            cluster.start()
            await load.progress()
        load.check(cluster.conninfo)
