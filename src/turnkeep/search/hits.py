"""What a search gives back."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from turnkeep.store._searching import NotIndexed

__all__ = ["Hit", "NotIndexed", "SearchResult"]


@dataclass(frozen=True)
class Hit:
    """A turn that was found, by the best chunk of its text.

    `score` says nothing across searches: of text how often and how alone it has words that few others have, of vectors
    the cosine of the angle between them (1 is the same direction), of both the sum of 1 / (60 + rank). `snippet` is
    plain text around the first words that match, on one line; `marks` are the (start, stop) of those words in it.
    `branch` is the one that wrote the turn, whichever inherit it, `current_branch` the conversation's current one.
    """

    conversation_id: uuid.UUID
    external_id: str
    title: str | None
    agent_id: str | None
    branch: int
    turn_index: int
    chunk: int
    score: float
    snippet: str
    marks: tuple[tuple[int, int], ...]
    created_at: datetime | None
    archived: bool
    current_branch: int


@dataclass(frozen=True)
class SearchResult:
    """The hits of a search, the best first, and what they may be missing.

    `mode` is what was done: `text`, `semantic` or `hybrid`. Where that is less than was asked for, `text_only` says
    why. `exact` is whether every vector within the scope was compared with the query's, rather than an index followed.
    `all_words` is whether all that have the words were looked at: of a word that very many have, only the newest
    chunks are. `not_indexed` counts what could not be found yet. `left_out` are words of a long
    query, as the index has them, that only turns with all of its words were looked for by.
    """

    hits: tuple[Hit, ...]
    mode: str
    model: str | None
    text_only: str | None
    exact: bool
    all_words: bool
    not_indexed: NotIndexed
    left_out: tuple[str, ...] = ()
