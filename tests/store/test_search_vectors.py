"""Turns are found by their vectors: those of one model, as many as fit, and both ways made one."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from tests.store.searching import Known, give_vector, say
from turnkeep import AsyncStore
from turnkeep.errors import (
    ConfigurationError,
    EmbeddingDimensionsError,
    EmbeddingError,
    EmbeddingUnavailableError,
    InvalidInputError,
    NotFoundError,
)
from turnkeep.search import Search, fill_documents
from turnkeep.search.fusion import fused

pytestmark = pytest.mark.pgvector


async def talk(store: AsyncStore, dsn: str, vectors: dict[str, Sequence[float]], model: str = "a model") -> None:
    """A conversation of one turn for each vector, named by what is said in it."""
    for name, vector in vectors.items():
        branch = await store.conversation(name)
        await say(branch, name)
        await fill_documents(store)
        give_vector(dsn, branch.conversation_id, 0, vector, model)


async def test_the_nearest_come_first_with_the_cosine_as_their_score(store: AsyncStore, dsn: str) -> None:
    await talk(store, dsn, {"east": [1, 0], "north": [0, 2], "northeast": [3, 3], "west": [-1, 0]})
    result = await Search(store, Known({"go east": [2, 0]})).search("go east", mode="semantic")
    scores = {hit.external_id: round(hit.score, 3) for hit in result.hits}
    assert [*scores.items()] == [("east", 1.0), ("northeast", 0.707), ("north", 0.0), ("west", -1.0)]
    assert (result.mode, result.model, result.exact, result.text_only) == ("semantic", "a model", True, None)


async def test_both_ways_are_one_ranking_by_default(store: AsyncStore, dsn: str) -> None:
    await talk(store, dsn, {"east": [1, 0], "north": [0, 1], "south": [0, -1]})
    result = await Search(store, Known({"north": [1, 0]})).search("north")
    assert result.mode == "hybrid"
    assert [hit.external_id for hit in result.hits] == ["north", "east", "south"]
    assert result.hits[0].score == pytest.approx(1 / 61 + 1 / 62)


@pytest.mark.parametrize("mode", [None, "hybrid"])
async def test_a_phrase_and_what_is_excluded_are_looked_for_by_words_also_where_there_are_vectors(
    store: AsyncStore, dsn: str, mode: str | None
) -> None:
    await talk(store, dsn, {"the order came": [1, 0], "the order is lost": [1, 0], "a kitten": [1, 0]})
    search = Search(store, Known({}))
    for query, wanted in (('"order came"', {"the order came"}), ("order -lost", {"the order came"})):
        result = await search.search(query, mode=mode)
        assert {hit.external_id for hit in result.hits} == wanted
        assert result.mode == "text"
        assert "phrase" in (result.text_only or "")


def test_fusion_puts_first_what_both_place_high() -> None:
    assert [found for found, _ in fused([["a", "b", "c"], ["c", "a", "d"]])] == ["a", "c", "b", "d"]
    assert fused([]) == []


async def test_vectors_of_two_models_are_never_compared(store: AsyncStore, dsn: str) -> None:
    await talk(store, dsn, {"old1": [1, 0], "old2": [1, 0], "old3": [1, 0]}, "old")
    await talk(store, dsn, {"new": [-1, 0]}, "new")
    result = await Search(store, Known(name="new")).search("anything", mode="semantic")
    assert [hit.external_id for hit in result.hits] == ["new"]
    assert (result.not_indexed.embeddings, result.not_indexed.text) == (3, 0)
    result = await Search(store, Known(name="old")).search("anything", mode="semantic")
    assert {hit.external_id for hit in result.hits} == {"old1", "old2", "old3"}
    assert result.not_indexed.embeddings == 1


async def test_dead_letters_are_told_apart_from_what_waits(store: AsyncStore, dsn: str) -> None:
    await talk(store, dsn, {"a": [1, 0]})
    branch = await store.conversation("dead")
    await say(branch, "dead")
    await fill_documents(store, model="a model")
    assert (await Search(store, Known()).search("a")).not_indexed.embeddings == 1
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE turnkeep.document SET next_try_at = NULL, error = 'poison', tries = 8 WHERE conversation_id = %s",
            (branch.conversation_id,),
        )
    missing = (await Search(store, Known()).search("a")).not_indexed
    assert (missing.embeddings, missing.dead) == (0, 1)


class Broken(Known):
    """A provider that fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        raise self._error


