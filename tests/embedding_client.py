"""A provider of embeddings of the tests' own, over real HTTP: no more than the contract asks for."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Sequence

from turnkeep.errors import ConfigurationError, EmbeddingRefusedError, EmbeddingUnavailableError
from turnkeep.testing import EmbeddingServer


class HttpProvider:
    """Asks a server that speaks `/v1/embeddings`."""

    def __init__(self, server: EmbeddingServer | int, name: str = EmbeddingServer.model) -> None:
        self.name = name
        self.dimensions: int | None = None
        self._port = server if isinstance(server, int) else server.port

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        """One vector for each text."""
        return await asyncio.to_thread(self._embed, list(texts))

    def _embed(self, texts: list[str]) -> list[list[float]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            body = json.dumps({"model": self.name, "input": texts})
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise EmbeddingUnavailableError(f"no answer: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        told = content.decode()[:200]
        if response.status in (400, 413, 422):
            raise EmbeddingRefusedError(told, response.status)
        if response.status in (401, 404):
            raise ConfigurationError(told)
        if response.status != 200:
            wait = response.headers.get("Retry-After")
            raise EmbeddingUnavailableError(told, None if wait is None else float(wait), response.status)
        vectors: list[list[float]] = [item["embedding"] for item in json.loads(content)["data"]]
        self.dimensions = len(vectors[0])
        return vectors
