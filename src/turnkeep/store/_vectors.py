"""Embeddings as they are stored: single precision, as long as the column, with a direction."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from turnkeep.errors import EmbeddingDimensionsError, EmbeddingError, InvalidInputError
from turnkeep.model import check_text

Vector = list[float]

EMBEDDING_DIMENSIONS = 768
MOST_MODEL_CHARACTERS = 255
MOST_INDEXED = 2_000
"""Dimensions of a vector that an index takes as it is, rather than in half precision."""
UNKNOWN_MODEL = "unknown"
"""The model of an embedding that plain SQL has brought."""


def stored(vector: Sequence[float], dimensions: int | None, name: str) -> Vector:
    """A vector as it is stored, padded with zeros to `dimensions`, which changes no distance.

    Above 2,000 dimensions it is of length 1: an index has it in half precision, which ends at 65,504.

    Raises `EmbeddingDimensionsError` where it is longer, `EmbeddingError` where it has no direction or holds what is no
    number. `name` says whose it is.
    """
    try:
        if isinstance(vector, bytes | bytearray | str):
            raise TypeError(f"{type(vector).__name__} is given")
        numbers = array("f", vector)
    except (TypeError, ValueError, OverflowError) as error:
        raise EmbeddingError(f"{name}: no list of numbers: {error}") from None
    if dimensions is not None and len(numbers) > dimensions:
        raise EmbeddingDimensionsError(
            f"{name}: {len(numbers)} dimensions, and the column of embeddings has {dimensions}: take a model of at "
            f"most {dimensions}, or give the column {len(numbers)} (`turnkeep migrate --dimensions {len(numbers)}`)",
            len(numbers),
            dimensions,
        )
    for index, number in enumerate(numbers):
        if not math.isfinite(number):
            raise EmbeddingError(f"{name}[{index}]: {vector[index]!r} can't be held in single precision")
    if not any(numbers):
        raise EmbeddingError(f"{name}: every number is zero, so that it has no direction")
    if dimensions is not None and dimensions > MOST_INDEXED:
        length = math.hypot(*numbers)
        numbers = array("f", (number / length for number in numbers))
    return [*numbers, *([0.0] * ((dimensions or 0) - len(numbers)))]


def given(
    vector: Sequence[float] | None, model: str | None, dimensions: int | None, *, final: bool
) -> tuple[Vector | None, str | None]:
    """A caller's own vector and its model, for the end of a turn. Raises `InvalidInputError`."""
    if vector is None:
        if model is not None:
            raise InvalidInputError("embedding_model: names the model of an embedding, and there is none")
        return None, None
    if not final:
        raise InvalidInputError("embedding: it is of a whole turn: give it with final=True")
    if model is None:
        raise InvalidInputError("embedding_model: name the model: embeddings of two models are never compared")
    check_text(model, "embedding_model", MOST_MODEL_CHARACTERS)
    try:
        return stored(vector, dimensions, "embedding"), model
    except EmbeddingDimensionsError:
        raise
    except EmbeddingError as error:
        raise InvalidInputError(str(error)) from None
