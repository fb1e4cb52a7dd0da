"""Forks, switches, ends and updates that come at once: each is whole, or has not been."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.observing import Observer, branches_held, conversation_held, gate, in_order, transaction, until
from turnkeep import (
    AsyncBranch,
    AsyncStore,
    ConflictError,
    Conversation,
    ConversationEndedError,
    Lease,
    LeaseHeldError,
    NotFoundError,
    Posted,
    Saved,
)

USER = {"role": "user", "content": "weather?"}
CALL = {"id": "call_1", "name": "weather"}


async def begun(store: AsyncStore) -> AsyncBranch:
    branch = await store.conversation("c", agent_id="support")
    await branch.begin_turn(USER)
    await branch.save([{"role": "assistant"}])
    return branch


def kinds(outcomes: list[Any]) -> list[str]:
    return sorted(type(outcome).__name__ for outcome in outcomes)


@pytest.mark.parametrize("same", [True, False])
async def test_of_eight_copies_at_once_to_one_id_one_is_made(
    dsn: str, store: AsyncStore, observer: Observer, same: bool
) -> None:
    source = await begun(store)
    ids = [uuid.UUID(int=1 if same else n) for n in range(1, 9)]
    held = branches_held(dsn, source.conversation_id)
    outcomes = await in_order(observer, held, *(store.fork("c", fork_id=one, into="copy") for one in ids))
    assert kinds(outcomes) == (["AsyncBranch"] * 8 if same else ["AsyncBranch", *["ConflictError"] * 7]), outcomes
    counts = observer.counts()
    assert (counts["conversation"], counts["branch"], counts["checkpoint"], counts["message"]) == (2, 2, 4, 4)
    assert (await store.restore("copy")).message_texts == (await store.restore("c")).message_texts


@pytest.mark.parametrize("switch_first", [True, False])
async def test_a_branch_is_switched_to_or_deleted(
    dsn: str, store: AsyncStore, observer: Observer, switch_first: bool
) -> None:
    source = await begun(store)
    await store.fork("c")
    calls = [store.switch("c", 1), store.delete_branch("c", 1)]
    held = branches_held(dsn, source.conversation_id, 1)
    outcomes = await in_order(observer, held, *(calls if switch_first else reversed(calls)))
    if switch_first:
        assert outcomes[0] is None
        assert isinstance(outcomes[1], ConflictError), outcomes
    else:
        assert outcomes[0] is True
        assert isinstance(outcomes[1], NotFoundError), outcomes
    assert (await store.restore("c")).branch == (1 if switch_first else 0)


@pytest.mark.parametrize("fork_first", [True, False])
async def test_a_branch_is_built_on_or_deleted(
    dsn: str, store: AsyncStore, observer: Observer, fork_first: bool
) -> None:
    source = await begun(store)
    side = await store.fork("c")
    await side.save([USER], final=True)
    calls = [store.fork("c", branch=1), store.delete_branch("c", 1)]
    held = branches_held(dsn, source.conversation_id, 1)
    outcomes = await in_order(observer, held, *(calls if fork_first else reversed(calls)))
    if fork_first:
        assert isinstance(outcomes[0], AsyncBranch), outcomes
        assert isinstance(outcomes[1], ConflictError), outcomes
        assert "(2)" in str(outcomes[1])
        assert len((await store.restore("c", branch=2)).messages) == 3
    else:
        assert outcomes[0] is True
        assert isinstance(outcomes[1], NotFoundError), outcomes
        assert [one.branch for one in await store.branches("c")] == [0]


Call = Callable[[AsyncStore, AsyncBranch], Awaitable[Any]]
RIVALS: dict[str, tuple[Call, type]] = {
    "save": (lambda store, branch: branch.save([USER]), Saved),
    "claim": (lambda store, branch: branch.claim(), Lease),
    "fork": (lambda store, branch: store.fork("c"), AsyncBranch),
    "post": (lambda store, branch: store.post("c", "hello", key="k"), Posted),
}


@pytest.mark.parametrize("name", RIVALS)
async def test_what_comes_behind_an_end_is_refused(dsn: str, store: AsyncStore, observer: Observer, name: str) -> None:
    branch = await begun(store)
    before = observer.counts()
    call, _ = RIVALS[name]
    held = branches_held(dsn, branch.conversation_id)
    ended, refused = await in_order(observer, held, store.end("c"), call(store, branch))
    assert isinstance(ended, Conversation), ended
    assert isinstance(refused, ConversationEndedError), refused
    assert observer.counts() == before


@pytest.mark.parametrize("name", RIVALS)
async def test_what_an_end_waits_for_is_kept(dsn: str, store: AsyncStore, observer: Observer, name: str) -> None:
    branch = await begun(store)
    call, done = RIVALS[name]
    held = branches_held(dsn, branch.conversation_id)
    first, ended = await in_order(observer, held, call(store, branch), store.end("c"))
    assert isinstance(first, done), first
    statuses = [one.status for one in await store.branches("c")]
    if name == "claim":
        assert isinstance(ended, LeaseHeldError), ended
        assert statuses == ["running"]
        return
    assert isinstance(ended, Conversation), ended
    assert set(statuses) == {"ended"}
    await store.reopen("c")
    assert [one.status for one in await store.branches("c")] == ["open", *(["idle"] if name == "fork" else [])]
    if name == "post":
        await branch.save([USER], final=True)
        assert (await store.restore("c")).status == "ready"


async def test_no_fork_of_a_fork_escapes_an_end(dsn: str, store: AsyncStore, observer: Observer) -> None:
    """A branch that was made while the end waited is ended too, and so is what is forked from that."""
    source = await begun(store)
    with gate(dsn, "turnkeep.branch", "UPDATE"):
        with transaction(dsn) as forker:
            forker.execute(
                "SELECT turnkeep.fork_v1(%s, 0, 0, 1, 'first', gen_random_uuid())", (source.conversation_id,)
            )
            end = asyncio.ensure_future(store.end("c"))
            await observer.see_waiting(1)
            forker.commit()
        await until(
            lambda: observer.rows("SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"),
            "the end's update",
        )
        fork = asyncio.ensure_future(store.fork("c", branch=1))
        await until(lambda: fork.done() or len(observer.waiting()) == 2, "the fork of the fork")
    await end
    await asyncio.gather(fork, return_exceptions=True)
    assert {one.status for one in await store.branches("c")} == {"ended"}


async def test_updates_at_once_keep_every_key(dsn: str, store: AsyncStore, observer: Observer) -> None:
    branch = await begun(store)
    held = conversation_held(dsn, branch.conversation_id)
    calls = (store.update("c", metadata={f"k{n}": n, "shared": n}) for n in range(8))
    outcomes = await in_order(observer, held, *calls)
    assert kinds(outcomes) == ["Conversation"] * 8, outcomes
    said = await store.describe("c")
    assert said.version == 8
    assert {**said.metadata, "shared": None} == {**{f"k{n}": n for n in range(8)}, "shared": None}


async def test_of_updates_at_once_of_one_version_one_wins(dsn: str, store: AsyncStore, observer: Observer) -> None:
    branch = await begun(store)
    held = conversation_held(dsn, branch.conversation_id)
    outcomes = await in_order(observer, held, *(store.update("c", metadata={"n": n}, version=0) for n in range(8)))
    assert kinds(outcomes) == [*["ConflictError"] * 7, "Conversation"], outcomes
    (winner,) = (n for n, outcome in enumerate(outcomes) if isinstance(outcome, Conversation))
    said = await store.describe("c")
    assert (said.version, said.metadata) == (1, {"n": winner})


@pytest.mark.parametrize("post_first", [True, False])
async def test_a_post_at_a_turns_end_wakes_a_worker(
    dsn: str, store: AsyncStore, observer: Observer, post_first: bool
) -> None:
    branch = await begun(store)
    calls = [store.post("c", "next", key="k"), branch.save([USER], final=True)]
    held = branches_held(dsn, branch.conversation_id)
    outcomes = await in_order(observer, held, *(calls if post_first else reversed(calls)))
    saved = outcomes[1 if post_first else 0]
    assert isinstance(saved, Saved), outcomes
    assert saved.waiting is post_first
    (claimed,) = await store.claim_waiting(["support"], limit=5)
    assert await claimed.take_request() is not None


@pytest.mark.parametrize("post_first", [True, False])
async def test_a_post_at_the_end_of_a_workers_turn_is_seen_by_it_or_by_the_next(
    dsn: str, store: AsyncStore, observer: Observer, post_first: bool
) -> None:
    branch = await begun(store)
    await branch.claim()
    calls = [store.post("c", "next", key="k"), branch.save([USER], final=True)]
    held = branches_held(dsn, branch.conversation_id)
    outcomes = await in_order(observer, held, *(calls if post_first else reversed(calls)))
    assert outcomes[1 if post_first else 0].waiting is post_first
    assert await branch.release()
    (claimed,) = await store.claim_waiting(["support"], limit=5)
    assert await claimed.take_request() is not None
