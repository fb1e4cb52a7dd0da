"""A caller's own embedding commits with the end of its turn, or is refused before anything happens."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer
from tests.store.conftest import OpenStore
from turnkeep.errors import EmbeddingDimensionsError, InvalidInputError
from turnkeep.search import EmbedWorker, Search, build_index, fill_documents

pytestmark = pytest.mark.pgvector
ANSWER = {"role": "assistant", "content": "yes"}


class Local:
    """A provider without a server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dimensions = 2

    async def embed(self, texts: Any, *, query: bool = False) -> list[list[float]]:
        """The same vector for every text."""
        return [[0.0, 1.0] for _ in texts]


async def begun(store: turnkeep.AsyncStore) -> turnkeep.AsyncBranch:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user", "content": "?"})
    return branch


def documents(observer: Observer) -> list[tuple[Any, ...]]:
    rows = observer.rows("SELECT text, model, embedding::text FROM turnkeep.document ORDER BY turn_index, chunk")
    return [(text, model, vector and json.loads(vector)[:3]) for text, model, vector in rows]


async def test_an_embedding_commits_with_the_state_and_stays_until_another_model_is_asked_for(
    dsn: str, open_store: OpenStore, observer: Observer
) -> None:
    async with open_store(dsn) as store:
        branch = await begun(store)
        await branch.save([ANSWER], final=True, embedding=[0.25, -1.5], embedding_model="mine")
        assert documents(observer) == [(None, "mine", [0.25, -1.5, 0])]
        rows = observer.rows("SELECT embedding::text FROM turnkeep.agent_checkpoints WHERE phase = 'final'")
        assert json.loads(rows[0][0]) == [0.25, -1.5, *([0] * 766)]
    async with turnkeep.open(dsn) as store:
        await EmbedWorker(store, Local("mine")).run(drain=True)
        assert documents(observer) == [("?\n\nyes", "mine", [0.25, -1.5, 0])]
        await EmbedWorker(store, Local("other")).run(drain=True)
        assert documents(observer) == [("?\n\nyes", "other", [0, 1, 0])]


async def test_a_whole_turn_and_a_transaction_take_one_too(dsn: str, open_store: OpenStore, observer: Observer) -> None:
    async with open_store(dsn) as store:
        branch = await store.conversation("c")
        await branch.save_all([ANSWER], final=True, embedding=[1], embedding_model="m")
        await branch.begin_turn({"role": "user"})
        async with branch.transaction() as transaction:
            await transaction.save([ANSWER], final=True, embedding=[2], embedding_model="m")
        assert [row[1:] for row in documents(observer)] == [("m", [1, 0, 0]), ("m", [2, 0, 0])]


async def test_a_retry_is_harmless(dsn: str, open_store: OpenStore, observer: Observer) -> None:
    async with open_store(dsn) as store:
        branch = await begun(store)
        write_id = uuid.uuid4()
        for _ in range(2):
            saved = await branch.save([ANSWER], final=True, embedding=[1.0], embedding_model="m", write_id=write_id)
        assert saved.repeated
        assert documents(observer) == [(None, "m", [1, 0, 0])]


async def test_a_vector_of_1024_dimensions_is_refused_with_both_numbers_and_the_message_is_kept_without_it(
    dsn: str, open_store: OpenStore, observer: Observer
) -> None:
    async with open_store(dsn) as store:
        branch = await begun(store)
        before = observer.counts(), observer.heads()
        with pytest.raises(EmbeddingDimensionsError, match=r"1024.*768") as caught:
            await branch.save([ANSWER], final=True, embedding=[0.5] * 1024, embedding_model="m")
        assert (caught.value.have, caught.value.column) == (1024, 768)
        assert (observer.counts(), observer.heads()) == before
        await branch.save([ANSWER], final=True, embedding=None)
        assert documents(observer) == [(None, None, None)]


@pytest.mark.parametrize(
    ("vector", "why"),
    [
        ([math.nan] * 768, r"embedding\[0\]: nan"),
        ([0.0, math.inf], r"embedding\[1\]: inf"),
        ([1e39, *[0.0] * 767], r"embedding\[0\]: 1e\+39"),
        ([0.0] * 768, "no direction"),
        ([1e-60], "no direction"),
        ([], "no direction"),
        (["a"], "no list of numbers"),
        (7, "no list of numbers"),
        (b"abc", "no list of numbers"),
        (b"four", "no list of numbers"),
    ],
)
async def test_a_vector_that_no_search_could_use_is_refused(
    dsn: str, open_store: OpenStore, observer: Observer, vector: Any, why: str
) -> None:
    async with open_store(dsn) as store:
        branch = await begun(store)
        before = observer.counts(), observer.heads()
        with pytest.raises(InvalidInputError, match=why):
            await branch.save([ANSWER], final=True, embedding=vector, embedding_model="m")
        assert (observer.counts(), observer.heads()) == before


