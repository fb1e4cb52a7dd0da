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


# Vectors of two agents: many of one near to [1, 0, …], and few of the other further off. One turn each.
CROWD = """
INSERT INTO turnkeep.conversation (conversation_id, external_id, agent_id, created_at)
SELECT md5('%(agent)s' || n)::uuid, '%(agent)s' || n, '%(agent)s', now() FROM generate_series(1, %(count)s) AS n;
INSERT INTO turnkeep.document (conversation_id, branch, turn_index, chunk, text, tsv, embedding, model, created_at)
SELECT md5('%(agent)s' || n)::uuid, 0, 0, 0, '%(agent)s' || n, to_tsvector('simple', '%(agent)s'),
    (SELECT array_agg(CASE i WHEN 1 THEN %(near)s ELSE 0 END + random() - 0.5 + n * 0 ORDER BY i)
        FROM generate_series(1, %(dimensions)s) AS i)::public.vector, 'a model', now()
FROM generate_series(1, %(count)s) AS n;
"""


def crowd(dsn: str, agent: str, count: int, *, near: float, dimensions: int) -> None:
    """So many conversations of an agent, of a turn each, whose vectors point the same way, more or less."""
    filled = CROWD % {"agent": agent, "count": count, "near": near, "dimensions": dimensions}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT setseed(0.5)")
        connection.execute(filled.encode())
        connection.execute("VACUUM ANALYZE turnkeep.document")
        connection.execute("ANALYZE turnkeep.conversation")
