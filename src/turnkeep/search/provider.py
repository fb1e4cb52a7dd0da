"""What makes embeddings: the contract that a provider keeps, and its answers checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from turnkeep.errors import EmbeddingError
from turnkeep.store._vectors import Vector, stored


@runtime_checkable
class Provider(Protocol):
    """Makes embeddings of texts.

    `name` is the model's: it is stored with each vector, and vectors of two names are never compared. `dimensions` is
    how many numbers a vector has, None where only the first answer tells. `embed` gives one vector for each text, in
    order; with `query` the texts are what somebody looks for rather than what is looked through, which some models
    tell apart. It raises

    - `EmbeddingUnavailableError` for what waiting may mend: the server is away, is busy (`retry_after`) or has failed;
    - `EmbeddingRefusedError` where these texts will not be taken: too long, not text;
    - `ConfigurationError` for what neither mends, such as a wrong key or a model that is not there.
    """

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def dimensions(self) -> int | None:
        """How many numbers a vector has."""

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[Vector]:
        """One vector for each text, in order."""


def checked(vectors: Sequence[Sequence[float]], count: int, dimensions: int | None, model: str) -> list[Vector]:
    """The vectors of a provider's answer as they are stored: single precision, padded with zeros to `dimensions`.

    Raises `EmbeddingDimensionsError` where they are longer, `EmbeddingError` where there are not `count` of them, or
    one has no direction or holds what is no number.
    """
    if len(vectors) != count:
        raise EmbeddingError(f"{model}: {len(vectors)} vectors came for {count} texts")
    return [stored(vector, dimensions, f"{model}: vector {index}") for index, vector in enumerate(vectors)]
