"""Embeddings of other dimensions: all are made anew, whoever is killed, and a search says how many are missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, until
from turnkeep.search import EmbedWorker, LocalEmbeddings, Search, build_index

pytestmark = pytest.mark.pgvector

TURNS = 1000
DIMENSIONS = 300

DOCUMENTS = """
INSERT INTO turnkeep.document (conversation_id, branch, turn_index, chunk, text, tsv, created_at, next_try_at)
SELECT %s, 0, n, 0, 'the text of turn ' || n, turnkeep.words_of('the text of turn ' || n), now(), turnkeep.clock()
FROM generate_series(0, %s) AS n
"""


def embed(dsn: str) -> subprocess.Popen[bytes]:
    """A worker of its own process."""
    command = [
        sys.executable,
        "-m",
        "turnkeep",
        "--dsn",
        dsn,
        "embed",
        "--once",
        "--embeddings",
        "local",
        "--batch",
        "5",
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def test_after_a_change_of_dimensions_all_vectors_are_made_anew_whoever_is_killed(
    dsn: str, observer: Observer, advance: Callable[[timedelta], None]
) -> None:
    provider = LocalEmbeddings()

    def vectors() -> int:
        ((count,),) = observer.rows("SELECT count(embedding) FROM turnkeep.document")
        return int(count)

    async with turnkeep.open(dsn) as store:
        branch = await store.conversation("c")
        with psycopg.connect(dsn) as connection:
            connection.execute(DOCUMENTS, (branch.conversation_id, TURNS - 1))
        await EmbedWorker(store, provider).run(drain=True)
        assert vectors() == TURNS
        assert await build_index(store, provider.name)
        before = (await Search(store, provider).search("turn 700", limit=5)).hits

    status = turnkeep.migrate(dsn, dimensions=DIMENSIONS)
    assert (status.dimensions, status.current, vectors()) == (DIMENSIONS, True, 0)

    async with turnkeep.open(dsn) as store:
        result = await Search(store, provider).search("turn 700", limit=5)
        assert (len(result.hits), result.not_indexed.embeddings) == (5, TURNS)
        worker = embed(dsn)
        try:
            await until(lambda: 50 < vectors() < TURNS, "some of the vectors")
        finally:
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
        made = vectors()
        assert 50 < made < TURNS
        result = await Search(store, provider).search("turn 700", mode="semantic", limit=10)
        assert (len(result.hits), result.not_indexed.embeddings) == (10, TURNS - made)

        turnkeep.migrate(dsn, dimensions=DIMENSIONS)  # a second time it changes nothing
        assert vectors() == made
        advance(timedelta(hours=1))
        await EmbedWorker(store, provider).run(drain=True)
        assert vectors() == TURNS
        result = await Search(store, provider).search("turn 700", limit=5)
        assert [hit.turn_index for hit in result.hits] == [hit.turn_index for hit in before]
        assert not result.not_indexed


async def test_other_dimensions_leave_texts_views_and_rights_as_they_were(dsn: str, observer: Observer) -> None:
    async with turnkeep.open(dsn) as store:
        branch = await store.conversation("c")
        await branch.begin_turn({"role": "user", "content": "hello"})
        await branch.save([], final=True, embedding=[1.0], embedding_model="m")
    turnkeep.migrate(dsn, dimensions=2)
    async with turnkeep.open(dsn) as store:
        assert store.dimensions == 2
        branch = await store.conversation("c")
        await branch.begin_turn({"role": "user", "content": "again"})
        await branch.save([], final=True, embedding=[1.0, 1.0], embedding_model="m")
        assert (await Search(store).search("hello again")).hits
    assert observer.rows(
        "SELECT turn_index, embedding::text FROM turnkeep.agent_checkpoints WHERE sub_step = 1 ORDER BY 1"
    ) == [
        (0, None),
        (1, "[1,1]"),
    ]
    indexes = [name for (name,) in observer.rows("SELECT indexname FROM pg_indexes WHERE tablename = 'document'")]
    assert "document_model" in indexes


def test_dimensions_that_cannot_be_are_refused_before_anything_happens(empty_dsn: str) -> None:
    for wrong in (0, 16_001, "768", True):
        with pytest.raises(turnkeep.InvalidInputError, match="dimensions"):
            turnkeep.migrate(empty_dsn, dimensions=wrong)  # type: ignore[arg-type]
    with psycopg.connect(empty_dsn) as connection:
        assert connection.execute("SELECT FROM pg_namespace WHERE nspname = 'turnkeep'").fetchall() == []
