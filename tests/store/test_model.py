"""The store beside a plain model: whatever is done, in whatever order, both say the same, and the rows are as many.

`MODEL_SEQUENCES` is how many sequences are made up.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import turnkeep
from tests.observing import Observer
from tests.store import model_archiving  # noqa: F401 - makes its moves known
from tests.store.in_threads import open_in_threads
from tests.store.model_checks import check
from tests.store.model_moves import MOVES, World

SEQUENCES = int(os.environ.get("MODEL_SEQUENCES", "40"))
SEEDS = st.integers(0, 2**24)

moves_of = st.tuples(st.sampled_from(sorted(MOVES)), SEEDS)
# Most lists that are drawn with a range of lengths are short: here any length is as likely.
sequences = st.integers(1, 80).flatmap(lambda length: st.lists(moves_of, min_size=length, max_size=length))


def some(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        database=None,
    )


Stores = tuple[turnkeep.AsyncStore, turnkeep.AsyncStore]


@pytest.fixture
async def loops(dsn: str) -> AsyncIterator[Stores]:
    async with turnkeep.open(dsn) as one, turnkeep.open(dsn) as other:
        yield one, other


@pytest.fixture
async def threads(dsn: str) -> AsyncIterator[Stores]:
    async with open_in_threads(dsn) as one, open_in_threads(dsn) as other:
        yield one, other


async def run(moves: list[tuple[str, int]], stores: Stores, observer: Observer) -> None:
    world = World.of(*stores)
    for name, seed in moves:
        await world.move(name, seed)
    await check(world, observer)


@some(SEQUENCES)
@given(moves=sequences)
async def test_any_sequence_is_what_a_plain_model_says(
    loops: Stores, observer: Observer, moves: list[tuple[str, int]]
) -> None:
    await run(moves, loops, observer)


@some(max(SEQUENCES // 8, 5))
@given(moves=sequences)
async def test_any_sequence_of_threads_is_what_a_plain_model_says(
    threads: Stores, observer: Observer, moves: list[tuple[str, int]]
) -> None:
    await run(moves, threads, observer)
