"""Forks: a new line at any checkpoint, no message copied, the past of both lines complete (G8)."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import turnkeep
from turnkeep import AsyncBranch, AsyncStore

CALL = {"id": "call_0", "name": "look"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def turn(branch: AsyncBranch, text: str) -> None:
    await branch.begin_turn(user(text))
    await branch.save([{"role": "assistant"}], tool_calls=[CALL])
    await branch.save([{"role": "tool", "content": text}], tool_results=[{"tool_call_id": "call_0"}])
    await branch.save([{"role": "assistant", "content": text}], final=True)


async def texts(store: AsyncStore, branch: int | None = None, at: tuple[int, int] | None = None) -> list[Any]:
    return [m.get("content") for m in (await store.restore("c", branch=branch, at=at)).messages]


async def test_both_lines_go_on_from_the_fork_point(store: AsyncStore, dsn: str) -> None:
    main = await store.conversation("c", agent_id="support")
    for text in "abc":
        await turn(main, text)
    fork = await store.fork("c", at=(1, 3), name="retry")
    assert (fork.branch, fork.turn_index, fork.sub_step, fork.turn_open) == (1, 1, 3, False)
    assert fork.agent_id == "support"
    await turn(fork, "d")
    await turn(main, "e")
    assert await texts(store, 0) == [x for t in "abce" for x in (t, None, t, t)]
    assert await texts(store, 1) == [x for t in "abd" for x in (t, None, t, t)]
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*), sum(size) FROM turnkeep.message").fetchone()
    assert row is not None
    assert row[0] == 4 * 5
    restored = await store.restore("c")
    assert (restored.branch, restored.branch_name) == (0, "main")


async def test_a_fork_in_the_middle_of_a_turn_goes_on_with_that_turn(store: AsyncStore) -> None:
    main = await store.conversation("c")
    await turn(main, "a")
    fork = await store.fork("c", at=(0, 1))
    (pending,) = fork.pending
    assert (pending.uncertain, pending.place) == (True, (0, 1, 0))
    with pytest.raises(turnkeep.TurnOpenError):
        await fork.begin_turn(user("x"))
    await fork.save([{"role": "tool", "content": "other"}], tool_results=[{"tool_call_id": "call_0"}])
    await fork.save([{"role": "assistant", "content": "other"}], tool_calls=[CALL])
    (own,) = (await store.restore("c", branch=1)).pending
    assert (own.uncertain, own.place) == (False, (0, 3, 0))
    await fork.save([], tool_results=["ok"], final=True)
    assert await texts(store, 1) == ["a", None, "other", "other"]
    assert await texts(store, 0) == ["a", None, "a", "a"]


async def test_forks_of_forks_inherit_each_part_from_its_owner(store: AsyncStore) -> None:
    main = await store.conversation("c")
    for text in "abc":
        await turn(main, text)
    first = await store.fork("c", at=(1, 3))
    await turn(first, "d")
    await turn(first, "e")
    second = await store.fork("c", branch=1, at=(2, 2))
    await second.save([{"role": "assistant", "content": "f"}], final=True)
    ancestor = await store.fork("c", branch=2, at=(0, 3))
    await turn(ancestor, "g")
    again = await store.fork("c", branch=3)
    await turn(again, "h")
    assert await texts(store, 2) == ["a", None, "a", "a", "b", None, "b", "b", "d", None, "d", "f"]
    assert await texts(store, 3) == ["a", None, "a", "a", "g", None, "g", "g"]
    assert await texts(store, 4) == ["a", None, "a", "a", "g", None, "g", "g", "h", None, "h", "h"]
    assert await texts(store, 2, at=(1, 0)) == ["a", None, "a", "a", "b"]
    places = [(c.branch, c.turn_index, c.sub_step) for c in await store.history("c", branch=2)]
    assert places == [(2, 2, 3), (1, 2, 2), (1, 2, 1), (1, 2, 0), *((0, t, s) for t in (1, 0) for s in (3, 2, 1, 0))]
    with pytest.raises(turnkeep.NotFoundError):
        await store.restore("c", branch=3, at=(2, 0))


async def test_a_fork_shares_nothing_with_what_its_source_does_later(store: AsyncStore) -> None:
    main = await store.conversation("c")
    await main.begin_turn(user("a"))
    fork = await store.fork("c")
    await main.save([{"content": "main"}])
    await fork.save([{"content": "fork"}])
    await main.save([{"content": "main"}])
    assert await texts(store, 0) == ["a", "main", "main"]
    assert await texts(store, 1) == ["a", "fork"]


async def test_the_same_fork_id_gives_the_same_branch(store: AsyncStore) -> None:
    main = await store.conversation("c")
    await turn(main, "a")
    fork_id = uuid.uuid4()
    first = await store.fork("c", fork_id=fork_id, name="x")
    await turn(first, "b")
    again = await store.fork("c", fork_id=fork_id, name="x")
    assert (again.branch, again.turn_index) == (first.branch, 1)
    assert (await store.fork("c")).branch == 2


async def test_what_cannot_be_forked_is_said(store: AsyncStore) -> None:
    await store.conversation("c")
    with pytest.raises(turnkeep.NotFoundError, match="no checkpoint yet"):
        await store.fork("c")
    main = await store.conversation("c")
    await turn(main, "a")
    with pytest.raises(turnkeep.NotFoundError, match=r"at 0\.9"):
        await store.fork("c", at=(0, 9))
    with pytest.raises(turnkeep.NotFoundError):
        await store.fork("c", branch=5)
    with pytest.raises(turnkeep.NotFoundError):
        await store.fork("nobody")
    await store.fork("c", name="x")
    with pytest.raises(turnkeep.ConflictError, match="'x'"):
        await store.fork("c", name="x")
    with pytest.raises(turnkeep.ConflictError, match="'main'"):
        await store.fork("c", name="main")


async def test_a_key_of_another_branch_begins_nothing_here(store: AsyncStore) -> None:
    main = await store.conversation("c")
    await main.begin_turn(user("a"), key="k")
    fork = await store.fork("c")
    with pytest.raises(turnkeep.KeyReusedError, match="on branch 0"):
        await fork.begin_turn(user("a"), key="k")
    assert (await store.restore("c", branch=1)).sub_step == 0


async def test_a_fork_at_an_ancestors_point_keeps_the_ancestors_before_it(store: AsyncStore) -> None:
    main = await store.conversation("c")
    await main.begin_turn(user("a"))
    await main.save([{"role": "assistant"}], tool_calls=[CALL])
    first = await store.fork("c", at=(0, 1), branch=0)
    await first.save([{"content": "n"}])
    second = await store.fork("c", at=(0, 2), branch=1)
    await second.save([{"content": "n2"}])
    third = await store.fork("c", at=(0, 2), branch=2)
    assert [call.place for call in third.pending] == [(0, 1, 0)]
    assert await texts(store, 3) == ["a", None, "n"]
    assert await texts(store, 3, at=(0, 1)) == ["a", None]


async def test_a_fork_id_makes_one_branch_whatever_it_is_asked_to_fork(store: AsyncStore) -> None:
    main = await store.conversation("c")
    await turn(main, "a")
    for _ in range(3):
        await store.fork("c")
    fork_id = uuid.uuid4()
    made = await asyncio.gather(*(store.fork("c", branch=n, at=(0, 0), fork_id=fork_id) for n in range(4)))
    assert len({branch.branch for branch in made}) == 1


async def test_times_rise_across_a_fork_when_the_clock_is_put_back(store: AsyncStore, advance: Any, dsn: str) -> None:
    main = await store.conversation("c")
    await turn(main, "a")
    advance(timedelta(seconds=-5))
    fork = await store.fork("c")
    await turn(fork, "b")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.conversation SET current_branch = 1")
        row = connection.execute(
            "SELECT branch, turn_index, sub_step FROM turnkeep.agent_checkpoints"
            " ORDER BY turn_index DESC, created_at DESC LIMIT 1"
        ).fetchone()
    assert row == (1, 1, 3)
