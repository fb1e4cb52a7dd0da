"""Whoever is at a conversation while it is pruned: what they write or fork stays whole, in whatever order they come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, branches_held, gate, in_order, until
from turnkeep import AsyncBranch, AsyncStore, Erased, Lease, NotFoundError, Posted, Pruned, Saved

MONTH = timedelta(days=30)


@dataclass
class Scene:
    """A conversation with old turns, and a fork; each with a handle that has seen the head."""

    store: AsyncStore
    main: AsyncBranch
    side: AsyncBranch

    @classmethod
    async def of(cls, store: AsyncStore, dsn: str, advance: Callable[[timedelta], None]) -> Scene:
        main = await store.conversation("c", agent_id="a")
        for number in range(5):
            await main.begin_turn([{"n": number}, {"n": f"more {number}"}])
            await main.save([{"answer": number}], state={"n": number})
            await main.save([], final=True)
        side = await store.fork("c", at=(3, 1), name="side")
        await side.save_all([{"summary": 1}, *side.messages[2:4]], final=True)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("UPDATE turnkeep.document SET text = 't', next_try_at = NULL")
        advance(2 * MONTH)
        return cls(store, main, side)

    def prune(self) -> Awaitable[Pruned]:
        return self.store.prune("c", keep="heads", older_than=MONTH)

    def whole(self) -> list[dict[str, Any]]:
        return [*self.main.messages[3:9], {"new": 1}, *self.main.messages[:2]]


Call = Callable[[Scene], Awaitable[Any]]
# What each comes to where it is first, and where it is behind pruning.
RIVALS: dict[str, tuple[Call, type, type]] = {
    "begin_turn": (lambda s: s.main.begin_turn({"new": 1}), Saved, Saved),
    "save_all": (lambda s: s.main.save_all(s.whole(), final=True), Saved, Saved),
    "post": (lambda s: s.store.post("c", "hello", key="k"), Posted, Posted),
    "claim": (lambda s: s.main.claim(), Lease, Lease),
    "fork at the head": (lambda s: s.store.fork("c"), AsyncBranch, AsyncBranch),
    "fork at an old place": (lambda s: s.store.fork("c", at=(1, 1)), AsyncBranch, NotFoundError),
    "copy": (lambda s: s.store.fork("c", into="copy"), AsyncBranch, AsyncBranch),
    "copy of an old place": (lambda s: s.store.fork("c", at=(1, 1), into="copy"), AsyncBranch, NotFoundError),
    "delete_branch": (lambda s: s.store.delete_branch("c", "side"), bool, bool),
    "another pruning": (lambda s: s.prune(), Pruned, Pruned),
    "erase": (lambda s: s.store.erase("c"), Erased, Erased),
}


def pruned_by_another(dsn: str) -> Pruned:
    """Another process prunes: nothing that this event loop waits for keeps it from coming to its end."""
    with turnkeep.open_sync(dsn) as store:
        return store.prune("c", keep="heads", older_than=MONTH)


async def whole(store: AsyncStore) -> dict[tuple[str, int, int, int], tuple[str, ...]]:
    """Every checkpoint that is listed, restored."""
    found = {}
    for one in await store.conversations():
        for branch in await store.branches(one.conversation_id):
            for place in await store.history(one.conversation_id, branch=branch.branch, limit=1000):
                at = (place.turn_index, place.sub_step)
                restored = await store.restore(one.conversation_id, branch=branch.branch, at=at)
                found[one.external_id, branch.branch, *at] = restored.message_texts
            await store.restore(one.conversation_id, branch=branch.branch)
    return found


@pytest.mark.parametrize("prune_first", [False, True])
@pytest.mark.parametrize("name", RIVALS)
async def test_what_races_with_pruning_stays_whole(
    dsn: str,
    store: AsyncStore,
    observer: Observer,
    advance: Callable[[timedelta], None],
    name: str,
    prune_first: bool,
) -> None:
    scene = await Scene.of(store, dsn, advance)
    before = await whole(store)
    call, first, second = RIVALS[name]
    wanted = scene.whole()
    calls = [call(scene), scene.prune()]
    held = branches_held(dsn, scene.main.conversation_id)
    outcomes = await in_order(observer, held, *(reversed(calls) if prune_first else calls))
    pruned, done = outcomes if prune_first else reversed(outcomes)
    assert isinstance(done, second if prune_first else first), done
    if name == "erase" and not prune_first:
        assert isinstance(pruned, NotFoundError), pruned
        assert not any(observer.counts()[table] for table in ("branch", "checkpoint", "message", "document"))
        return
    assert isinstance(pruned, Pruned), pruned
    assert pruned.busy == 0
    after = await whole(store)
    assert {place: after[place] for place in after if place in before} == {
        place: before[place] for place in after if place in before
    }
    if isinstance(done, AsyncBranch):
        assert [*map(str, done.messages)] == [*map(str, (await store.conversation(
            done.conversation_id, branch=done.branch)).messages)]  # fmt: skip
    if name == "save_all":
        assert (await store.restore("c")).messages == wanted
    await scene.prune() if name != "erase" else None
    assert {place: texts for place, texts in (await whole(store)).items() if place in after} == {
        place: after[place] for place in await whole(store) if place in after
    }


@pytest.mark.parametrize("table", ["checkpoint", "message"])
async def test_pruning_waits_for_a_whole_list_that_is_half_written(
    dsn: str, store: AsyncStore, observer: Observer, advance: Callable[[timedelta], None], table: str
) -> None:
    scene = await Scene.of(store, dsn, advance)
    wanted = scene.whole()
    with gate(dsn, f"turnkeep.{table}", "INSERT"):
        saving = asyncio.create_task(scene.main.save_all(wanted, final=True))
        await observer.see_waiting(1)
        pruning = asyncio.create_task(asyncio.to_thread(pruned_by_another, dsn))
        await observer.see_waiting(2)
    assert isinstance(await saving, Saved)
    assert (await pruning).checkpoints > 0
    assert (await store.restore("c")).messages == wanted
    assert (await scene.prune()).checkpoints == 0
    assert (await store.restore("c")).messages == wanted


@pytest.mark.parametrize("at", [None, (1, 1)])
async def test_pruning_waits_for_a_fork_that_is_half_done(
    dsn: str, store: AsyncStore, observer: Observer, advance: Callable[[timedelta], None], at: Any
) -> None:
    await Scene.of(store, dsn, advance)
    wanted = (await store.restore("c", at=at)).messages
    with gate(dsn, "turnkeep.branch", "INSERT"):
        forking = asyncio.create_task(store.fork("c", at=at))
        await observer.see_waiting(1)
        pruning = asyncio.create_task(asyncio.to_thread(pruned_by_another, dsn))
        await observer.see_waiting(2)
    fork = await forking
    assert (await pruning).checkpoints > 0
    assert (await store.restore("c", branch=fork.branch)).messages == wanted
    assert turnkeep.AsyncBranch is type(fork)


async def test_writers_are_not_held_up_while_messages_are_removed(
    dsn: str, store: AsyncStore, observer: Observer, advance: Callable[[timedelta], None]
) -> None:
    """A save begins and ends while messages are being removed: it takes none of those."""
    scene = await Scene.of(store, dsn, advance)
    await scene.main.begin_turn({"role": "user"})
    await scene.main.save_all([{"summary": 1}], final=True)
    advance(4 * MONTH)
    observer.rows("UPDATE turnkeep.document SET text = 't', next_try_at = NULL RETURNING 1")
    observer.rows("DELETE FROM turnkeep.checkpoint WHERE (turn_index, sub_step) <> (5, 1) AND branch = 0 RETURNING 1")
    with Observer(dsn) as second:
        with gate(dsn, "turnkeep.message", "DELETE"):
            removing = asyncio.create_task(
                asyncio.to_thread(
                    second.rows,
                    "SELECT messages FROM turnkeep.prune_messages_v1(%s, 1000)",
                    scene.main.conversation_id,
                )
            )
            await until(lambda: removing.done() or observer.waiting(), "the removal")
            await scene.main.begin_turn({"role": "user", "content": "beside"})
            await scene.main.save([{"role": "assistant"}], final=True)
        ((removed,),) = await removing
    assert removed > 0
    messages = (await store.restore("c")).messages
    assert [*messages] == [{"summary": 1}, {"role": "user", "content": "beside"}, {"role": "assistant"}]