async def test_without_the_querys_vector_a_hybrid_search_is_by_words_and_says_so(store: AsyncStore) -> None:
    await say(await store.conversation("c"), "needle")
    search = Search(store, Broken(EmbeddingUnavailableError("the server is away")))
    result = await search.search("needle", mode="hybrid")
    assert [hit.external_id for hit in result.hits] == ["c"]
    assert result.mode == "text"
    assert result.text_only == "no embedding of the query can be had: the server is away"
    with pytest.raises(EmbeddingUnavailableError):
        await search.search("needle", mode="semantic")
    with pytest.raises(ConfigurationError, match="wrong key"):
        await Search(store, Broken(ConfigurationError("wrong key"))).search("needle")


async def test_a_vector_longer_than_the_column_is_refused_with_both_numbers(store: AsyncStore) -> None:
    await say(await store.conversation("c"), "needle")
    search = Search(store, Known({"needle": [1.0] * 1024}))
    with pytest.raises(EmbeddingDimensionsError, match=r"1024 .* 768.*--dimensions"):
        await search.search("needle")
    with pytest.raises(EmbeddingError):
        await Search(store, Known({"needle": [0.0, 0.0]})).search("needle", mode="semantic")


async def test_without_pgvector_a_search_is_by_words_and_says_so(store: AsyncStore, dsn: str) -> None:
    await say(await store.conversation("c"), "needle")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP EXTENSION vector CASCADE")
    for search in (Search(store, Known()), Search(store)):
        result = await search.search("needle")
        assert [hit.external_id for hit in result.hits] == ["c"]
        assert (result.mode, bool(result.text_only)) == ("text", True)
    with pytest.raises(ConfigurationError, match="pgvector"):
        await Search(store, Known()).search("needle", mode="semantic")
    with pytest.raises(ConfigurationError, match="pgvector"):
        await Search(store, Known()).similar("c")


async def test_similar_conversations_are_near_to_the_middle_of_one(store: AsyncStore, dsn: str) -> None:
    await talk(store, dsn, {"near": [1, 0.9], "far": [-1, 0], "side": [1, 0]})
    branch = await store.conversation("self")
    for turn, vector in enumerate(([1.0, 0.0], [0.0, 1.0])):
        await say(branch, f"turn {turn}")
        await fill_documents(store)
        give_vector(dsn, branch.conversation_id, turn, vector)
    branch = await store.conversation("twice")
    for turn, vector in enumerate(([1.0, 1.0], [1.0, 0.99])):
        await say(branch, f"turn {turn}")
        await fill_documents(store)
        give_vector(dsn, branch.conversation_id, turn, vector)
    search = Search(store, Known())
    found = [(hit.external_id, hit.turn_index) for hit in (await search.similar("self")).hits]
    assert found == [("twice", 0), ("near", 0), ("side", 0), ("far", 0)]
    assert len((await search.similar("self", limit=1)).hits) == 1
    await store.conversation("silent")
    with pytest.raises(NotFoundError, match="no vector"):
        await search.similar("silent")
    with pytest.raises(NotFoundError):
        await search.similar("nowhere")


async def test_a_query_without_words_can_have_a_meaning(store: AsyncStore, dsn: str) -> None:
    await talk(store, dsn, {"a": [1, 0]})
    result = await Search(store, Known()).search("?!")
    assert [hit.external_id for hit in result.hits] == ["a"]
    with pytest.raises(InvalidInputError, match="no word"):
        await Search(store, Known()).search("?!", mode="text")


async def test_a_saved_embedding_is_found_by(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user", "content": "hello"})
    await branch.save([], final=True, embedding=[0.5, 0.5], embedding_model="a model")
    (hit,) = (await Search(store, Known()).search("x", mode="semantic")).hits
    assert (hit.external_id, hit.snippet) == ("c", "hello")
