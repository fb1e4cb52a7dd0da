"""Conversations are erased when their time is over, and never while anybody is at them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, branches_held, conversation_held, in_order
from tests.store.whole_rows import exported, imported
from turnkeep import AsyncStore, Erased, Expired, InvalidInputError, NotFoundError

DAY = timedelta(days=1)
Advance = Callable[[timedelta], None]


async def names(store: AsyncStore) -> list[str]:
    return sorted(one.external_id for one in await store.conversations())


async def test_a_conversation_is_erased_when_its_time_is_over(
    store: AsyncStore, observer: Observer, advance: Advance
) -> None:
    for name, ttl in (("short", DAY), ("long", 9 * DAY), ("ever", None)):
        await (await store.conversation(name, ttl=ttl)).begin_turn({"role": "user"})
    assert (await store.describe("short")).ttl == DAY
    assert await store.expire() == Expired()
    advance(2 * DAY)
    assert await store.expire(dry_run=True) == Expired(Erased(1, 0, 0, 0, 0))
    assert await store.expire() == Expired(Erased(1, 1, 1, 1, 0))
    assert await names(store) == ["ever", "long"]
    assert observer.traces([turnkeep.conversation_uuid("short")]) == {}
    await store.update("long", ttl=None)
    await store.update("ever", ttl=timedelta(hours=1))
    advance(20 * DAY)
    assert (await store.expire()).erased.conversations == 1
    assert await names(store) == ["long"]


async def test_an_agents_time_is_that_of_its_conversations_unless_they_have_their_own(
    store: AsyncStore, advance: Advance
) -> None:
    await store.set_retention("a", DAY)
    await store.set_retention("b", 5 * DAY)
    assert await store.retention() == {"a": DAY, "b": 5 * DAY}
    for name, agent, ttl in (
        ("1", "a", None),
        ("2", "a", 9 * DAY),
        ("3", "b", None),
        ("4", "c", None),
        ("5", None, None),
    ):
        await store.conversation(name, agent_id=agent, ttl=ttl)
    advance(2 * DAY)
    assert (await store.expire()).erased.conversations == 1
    await store.set_retention("b", None)
    advance(20 * DAY)
    assert (await store.expire()).erased.conversations == 1
    assert await names(store) == ["3", "4", "5"]


async def test_a_write_a_lease_and_a_waiting_request_keep_it(store: AsyncStore, advance: Advance) -> None:
    written = await store.conversation("written", ttl=DAY)
    leased = await store.conversation("leased", ttl=DAY)
    await store.post("asked", "hello", agent_id="a", key="k")
    await store.update("asked", ttl=DAY)
    advance(2 * DAY)
    await written.begin_turn({"role": "user"})
    await leased.claim(seconds=60)
    await leased.begin_turn({"role": "user"})
    assert await store.expire() == Expired()
    assert await store.expire(dry_run=True) == Expired()
    await (await store.conversation("asked")).take_request()
    advance(4 * DAY)  # an open turn that nobody runs any more keeps nothing
    assert (await store.expire()).erased.conversations == 3


async def test_a_family_goes_as_one_and_its_newest_write_counts(store: AsyncStore, advance: Advance) -> None:
    await store.conversation("parent", ttl=DAY)
    child = await store.conversation("child", parent="parent")
    await store.conversation("grandchild", parent="child")
    advance(2 * DAY)
    await child.begin_turn({"role": "user"})
    assert await store.expire() == Expired()
    advance(4 * DAY)
    assert (await store.expire()).erased.conversations == 3


async def test_a_child_may_have_a_shorter_time_of_its_own(store: AsyncStore, advance: Advance) -> None:
    await store.conversation("parent")
    await store.conversation("child", parent="parent", ttl=DAY)
    advance(2 * DAY)
    assert (await store.expire()).erased.conversations == 1
    assert await names(store) == ["parent"]


async def test_archived_and_ended_ones_expire_as_well(store: AsyncStore, observer: Observer, advance: Advance) -> None:
    for name in ("ended", "archived"):
        branch = await store.conversation(name, ttl=3 * DAY)
        await branch.begin_turn({"role": "user", "content": "canary"})
        await branch.save([], final=True)
        await store.end(name)
    advance(2 * DAY)
    await store.archive("archived")
    advance(4 * DAY)
    assert (await store.expire()).erased.conversations == 1
    assert [name for name in ("archived", "ended") if observer.traces([turnkeep.conversation_uuid(name)])] == [
        "archived"
    ]
    advance(6 * DAY)
    assert (await store.expire()).erased.conversations == 1
    assert not any(observer.counts()[table] for table in ("conversation", "archive", "document"))


async def test_the_limit_and_the_tenant_are_kept(store: AsyncStore, advance: Advance) -> None:
    for view in (store, store.tenant("t")):
        for number in range(3):
            await view.conversation(f"c{number}", ttl=DAY)
    advance(2 * DAY)
    told: list[int] = []
    assert (await store.tenant("t").expire(limit=2)).erased.conversations == 2
    assert (await store.tenant("t").expire(progress=lambda looked, _: told.append(looked))).erased.conversations == 1
    assert told == [4]
    assert (await store.expire()).erased.conversations == 3


Call = Callable[[AsyncStore, Any], Awaitable[Any]]
WRITERS: dict[str, Call] = {
    "begin_turn": lambda _, branch: branch.begin_turn({"role": "user"}),
    "post": lambda store, _: store.post("c", "hello", key="k"),
    "claim": lambda _, branch: branch.claim(),
    "fork": lambda store, _: store.fork("c"),
    "child": lambda store, _: store.conversation("new", parent="c"),
}


@pytest.mark.parametrize("expire_first", [False, True])
@pytest.mark.parametrize("name", WRITERS)
async def test_a_write_that_comes_first_saves_it_and_one_that_comes_later_finds_nothing(
    dsn: str, store: AsyncStore, observer: Observer, advance: Advance, name: str, expire_first: bool
) -> None:
    branch = await store.conversation("c", ttl=DAY)
    await branch.begin_turn({"role": "user"})
    await branch.save([], final=True)
    advance(2 * DAY)
    calls = [WRITERS[name](store, branch), store.expire()]
    one = branch.conversation_id
    held = conversation_held(dsn, one) if name == "child" else branches_held(dsn, one)
    outcomes = await in_order(observer, held, *(reversed(calls) if expire_first else calls))
    expired, done = outcomes if expire_first else reversed(outcomes)
    assert isinstance(expired, Expired), expired
    assert isinstance(done, NotFoundError) is expire_first, done
    assert expired.erased.conversations == int(expire_first)
    assert bool(observer.traces([one])) is not expire_first


async def test_what_has_just_come_back_or_come_in_is_kept_for_its_time(store: AsyncStore, advance: Advance) -> None:
    await store.set_retention("a", DAY)
    for name in ("unarchived", "imported"):
        await store.conversation(name, agent_id="a")
    data = await exported(store, "imported")
    await store.erase("imported")
    await store.archive("unarchived")
    advance(3 * DAY)
    await store.unarchive("unarchived")
    await imported(store, data)
    assert await store.expire(dry_run=True) == await store.expire() == Expired()
    advance(5 * DAY)
    assert (await store.expire(dry_run=True)).erased.conversations == 2
    assert (await store.expire()).erased.conversations == 2


@pytest.mark.parametrize("ttl", ["178000000 years", "-178000000 years", "2147483647 days", "-1 day", "1 year -2 mons"])
async def test_a_time_that_sql_has_set_breaks_nothing_for_the_others(
    dsn: str, store: AsyncStore, advance: Advance, ttl: str
) -> None:
    for name in ("odd", "short"):
        await store.conversation(name, agent_id=name, ttl=DAY if name == "short" else None)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.conversation SET ttl = %s WHERE external_id = 'odd'", (ttl,))
    advance(2 * DAY)
    over = ttl.startswith("-")
    assert (await store.expire(dry_run=True)).erased.conversations == 1 + over
    assert (await store.expire()).erased.conversations == 1 + over


async def test_one_that_somebody_holds_is_left_and_that_is_said(dsn: str, store: AsyncStore, advance: Advance) -> None:
    branch = await store.conversation("c", ttl=DAY)
    advance(2 * DAY)
    with branches_held(dsn, branch.conversation_id):
        assert await store.expire() == Expired(busy=1)
    assert (await store.expire()).erased.conversations == 1


@pytest.mark.parametrize("ttl", [timedelta(0), -DAY, 1, "1d", timedelta(days=400_000)])
async def test_what_is_no_time_to_live_is_refused(store: AsyncStore, ttl: Any) -> None:
    for call in (
        lambda: store.conversation("c", ttl=ttl),
        lambda: store.update("c", ttl=ttl),
        lambda: store.set_retention("a", ttl),
    ):
        with pytest.raises(InvalidInputError, match="ttl"):
            await call()
    with pytest.raises(InvalidInputError, match="limit"):
        await store.expire(limit=0)