@pytest.mark.parametrize(
    "given",
    [
        {"embedding": [1.0], "embedding_model": "m"},
        {"embedding": [1.0], "final": True},
        {"embedding_model": "m", "final": True},
        {"embedding": [1.0], "embedding_model": "", "final": True},
        {"embedding": [1.0], "embedding_model": "m" * 256, "final": True},
        {"embedding": [1.0], "embedding_model": "m\0", "final": True},
    ],
)
async def test_an_embedding_is_of_a_whole_turn_and_of_a_model(
    dsn: str, open_store: OpenStore, observer: Observer, given: dict[str, Any]
) -> None:
    async with open_store(dsn) as store:
        branch = await begun(store)
        before = observer.counts(), observer.heads()
        with pytest.raises(InvalidInputError, match="embedding"):
            await branch.save([ANSWER], **given)
        assert (observer.counts(), observer.heads()) == before


async def test_an_embedding_by_plain_sql_is_of_no_model_that_is_known_and_its_row_can_be_repeated(
    store: turnkeep.AsyncStore, observer: Observer
) -> None:
    conversation = uuid.uuid4()
    vector = json.dumps([0.5] * 768)

    def insert() -> None:
        observer.rows(
            "INSERT INTO turnkeep.agent_checkpoints (conversation_id, turn_index, messages, embedding)"
            " VALUES (%s, 0, '[{\"role\": \"user\", \"content\": \"words\"}]', %s) RETURNING 1",
            conversation, vector,
        )  # fmt: skip

    insert()
    insert()
    assert documents(observer) == [(None, "unknown", [0.5] * 3)]
    await fill_documents(store, model="m")
    await EmbedWorker(store, Local("m")).run(drain=True)
    insert()
    assert documents(observer) == [("words", "m", [0, 1, 0])]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("dimensions", "most"), [(1024, 1024), (300, 300)])
async def test_a_store_that_is_open_while_the_column_changes_goes_on(
    dsn: str, open_store: OpenStore, observer: Observer, dimensions: int, most: int, whole: bool
) -> None:
    async with open_store(dsn) as store:
        branch = await begun(store)
        turnkeep.migrate(dsn, dimensions=dimensions)
        save = branch.save_all if whole else branch.save
        with pytest.raises(EmbeddingDimensionsError) as refused:
            await save([ANSWER], final=True, embedding=[1.0] * (most + 1), embedding_model="mine")
        assert (refused.value.have, refused.value.column) == (most + 1, dimensions)
        await save([ANSWER], final=True, embedding=[1.0, *[0.5] * (most - 1)], embedding_model="mine")
        assert documents(observer) == [(None, "mine", [1, 0.5, 0.5])]


async def test_a_worker_that_is_open_while_the_column_changes_goes_on(
    dsn: str, open_store: OpenStore, observer: Observer
) -> None:
    async with open_store(dsn) as store:
        branch = await begun(store)
        await branch.save([ANSWER], final=True)
    async with turnkeep.open(dsn) as store:
        turnkeep.migrate(dsn, dimensions=1)
        with pytest.raises(EmbeddingDimensionsError):
            await EmbedWorker(store, Local("mine")).run(drain=True)
        turnkeep.migrate(dsn, dimensions=1000)
        assert (await EmbedWorker(store, Local("mine")).run(drain=True)).embedded == 1
        assert documents(observer) == [("?\n\nyes", "mine", [0, 1, 0])]


def test_embeddings_that_are_not_there_are_not_kept(dsn: str, observer: Observer) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        observer.rows(
            "SELECT turnkeep.embedded_v1(gen_random_uuid(), ARRAY[gen_random_uuid()], ARRAY[0], ARRAY[0], ARRAY[0],"
            " NULL, 'm')"
        )


class Huge(Local):
    """A model whose numbers are beyond half precision."""

    async def embed(self, texts: Any, *, query: bool = False) -> list[list[float]]:
        """The same vector for every text."""
        return [[1e30, 2e30] for _ in texts]


async def test_numbers_beyond_half_precision_are_kept_indexed_and_found(dsn: str, observer: Observer) -> None:
    turnkeep.migrate(dsn, dimensions=2001)
    async with turnkeep.open(dsn) as store:
        assert await build_index(store, "mine")
        branch = await begun(store)
        await branch.save([ANSWER], final=True, embedding=[70_000.0, -1.0], embedding_model="mine")
        await branch.begin_turn({"role": "user", "content": "more"})
        await branch.save([ANSWER], final=True)
        assert (await EmbedWorker(store, Huge("mine")).run(drain=True)).embedded == 1
        assert len((await Search(store, Huge("mine")).search("more", mode="semantic")).hits) == 2


async def test_a_vector_that_the_database_refuses_holds_no_other_back(dsn: str, observer: Observer) -> None:
    async with turnkeep.open(dsn) as store:
        branch = await begun(store)
        await branch.save([ANSWER], final=True)
        for text in ("bad", "fine"):
            await branch.begin_turn({"role": "user", "content": text})
            await branch.save([ANSWER], final=True)
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "ALTER TABLE turnkeep.document ADD CHECK (embedding IS NULL OR NOT starts_with(text, 'bad'))"
            )
        done = await EmbedWorker(store, Local("mine"), most_tries=1).run(drain=True)
        assert (done.embedded, done.failed) == (2, 1)
        ((error,),) = observer.rows("SELECT error FROM turnkeep.document WHERE starts_with(text, 'bad')")
        assert "check constraint" in error
