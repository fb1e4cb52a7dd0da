"""Embeddings from a server that speaks OpenAI's `/v1/embeddings`: vLLM, TEI, llama.cpp, OpenAI itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from turnkeep import jsontext
from turnkeep.errors import (
    ConfigurationError,
    EmbeddingError,
    EmbeddingRefusedError,
    EmbeddingUnavailableError,
    InvalidInputError,
    UnreadableError,
)
from turnkeep.runner.served import PASSING, TOO_LONG, cause, retry_after, shorten, told

if TYPE_CHECKING:
    from openai import APIStatusError

    from turnkeep.store._vectors import Vector

_INSTALL: Final = "embeddings of a server need the openai package: pip install 'turnkeep[openai]'"
_NO_KEY: Final = "none"  # the client wants one, servers of one's own mostly don't
_CONNECT_SECONDS: Final = 10.0
_CONFIGURED: Final = frozenset({401, 402, 403, 404, 405})
_UNKNOWN_MODEL: Final = frozenset({"model_not_found", "invalid_api_key"})


class OpenAIEmbeddings:
    """A provider that asks a server.

    `model` is the model's name there, `base_url` the server with its `/v1` (`OPENAI_BASE_URL` if not given, and
    OpenAI's own without that), `api_key` its key (`OPENAI_API_KEY` if not given). `dimensions` asks for shorter vectors
    of a model that can make them; vectors of another length count as another model's. `query_prefix` and `text_prefix`
    are put before what somebody looks for and what is looked through, for models that were trained so. No more than
    `batch_texts` texts and, one text aside, `batch_characters` characters are sent at once, and `timeout` seconds of
    silence mean that the server is gone. Close it at the end, or use it as an async context manager.

    Raises `ConfigurationError` where the openai package is missing or the address is none.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dimensions: int | None = None,
        query_prefix: str = "",
        text_prefix: str = "",
        batch_texts: int = 32,
        batch_characters: int = 100_000,
        timeout: float = 60.0,
    ) -> None:
        for name, number in (("dimensions", dimensions), ("batch_texts", batch_texts), ("timeout", timeout)):
            if number is not None and number <= 0:
                raise InvalidInputError(f"{name}: {number}; more than 0 is needed")
        if not model:
            raise InvalidInputError("model: it is empty; name the one that makes embeddings")
        try:
            import httpx2
            import openai
        except ImportError:
            raise ConfigurationError(_INSTALL) from None
        self._broken = (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, OSError)
        self._hopeless = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects)
        self._status_error = openai.APIStatusError
        self._model = model
        self._asked = dimensions
        self._dimensions = dimensions
        self._prefixes = {True: query_prefix, False: text_prefix}
        self._batch_texts = batch_texts
        self._batch_characters = batch_characters
        try:
            self._client = openai.AsyncOpenAI(
                api_key=api_key or os.environ.get("OPENAI_API_KEY") or _NO_KEY,
                base_url=base_url,
                timeout=openai.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
                max_retries=0,
            )
            self._address = self._client.base_url
        except (httpx2.InvalidURL, openai.OpenAIError) as error:
            raise ConfigurationError(f"embeddings of {model!r}: {error}") from None
        if self._address.scheme not in ("http", "https") or not self._address.host:
            raise ConfigurationError(f"embeddings of {model!r}: no http address: {str(self._address)!r}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    @property
    def name(self) -> str:
        """The model's name, with the dimensions where those were asked for."""
        return self._model if self._asked is None else f"{self._model}:{self._asked}"

    @property
    def dimensions(self) -> int | None:
        """How many numbers a vector has; None before the first one has come, where none were asked for."""
        return self._dimensions

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[Vector]:
        """One vector for each text, in order, asked for in batches.

        Raises `EmbeddingUnavailableError` for what waiting may mend, `EmbeddingRefusedError` where the server will not
        take one of these texts, `ConfigurationError` for a wrong key or a model that it does not have.
        """
        vectors: list[Vector] = []
        for batch in self._batches([self._prefixes[query] + text for text in texts]):
            vectors += await self._ask(batch)
        return vectors

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        characters = 0
        for text in texts:
            if batch and (len(batch) == self._batch_texts or characters + len(text) > self._batch_characters):
                yield batch
                batch, characters = [], 0
            batch.append(text)
            characters += len(text)
        if batch:
            yield batch

    async def _ask(self, texts: list[str]) -> list[Vector]:
        # As bytes a lone surrogate would be no UTF-8.
        sent = [text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") for text in texts]
        body: dict[str, Any] = {"model": self._model, "input": sent, "encoding_format": "float"}
        if self._asked is not None:
            body["dimensions"] = self._asked
        try:
            response = await self._client.embeddings.with_raw_response.create(**body)
        except self._status_error as error:
            raise self._refusal(error) from None
        except self._broken as error:
            if isinstance(error.__cause__, self._hopeless):
                raise ConfigurationError(f"{self._address} can't be asked: {cause(error)}") from error
            raise EmbeddingUnavailableError(f"{self._address} can't be reached: {cause(error)}") from error
        try:
            return self._read(jsontext.decode(response.text, "reply"), len(texts))
        except (UnreadableError, UnicodeDecodeError) as error:
            raise EmbeddingUnavailableError(f"the reply of {self._address} is no JSON: {error}") from None

    def _read(self, reply: Any, count: int) -> list[Vector]:
        """The vectors of a reply, in the order of the texts: a server may give them in another."""
        data = reply.get("data") if isinstance(reply, dict) else None
        if not isinstance(data, list):
            reason, _ = told(reply)
            raise EmbeddingUnavailableError(
                f"{self._address} gave no list of embeddings: {reason or shorten(str(reply))}"
            )
        found: dict[int, Vector] = {}
        for place, one in enumerate(data):
            vector = one.get("embedding") if isinstance(one, dict) else None
            index = one.get("index", place) if isinstance(one, dict) else place
            if not isinstance(vector, list) or not isinstance(index, int):
                raise EmbeddingError(
                    f"{self._model}: embedding {place} of {self._address}'s reply is no list of numbers"
                )
            found[index] = vector
        if sorted(found) != list(range(count)):
            raise EmbeddingError(f"{self._model}: embeddings {sorted(found)[:5]} came for {count} texts")
        lengths = {len(vector) for vector in found.values()}
        if len(lengths | ({self._dimensions} - {None})) > 1:
            raise EmbeddingError(
                f"{self._model}: vectors of {sorted(lengths)} dimensions came where {self._dimensions or 'one length'} "
                "had been: the server has changed its model, or takes no `dimensions`"
            )
        self._dimensions = lengths.pop() if lengths else self._dimensions
        return [found[index] for index in range(count)]

    def _refusal(self, error: APIStatusError) -> Exception:
        """What an HTTP status means."""
        reason, kinds = told(error.body)
        status = error.status_code
        message = f"{self._address}: HTTP {status}: {reason}" if reason else f"{self._address}: HTTP {status}"
        if kinds & TOO_LONG:
            return EmbeddingRefusedError(message, status)
        if status in _CONFIGURED or kinds & _UNKNOWN_MODEL:
            return ConfigurationError(f"embeddings of {self._model!r}: {message}")
        if status >= 500 or status in PASSING:
            return EmbeddingUnavailableError(message, retry_after(error.response.headers), status)
        return EmbeddingRefusedError(message, status)
