"""G12: whoever is at a conversation while it is erased, nothing of it stays behind, in whatever order they come."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

import turnkeep
from tests.observing import Observer, branches_held, conversation_held, gate, in_order, until
from turnkeep import AsyncBranch, AsyncStore, Conversation, Erased, Lease, NotFoundError, Posted, Saved

CANARY = "canary-4711"
CALL = {"id": CANARY, "name": CANARY}
SAID = {"role": "user", "content": CANARY}


@dataclass
class Scene:
    """A conversation that says the same word wherever something can be said, and those who are at it."""

    store: AsyncStore
    main: AsyncBranch
    side: AsyncBranch

    @classmethod
    async def of(cls, store: AsyncStore) -> Scene:
        main = await store.conversation(CANARY, agent_id=CANARY, title=CANARY, tags=[CANARY], metadata={CANARY: CANARY})
        await main.begin_turn(SAID, key=CANARY, state={CANARY: CANARY})
        await main.save([SAID], tool_calls=[CALL])
        side = await store.fork(CANARY, name=CANARY)
        await main.save([SAID], tool_results=[{"tool_call_id": CANARY, "content": CANARY}], final=True)
        await store.post(CANARY, SAID, key=f"{CANARY} waits")
        child = await store.conversation(f"{CANARY} child", parent=CANARY)
        await child.begin_turn(SAID)
        return cls(store, main, side)


Call = Callable[[Scene], Awaitable[Any]]

# Who races with an erasure, what it comes to where it is first, and what where it is second. Some look once more when
# they have done their work, and may then find that all has gone.
WRITERS: dict[str, tuple[Call, tuple[type, ...], type]] = {
    "save": (lambda s: s.side.save([SAID], state={CANARY: 1}), (Saved,), NotFoundError),
    "final save": (
        lambda s: s.side.save([SAID], tool_results=[{"tool_call_id": CANARY}], final=True), (Saved,), NotFoundError,
    ),
    "save_all": (lambda s: s.side.save_all([SAID, {"new": CANARY}, SAID]), (Saved,), NotFoundError),
    "begin_turn": (lambda s: s.main.begin_turn(SAID, key=f"{CANARY} new"), (Saved,), NotFoundError),
    "take_request": (lambda s: s.main.take_request(state=CANARY), (Saved,), NotFoundError),
    "post": (lambda s: s.store.post(CANARY, SAID, key=f"{CANARY} posted"), (Posted,), NotFoundError),
    "claim": (lambda s: s.side.claim(owner=CANARY), (Lease, NotFoundError), NotFoundError),
    "fork": (lambda s: s.store.fork(CANARY, name="another"), (AsyncBranch, NotFoundError), NotFoundError),
    "switch": (lambda s: s.store.switch(CANARY, 1), (type(None),), NotFoundError),
    "delete_branch": (lambda s: s.store.delete_branch(CANARY, 1), (bool,), NotFoundError),
    "end": (lambda s: s.store.end(CANARY), (Conversation, NotFoundError), NotFoundError),
    "reopen": (lambda s: s.store.reopen(CANARY), (Conversation, NotFoundError), NotFoundError),
}  # fmt: skip
DESCRIBERS: dict[str, tuple[Call, tuple[type, ...], type]] = {
    "update": (
        lambda s: s.store.update(CANARY, title=f"{CANARY} new"), (Conversation, NotFoundError), NotFoundError,
    ),
    "child": (
        lambda s: s.store.conversation("c", parent=CANARY, title=CANARY), (AsyncBranch, NotFoundError), NotFoundError,
    ),
}  # fmt: skip
RIVALS = {**WRITERS, **DESCRIBERS}
SIDE = ("save", "final save", "save_all", "claim", "switch")


def contested(dsn: str, scene: Scene, name: str) -> AbstractContextManager[None]:
    """Hold the one row that both wait for: there, the first to come is the first to get it."""
    if name in DESCRIBERS:
        return conversation_held(dsn, scene.main.conversation_id)
    return branches_held(dsn, scene.main.conversation_id, 1 if name in SIDE else 0)


@pytest.mark.parametrize("name", RIVALS)
async def test_what_an_erasure_waits_for_goes_with_it(
    dsn: str, store: AsyncStore, observer: Observer, name: str
) -> None:
    scene = await Scene.of(store)
    call, first, _ = RIVALS[name]
    held = contested(dsn, scene, name)
    done, erased = await in_order(observer, held, call(scene), store.erase(CANARY))
    assert isinstance(done, first), done
    assert isinstance(erased, Erased), erased
    assert erased.conversations == (3 if name == "child" else 2)
    assert observer.traces([scene.main.conversation_id], CANARY) == {}
    assert not any(observer.counts()[table] for table in ("branch", "checkpoint", "message", "request", "document"))


@pytest.mark.parametrize("name", RIVALS)
async def test_what_comes_behind_an_erasure_finds_nothing_and_leaves_nothing(
    dsn: str, store: AsyncStore, observer: Observer, name: str
) -> None:
    scene = await Scene.of(store)
    call, _, second = RIVALS[name]
    held = contested(dsn, scene, name)
    erased, refused = await in_order(observer, held, store.erase(CANARY), call(scene))
    assert isinstance(erased, Erased), erased
    assert isinstance(refused, second), refused
    assert observer.traces([scene.main.conversation_id], CANARY) == {}


@pytest.mark.parametrize("erase_first", [False, True])
async def test_a_lease_ends_with_its_conversation(
    dsn: str, store: AsyncStore, observer: Observer, erase_first: bool
) -> None:
    for call in (AsyncBranch.renew, AsyncBranch.release):
        scene = await Scene.of(store)
        await scene.side.claim(owner=CANARY)
        calls = [call(scene.side), store.erase(CANARY)]
        held = branches_held(dsn, scene.main.conversation_id, 1)
        outcomes = await in_order(observer, held, *(reversed(calls) if erase_first else calls))
        done = outcomes[1 if erase_first else 0]
        if call is AsyncBranch.release:
            assert done is not erase_first
        else:
            assert isinstance(done, turnkeep.LeaseLostError if erase_first else Lease)
        assert observer.traces([scene.main.conversation_id], CANARY) == {}


async def test_a_copy_that_was_first_is_whole_and_the_source_goes(
    dsn: str, store: AsyncStore, observer: Observer
) -> None:
    scene = await Scene.of(store)
    before = (await store.restore(CANARY)).message_texts
    held = branches_held(dsn, scene.main.conversation_id)
    copy, erased = await in_order(observer, held, store.fork(CANARY, into="copy"), store.erase(CANARY))
    assert isinstance(copy, AsyncBranch), copy
    assert isinstance(erased, Erased), erased
    assert (await store.restore("copy")).message_texts == before
    # Its checkpoints go on saying where they were issued: by that its calls keep their idempotency keys.
    assert observer.traces([scene.main.conversation_id]) == {"checkpoint": 3}
    assert (await store.erase("copy")).conversations == 1
    assert observer.traces([scene.main.conversation_id], CANARY) == {}


async def test_a_copy_that_is_second_is_none(dsn: str, store: AsyncStore, observer: Observer) -> None:
    scene = await Scene.of(store)
    held = branches_held(dsn, scene.main.conversation_id)
    erased, copy = await in_order(observer, held, store.erase(CANARY), store.fork(CANARY, into="copy"))
    assert isinstance(erased, Erased), erased
    assert isinstance(copy, NotFoundError), copy
    assert observer.traces([scene.main.conversation_id, turnkeep.conversation_uuid("copy")], CANARY) == {}


@pytest.mark.parametrize("parent_first", [False, True])
async def test_a_parent_and_its_child_are_erased_at_once(
    dsn: str, store: AsyncStore, observer: Observer, parent_first: bool
) -> None:
    scene = await Scene.of(store)
    child = f"{CANARY} child"
    names = [CANARY, child] if parent_first else [child, CANARY]
    held = branches_held(dsn, turnkeep.conversation_uuid(child))
    outcomes = await in_order(observer, held, *map(store.erase, names))
    assert [type(outcome) for outcome in outcomes] == [Erased, Erased], outcomes
    assert sum(outcome.conversations for outcome in outcomes) == 2
    assert observer.traces([scene.main.conversation_id], CANARY) == {}


async def test_two_erasures_at_once_remove_everything_once(dsn: str, store: AsyncStore, observer: Observer) -> None:
    scene = await Scene.of(store)
    held = branches_held(dsn, scene.main.conversation_id)
    outcomes = await in_order(observer, held, store.erase(CANARY), store.erase(CANARY))
    assert [outcome.conversations for outcome in outcomes] == [2, 0]
    assert observer.traces([scene.main.conversation_id], CANARY) == {}


async def test_a_conversation_made_twice_and_erased_in_between_is_not_half_there(
    dsn: str, store: AsyncStore, observer: Observer
) -> None:
    """The second maker has seen the first one's branch, and comes to the conversation when both have gone."""
    making = "SELECT outcome FROM turnkeep.create_v2(%s, 'c', NULL)"
    own = turnkeep.conversation_uuid("c")
    await store.conversation("c")
    with Observer(dsn) as second:
        with gate(dsn, "turnkeep.conversation", "INSERT"):
            made = asyncio.create_task(asyncio.to_thread(second.rows, making, own))
            await until(lambda: made.done() or observer.waiting(), "the second maker")
            await store.erase("c")
        await made
    branches = observer.rows("SELECT conversation_id FROM turnkeep.branch")
    assert observer.rows("SELECT conversation_id FROM turnkeep.conversation") == branches


async def test_nothing_is_erased_where_nothing_is(store: AsyncStore) -> None:
    assert await store.erase(uuid.uuid4()) == Erased(0, 0, 0, 0, 0)
