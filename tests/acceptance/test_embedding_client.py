"""Embeddings from a server: batches, order, and what each kind of failure means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.embedding_server import EmbeddingServer
from turnkeep.errors import (
    ConfigurationError,
    EmbeddingError,
    EmbeddingRefusedError,
    EmbeddingUnavailableError,
    TurnkeepError,
)
from turnkeep.search import OpenAIEmbeddings


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as running:
        yield running


async def test_vectors_come_in_the_order_of_the_texts_whatever_the_servers(server: EmbeddingServer) -> None:
    async with OpenAIEmbeddings("bge", base_url=server.url, api_key="secret", batch_texts=3) as provider:
        assert provider.dimensions is None
        texts = ["x" * length for length in (5, 1, 4, 2, 3, 7, 6)]
        assert [vector[0] for vector in await provider.embed(texts)] == [5, 1, 4, 2, 3, 7, 6]
        assert await provider.embed([]) == []
        assert f"{provider.name} {provider.dimensions}" == "bge 2"
    assert [len(body["input"]) for body in server.asked] == [3, 3, 1]
    assert {body["path"] for body in server.asked} == {"/v1/embeddings"}
    assert server.asked[0]["encoding_format"] == "float"
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert "dimensions" not in server.asked[0]


async def test_batches_are_bounded_by_characters_and_a_long_text_goes_alone(server: EmbeddingServer) -> None:
    async with OpenAIEmbeddings("bge", base_url=server.url, batch_characters=10) as provider:
        await provider.embed(["xxxx", "xxxx", "xxxx", "x" * 50, "x"])
    assert [[len(text) for text in body["input"]] for body in server.asked] == [[4, 4], [4], [50], [1]]


async def test_prefixes_and_dimensions_are_asked_for(server: EmbeddingServer) -> None:
    async with OpenAIEmbeddings(
        "e5", base_url=server.url, dimensions=2, query_prefix="query: ", text_prefix="passage: "
    ) as provider:
        await provider.embed(["a"], query=True)
        await provider.embed(["b"])
        assert provider.name == "e5:2"
    assert [body["input"] for body in server.asked] == [["query: a"], ["passage: b"]]
    assert server.asked[0]["dimensions"] == 2


async def test_what_is_no_utf8_is_replaced(server: EmbeddingServer) -> None:
    async with OpenAIEmbeddings("bge", base_url=server.url) as provider:
        await provider.embed(["a\ud800b"])
    assert server.asked[0]["input"] == ["a\ufffdb"]


REFUSALS: list[tuple[int, Any, type[TurnkeepError]]] = [
    (400, {"error": {"message": "input too long", "code": "context_length_exceeded"}}, EmbeddingRefusedError),
    (500, {"error": {"message": "input too long", "code": "context_length_exceeded"}}, EmbeddingRefusedError),
    (413, {"error": "Input validation error", "error_type": "Validation"}, EmbeddingRefusedError),
    (422, {"detail": "no"}, EmbeddingRefusedError),
    (401, {"error": {"message": "wrong key", "code": "invalid_api_key"}}, ConfigurationError),
    (404, {"error": {"message": "The model does not exist", "code": "model_not_found"}}, ConfigurationError),
    (400, {"error": {"message": "The model does not exist", "code": "model_not_found"}}, ConfigurationError),
    (429, {"error": {"message": "slow down"}}, EmbeddingUnavailableError),
    (424, {"error": "inference failed"}, EmbeddingRefusedError),
    (503, b"<html>no", EmbeddingUnavailableError),
    (200, b"<html>", EmbeddingUnavailableError),
    (200, {"error": {"message": "in a reply"}}, EmbeddingUnavailableError),
    (200, {"data": [{"index": 0, "embedding": [1.0]}]}, EmbeddingError),
    (200, {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}, EmbeddingError),
    (200, {"data": [{"index": 0, "embedding": "AAAA"}, {"index": 1, "embedding": "AAAA"}]}, EmbeddingError),
    (200, {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]}, EmbeddingError),
]


@pytest.mark.parametrize(("status", "reply", "kind"), REFUSALS)
async def test_each_failure_is_of_its_kind(
    server: EmbeddingServer, status: int, reply: Any, kind: type[TurnkeepError]
) -> None:
    server.answer = lambda body: (status, {"retry-after": "7"}, reply)
    async with OpenAIEmbeddings("bge", base_url=server.url) as provider:
        with pytest.raises(TurnkeepError) as raised:
            await provider.embed(["a", "b"])
    assert type(raised.value) is kind
    if isinstance(raised.value, EmbeddingUnavailableError) and status != 200:
        assert (raised.value.status, raised.value.retry_after) == (status, 7.0)


async def test_a_model_that_changes_its_length_is_another_model(server: EmbeddingServer) -> None:
    async with OpenAIEmbeddings("bge", base_url=server.url) as provider:
        await provider.embed(["a"])
        server.answer = lambda body: (200, {}, {"data": [{"index": 0, "embedding": [1.0, 2.0, 3.0]}]})
        with pytest.raises(EmbeddingError, match="had been"):
            await provider.embed(["a"])
        assert provider.dimensions == 2


async def test_a_server_that_is_away_may_come_back(server: EmbeddingServer) -> None:
    with EmbeddingServer() as gone:
        address = gone.url
    async with OpenAIEmbeddings("bge", base_url=address) as provider:
        with pytest.raises(EmbeddingUnavailableError, match="can't be reached"):
            await provider.embed(["a"])
