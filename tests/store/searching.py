"""What the tests of searches share: turns, vectors, and a provider whose vectors are known."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import psycopg

from turnkeep import AsyncBranch

MODEL = "a model"
DIMENSIONS = 768


async def say(branch: AsyncBranch, text: str, answer: str = "Well then.") -> None:
    """A whole turn."""
    await branch.begin_turn({"role": "user", "content": text}, key=str(uuid.uuid4()))
    await branch.save([{"role": "assistant", "content": answer}], final=True)


class Known:
    """A provider that knows some texts, and has one direction for all others."""

    def __init__(self, vectors: Mapping[str, Sequence[float]] | None = None, name: str = MODEL) -> None:
        self._vectors = vectors or {}
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def dimensions(self) -> int | None:
        return None

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        return [[*self._vectors.get(text, [1.0])] for text in texts]


def give_vector(
    dsn: str, conversation: uuid.UUID, turn: int, vector: Sequence[float], model: str = MODEL, *, branch: int = 0
) -> None:
    """Put a turn's vector there, as a worker would."""
    padded = [*vector, *[0.0] * (DIMENSIONS - len(vector))]
    with psycopg.connect(dsn) as connection:
        changed = connection.execute(
            "UPDATE turnkeep.document SET embedding = %s::public.vector, model = %s, next_try_at = NULL"
            " WHERE conversation_id = %s AND branch = %s AND turn_index = %s",
            (str(padded), model, conversation, branch, turn),
        )
        assert changed.rowcount > 0
