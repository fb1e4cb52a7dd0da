"""Two checkpoints compared: which messages they share, and the texts of those they do not.

Messages that both hold are known by their place and never read; of others first the digests are read, and the texts
only of those that differ.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnkeep import jsontext
from turnkeep.errors import ConversationArchivedError, CorruptionError, NotFoundError, UnstorableError
from turnkeep.jsontext import RawJSON
from turnkeep.store._alignment import Block, align
from turnkeep.store._reader import Reader

if TYPE_CHECKING:
    from turnkeep.store import AsyncStore

Place = tuple[int, int]
"""Where a message stands in its conversation: (branch, position)."""


@dataclass(frozen=True)
class Side:
    """One of two checkpoints: where it is, where its messages are, in order, and the exact text of its state."""

    conversation_id: uuid.UUID
    external_id: str
    branch: int
    branch_name: str | None
    turn_index: int
    sub_step: int
    places: tuple[Place, ...] = field(repr=False)
    state_text: str | None = field(repr=False)


@dataclass(frozen=True)
class Body:
    """A message's exact text and its size in bytes. `text` is None where it is larger than was asked for."""

    size: int
    text: str | None = field(repr=False)


@dataclass(frozen=True)
class Difference:
    """A message that only one side has, or a pair of them: indices into the lists, and what stands there."""

    index_a: int | None
    index_b: int | None
    a: Body | None
    b: Body | None


@dataclass(frozen=True)
class Comparison:
    """What two checkpoints have in common and what not, in order."""

    a: Side
    b: Side
    kept: int
    differences: tuple[Difference, ...]


async def read_side(
    store: AsyncStore, conversation: uuid.UUID, branch: int | str | None, at: tuple[int, int] | None
) -> Side:
    """Read where a checkpoint's messages are, and its state. Raises `NotFoundError`."""
    turn, sub_step = (None, None) if at is None else at
    rows = await Reader(store, "sql/compare.sql").fetch(
        "side",
        {
            "conversation": conversation,
            "branch": branch if isinstance(branch, int) else None,
            "name": branch if isinstance(branch, str) else None,
            "turn": turn,
            "sub_step": sub_step,
        },
    )
    if not rows and (await store.describe(conversation)).archived_at is not None:
        raise ConversationArchivedError(
            f"conversation {conversation} is archived, and can't be compared there: unarchive it first (`turnkeep "
            "unarchive`)"
        )
    if not rows:
        raise NotFoundError(f"conversation {conversation} has no branch {branch!r}")
    conversation_id, external_id, number, name, turn_index, found_sub_step, spans, state = rows[0]
    if turn_index is None and at is not None:
        raise NotFoundError(f"conversation {external_id!r}, branch {number}, has no checkpoint at {turn}.{sub_step}")
    if turn_index is None:
        turn_index, found_sub_step = -1, 0  # before its first turn
    return Side(
        conversation_id, external_id, number, name, turn_index, found_sub_step, tuple(_places(spans or [])), state
    )


async def compare(store: AsyncStore, a: Side, b: Side, *, most_bytes: int = jsontext.MAX_MESSAGE_BYTES) -> Comparison:
    """Compare messages by value: key order and white space make no difference, 1, 1.0 and true do.

    Texts of more than `most_bytes` are not read, and then differ where their texts do.
    """
    reader = Reader(store, "sql/compare.sql")
    shared = set(a.places) & set(b.places) if a.conversation_id == b.conversation_id else set()
    blocks = align(await _keys(reader, a, shared), await _keys(reader, b, shared))
    unlike = [block for block in blocks if not block.same]
    texts_a = await _bodies(reader, a, (i for block in unlike for i in block.a), most_bytes)
    texts_b = await _bodies(reader, b, (i for block in unlike for i in block.b), most_bytes)
    kept = sum(len(block.a) for block in blocks if block.same)
    differences: list[Difference] = []
    for block in unlike:
        for part in _by_value(block, texts_a, texts_b):
            if part.same:
                kept += len(part.a)
                continue
            paired = min(len(part.a), len(part.b))
            for i, j in zip(part.a[:paired], part.b[:paired], strict=True):
                differences.append(Difference(i, j, texts_a[i], texts_b[j]))
            differences += [Difference(i, None, texts_a[i], None) for i in part.a[paired:]]
            differences += [Difference(None, j, None, texts_b[j]) for j in part.b[paired:]]
    return Comparison(a, b, kept, tuple(differences))


def _by_value(block: Block, texts_a: dict[int, Body], texts_b: dict[int, Body]) -> Iterator[Block]:
    """A block of unlike texts, divided by whether their values are alike."""
    if not block.a or not block.b:
        yield block
        return
    keys_a = [_value_key(texts_a[i]) for i in block.a]
    keys_b = [_value_key(texts_b[j]) for j in block.b]
    for part in align(keys_a, keys_b):
        yield Block(part.same, block.a[part.a.start : part.a.stop], block.b[part.b.start : part.b.stop])


def _value_key(body: Body) -> Hashable:
    if body.text is None:
        return object()
    try:
        return jsontext.digest(RawJSON(body.text))
    except UnstorableError:
        return body.text


async def _keys(reader: Reader, side: Side, shared: Collection[Place]) -> list[Hashable]:
    """What tells a side's messages apart: the place of those that both sides have, a digest of the others."""
    others = [place for place in side.places if place not in shared]
    digests: dict[Place, bytes] = {}
    if others:
        for branch, position, digest in await reader.fetch(
            "digests", {"conversation": side.conversation_id, "spans": _spans(others)}
        ):
            digests[branch, position] = digest
    if not digests.keys() >= set(others):
        raise CorruptionError(f"conversation {side.external_id!r}: {len(others)} messages wanted, {len(digests)} found")
    return [place if place in shared else digests[place] for place in side.places]


async def _bodies(reader: Reader, side: Side, indices: Iterable[int], most_bytes: int) -> dict[int, Body]:
    wanted = list(indices)
    if not wanted:
        return {}
    rows = await reader.fetch(
        "bodies",
        {
            "conversation": side.conversation_id,
            "spans": _spans([side.places[index] for index in wanted]),
            "most": most_bytes,
        },
    )
    found = {(branch, position): Body(size, text) for branch, position, size, text in rows}
    return {index: found[side.places[index]] for index in wanted}


def _places(spans: Sequence[int]) -> Iterator[Place]:
    for at in range(0, len(spans), 3):
        branch, start, stop = spans[at : at + 3]
        yield from ((branch, position) for position in range(start, stop))


def _spans(places: Sequence[Place]) -> list[int]:
    """Spans that cover exactly these places, however often each is named."""
    spans: list[int] = []
    for branch, position in sorted(set(places)):
        if spans and spans[-3] == branch and spans[-1] == position:
            spans[-1] += 1
        else:
            spans += [branch, position, position + 1]
    return spans
