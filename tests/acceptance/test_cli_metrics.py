"""`turnkeep metrics` and a worker's own: what Prometheus is told, and that a broken database is a number."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

import turnkeep
from tests.acceptance.agent_processes import Running, app_in
from tests.acceptance.command_line import COMMAND, PATIENCE, PLAIN, run
from tests.clusters import Cluster, room
from tests.observing import until
from turnkeep.testing import Exchange, ModelServer, Reply, ToolCall

USER = {"role": "user", "content": "the secret is swordfish"}
Samples = dict[tuple[str, ...], float]


def scraped(address: str) -> Samples:
    """What is served, by name and label values."""
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        assert answer.status == 200
        text = answer.read().decode()
    assert "swordfish" not in text
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("turnkeep")
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert not sample.name.endswith("_total") or family.type == "counter"
            samples[(sample.name, *sample.labels.values())] = sample.value
    return samples


@contextmanager
def serving(dsn: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A `turnkeep metrics` on a port that was free, its address, and what it says meanwhile."""
    process = subprocess.Popen(
        [COMMAND, "metrics", "--port", "0", "--max-age", "0.001", *arguments],
        env=PLAIN | {"TURNKEEP_DATABASE_URL": dsn},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said: list[str] = []
    first = process.stderr.readline()

    def read() -> None:
        for line in process.stderr or ():
            said.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield process, first.removeprefix("serving ").strip(), said
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


async def test_prometheus_is_told_what_stats_tell_and_nothing_that_was_said(
    dsn: str, store: turnkeep.AsyncStore
) -> None:
    for number in range(30):
        await store.conversation(f"swordfish {number}", agent_id=f"agent {number}")
    hostile = await store.conversation("h", agent_id='a"\n\\{}' + "x" * 200)
    await hostile.begin_turn(USER, key="swordfish")
    await hostile.claim(seconds=60)
    await store.conversation("i", agent_id='a"\n\\{}' + "x" * 200)
    await store.post("h", USER, key="more")
    with serving(dsn) as (process, address, _):
        found = scraped(address)
        assert (found["turnkeep_up",], found["turnkeep_conversations",]) == (1, 32)
        assert found["turnkeep_info", "turnkeep", turnkeep.__version__] == 1
        agents = [key for key in found if key[0] == "turnkeep_agent_conversations"]
        assert len(agents) == 20
        assert max(len(label) for _, label in agents) <= 100
        assert found["turnkeep_branches", "running"] == 1
        assert found["turnkeep_branches", "failed"] == 0
        assert found["turnkeep_leases", "live"] == 1
        assert found["turnkeep_requests_waiting",] == 1
        assert found["turnkeep_request_oldest_seconds",] > 0
        assert found["turnkeep_saves_total",] == 1
        assert found["turnkeep_table_bytes", "message"] > 0
        await hostile.save([USER])
        assert scraped(address)["turnkeep_saves_total",] == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


async def test_an_answer_serves_for_as_long_as_is_said(dsn: str, store: turnkeep.AsyncStore) -> None:
    with serving(dsn, "--max-age", "3600") as (_, address, _):
        before = scraped(address)
        await store.conversation("c")
        assert scraped(address) == before


async def test_a_database_that_is_broken_is_a_number_and_no_failure() -> None:
    with room() as place:
        cluster = Cluster(place / "cluster")
        cluster.initialise()
        cluster.start()
        try:
            with serving(cluster.conninfo) as (process, address, said):
                assert scraped(address)["turnkeep_up",] == 0  # no schema
                turnkeep.migrate(cluster.conninfo)
                assert scraped(address)["turnkeep_up",] == 1
                cluster.kill()
                for _ in range(3):
                    gone = scraped(address)
                    assert gone["turnkeep_up",] == 0
                    assert ("turnkeep_conversations",) not in gone
                cluster.start()
                assert scraped(address)["turnkeep_up",] == 1
                assert process.poll() is None
                await until(lambda: len(said) >= 4, "words about it")
                assert [bool(re.match("no answer: ", line)) for line in said] == [True, False, True, False]
        finally:
            cluster.stop()


def test_a_port_that_is_taken_is_said(dsn: str) -> None:
    with serving(dsn) as (_, address, _):
        port = address.split(":")[2].partition("/")[0]
        refused = run("metrics", "--port", port, dsn=dsn)
        assert (refused.code, f"127.0.0.1:{port}" in refused.err) == (2, True)


@pytest.fixture
def work(tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Running]]:
    script = [Exchange("order", [Reply("", [ToolCall("find_order", {"order": 7})]), Reply("On Monday.")])]
    with ModelServer(script) as model, app_in(tmp_path, model.base_url, monkeypatch) as place:
        started: list[Running] = []

        def start(*arguments: str) -> Running:
            started.append(Running(place, "worker", "app:support", *arguments, dsn=dsn))
            return started[-1]

        yield start
        for one in started:
            one.kill()


async def test_a_worker_tells_how_long_its_own_saves_take(dsn: str, work: Callable[..., Running]) -> None:
    worker = work("--metrics-port", "0")
    await worker.says("metrics on http://127.0.0.1:")
    address = re.findall(r"metrics on (\S+)", worker.err)[0]
    assert run("post", "t", "order", "--agent", "support", "--wait", dsn=dsn).code == 0
    found = scraped(address)
    # A turn with one tool: its input, the calls, the result, the end.
    assert found["turnkeep_worker_saves_total", "input"] == 1
    assert found["turnkeep_worker_saves_total", "final"] == 1
    with psycopg.connect(dsn) as connection:
        ((saves,),) = connection.execute("SELECT count(*) FROM turnkeep.checkpoint").fetchall()
    assert sum(value for key, value in found.items() if key[0] == "turnkeep_worker_saves_total") == saves
    name = "turnkeep_worker_statement_seconds_bucket"
    buckets = [value for key, value in found.items() if key[0] == name and "save" in key]
    assert max(buckets) == found["turnkeep_worker_statement_seconds_count", "save"] == saves - 1  # the input was taken
    assert found["turnkeep_worker_statement_seconds_sum", "save"] > 0


async def test_a_worker_measures_nothing_unless_it_is_asked_to(store: turnkeep.AsyncStore) -> None:
    from turnkeep.store._async_database import AsyncDatabase

    assert "fetch" not in vars(store._database)
    assert store._database.fetch.__func__ is AsyncDatabase.fetch  # type: ignore[attr-defined]
