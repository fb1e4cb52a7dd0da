"""What people do to a list of messages before they save it whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.store.model_moves import World


def _spliced(world: World, rng: random.Random, kept: list[Any]) -> list[Any]:
    start, stop = sorted(rng.randint(0, len(kept)) for _ in range(2))
    return [*kept[:start], *world.messages(rng, 0, 2), *kept[stop:]]


def _reordered(world: World, rng: random.Random, kept: list[Any]) -> list[Any]:
    start, stop = sorted(rng.randint(0, len(kept)) for _ in range(2))
    return [*kept[:start], *rng.sample(kept[start:stop], stop - start), *kept[stop:]]


def _lengthened(world: World, rng: random.Random, kept: list[Any]) -> list[Any]:
    if len(kept) > 1500:
        return kept[-3:]
    more = [{"content": f"{world.count}.{number}"} for number in range(rng.choice([300, 600]))]
    world.count += 1
    return [*kept, *more] if rng.random() < 0.5 else [*more[:200], *kept, *more[200:]]


EDITS: list[Callable[[World, random.Random, list[Any]], list[Any]]] = [
    lambda world, rng, kept: kept,
    lambda world, rng, kept: [*kept, *world.messages(rng, 1, 3)],
    lambda world, rng, kept: [*kept, *world.messages(rng, 1, 3)],
    lambda world, rng, kept: kept[: rng.randint(0, len(kept))],
    lambda world, rng, kept: [{"summary": world.count}, *kept[rng.randint(0, len(kept)) :], *world.messages(rng, 0, 1)],
    _spliced,
    _spliced,
    _reordered,
    lambda world, rng, kept: [*kept, *rng.choices(kept, k=2)] if kept else [],
    lambda world, rng, kept: [one for one in kept for _ in range(rng.choice([0, 1, 1, 1, 2]))],
    lambda world, rng, kept: [*kept[1::2], *kept[0::2]],
    lambda world, rng, kept: kept[0::2],
    lambda world, rng, kept: [one for pair in zip(kept[1::2], kept[0::2], strict=False) for one in pair],
    _lengthened,
]
