"""Kill -9 of the search's worker at every statement, and between: each turn has its chunks in the end, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import turnkeep
from tests.crash.ledger import Event, Nursery
from tests.observing import Observer, table_held, until
from turnkeep.testing import EmbeddingServer

pytestmark = pytest.mark.pgvector
KILLED = -signal.SIGKILL
LAPSE = timedelta(minutes=10)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("-m", "tests.crash.embedder") as running:
        yield running


@pytest.fixture
def embeddings() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as running:
        yield running


@pytest.fixture
async def runs(
    nursery: Nursery,
    dsn: str,
    store: turnkeep.AsyncStore,
    observer: Observer,
    embeddings: EmbeddingServer,
    advance: Callable[[timedelta], None],
) -> Runs:
    await talk(store)
    return Runs(nursery, dsn, observer, embeddings, advance)


async def talk(store: turnkeep.AsyncStore) -> None:
    """Turns of every kind: short, long, with tools, forked, without words, with an embedding of their own."""
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user", "content": "short"})
    await branch.save([{"role": "assistant", "content": "answer"}], final=True)
    await branch.begin_turn({"role": "user", "content": "long"})
    await branch.save([{"role": "assistant", "content": "word after word. " * 400}], final=True)
    fork = await store.fork("c", at=(1, 0))
    await fork.save([{"role": "assistant", "content": "another way"}], final=True)
    other = await store.conversation("d")
    await other.begin_turn({"role": "tool", "content": "no words of anybody"})
    await other.save([], final=True)
    await other.begin_turn({"role": "user", "content": "mine"})
    await other.save([], final=True, embedding=[1.0], embedding_model="old")


@dataclass
class Runs:
    """Lives of workers in one database, whose documents are as they were when the turns ended at each beginning."""

    nursery: Nursery
    dsn: str
    observer: Observer
    embeddings: EmbeddingServer
    advance: Callable[[timedelta], None]

    async def undisturbed(self) -> tuple[list[str], Any]:
        """Let a worker do everything: the names of its statements from number 1, and what was stored."""
        self.begin()
        events = await self.live()
        assert events[-1] == {"exit": 0}, events
        return [event["name"] for event in events if "statement" in event], self.stored()

    async def killed(self, number: int, moment: str) -> Any:
        """Kill a worker at a statement, let a fresh one finish when claims have run out, and give what is stored."""
        self.begin()
        events = await self.live(kill_at=number, moment=moment)
        assert events[-1] == {"exit": KILLED}, events
        self.advance(LAPSE)
        events = await self.live()
        assert events[-1] == {"exit": 0}, events
        return self.stored()

    def begin(self) -> None:
        """Make the documents what they were."""
        self.advance(timedelta(0))
        self.observer.rows("DELETE FROM turnkeep.document WHERE chunk > 0 RETURNING 1")
        self.observer.rows(
            "UPDATE turnkeep.document AS d SET text = NULL, tsv = NULL, created_at = NULL, left_out = NULL,"
            " claim = NULL, tries = 0, error = NULL, next_try_at = now(), model = CASE WHEN own THEN 'old' END,"
            " embedding = CASE WHEN own THEN array_fill(1::real, ARRAY[768])::public.vector END"
            " FROM (SELECT c.conversation_id, t AS turn_index, c.external_id = 'd' AND t = 1 AS own"
            " FROM turnkeep.conversation AS c, generate_series(0, 9) AS t) AS v"
            " WHERE v.conversation_id = d.conversation_id AND v.turn_index = d.turn_index RETURNING 1"
        )

    async def live(self, *, kill_at: int = 0, moment: str = "") -> list[Event]:
        """One life of a worker, by the events it reports."""
        job = {"dsn": self.dsn, "port": self.embeddings.port, "kill_at": kill_at, "moment": moment}
        events: list[Event] = []
        for event in self.nursery.start(job):
            events.append(event)
            if "at" in event:
                (name,) = (e["name"] for e in events if e.get("statement") == kill_at)
                (pid,) = (e["pid"] for e in events if "pid" in e)
                with self.obstacle(name):
                    self.nursery.go_on()
                    await self.observer.see_waiting(1)
                    os.kill(pid, signal.SIGKILL)
        return events

    def obstacle(self, name: str) -> AbstractContextManager[None]:
        """What makes a statement wait in the server, which then goes on without its client."""
        if name == "turn":
            return table_held(self.dsn, "turnkeep.message", "ACCESS EXCLUSIVE")
        return table_held(self.dsn, "turnkeep.document", "SHARE")

    def stored(self) -> Any:
        """All that is stored of documents."""
        return self.observer.rows(
            "SELECT conversation_id, branch, turn_index, chunk, text, tsv::text, created_at, model, embedding::text,"
            " next_try_at, tries, error, claim, left_out FROM turnkeep.document ORDER BY 1, 2, 3, 4"
        )


async def test_an_undisturbed_run_makes_everything_once(runs: Runs) -> None:
    names, stored = await runs.undisturbed()
    assert {"claim_fill", "turn", "fill", "claim_embed", "embedded", "requeue"} <= set(names)
    assert {row[7] for row in stored if row[4]} == {EmbeddingServer.model}
    assert len([row for row in stored if row[2] == 1 and row[1] == 0 and row[4] and "word" in row[4]]) > 3


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_around_any_statement_every_turn_has_its_chunks_once(runs: Runs, moment: str) -> None:
    names, undisturbed = await runs.undisturbed()
    for number, name in enumerate(names, 1):
        assert await runs.killed(number, moment) == undisturbed, f"killed {moment} {name} ({number})"


async def test_killed_while_any_statement_waits_in_the_server_every_turn_has_its_chunks_once(runs: Runs) -> None:
    names, undisturbed = await runs.undisturbed()
    for number, name in enumerate(names, 1):
        if name != "look":  # nobody can make those wait
            assert await runs.killed(number, "during") == undisturbed, f"killed in {name} ({number})"


async def test_killed_while_the_provider_is_asked_every_turn_has_its_chunks_once(runs: Runs) -> None:
    _, undisturbed = await runs.undisturbed()
    runs.begin()
    runs.embeddings.behave(held=True)
    job = {"dsn": runs.dsn, "port": runs.embeddings.port, "kill_at": 0, "moment": ""}
    for event in runs.nursery.start(job):
        if "started" in event:
            await until(lambda: runs.embeddings.waiting == 1, "the request")
            os.kill(event["started"], signal.SIGKILL)
    runs.embeddings.behave(held=False)
    runs.advance(LAPSE)
    assert (await runs.live())[-1] == {"exit": 0}
    assert runs.stored() == undisturbed


async def test_a_change_of_model_that_is_killed_half_way_goes_on_and_keeps_every_vector(
    runs: Runs, store: turnkeep.AsyncStore
) -> None:
    branch = await store.conversation("many")
    for number in range(1000):
        await branch.begin_turn({"role": "user", "content": f"turn {number}"})
        await branch.save([], final=True)
    job = {"dsn": runs.dsn, "port": runs.embeddings.port, "kill_at": 0, "moment": ""}

    def models() -> dict[str | None, int]:
        return dict(
            runs.observer.rows(
                "SELECT model, count(*)::int FROM turnkeep.document WHERE conversation_id = %s"
                " AND (model IS NULL) = (embedding IS NULL) GROUP BY model",
                branch.conversation_id,
            )
        )

    assert [*runs.nursery.start({**job, "model": "old"})][-1] == {"exit": 0}
    assert models() == {"old": 1000}
    for event in runs.nursery.start({**job, "model": "new"}):
        if "started" in event:
            await until(lambda: models().get("new", 0) > 300, "the change half way")
            os.kill(event["started"], signal.SIGKILL)
    assert set(models()) == {"old", "new"}, "no vector is gone meanwhile"
    runs.advance(LAPSE)
    assert [*runs.nursery.start({**job, "model": "new"})][-1] == {"exit": 0}
    assert models() == {"new": 1000}
