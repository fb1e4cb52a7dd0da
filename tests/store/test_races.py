"""Races between writers, each made by holding a lock until all who take part are seen waiting for it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, branches_held, transaction
from tests.store.conftest import OpenStore

USER = {"role": "user", "content": "weather?"}
CALLS = [{"id": "call_1", "name": "weather"}, {"id": "call_2", "name": "news"}]
ASKED = {"role": "assistant", "content": None}

Advance = Callable[[timedelta], None]


async def open_turn(store: turnkeep.AsyncStore, name: str = "c") -> turnkeep.AsyncBranch:
    """A conversation in the middle of a turn, with two tool calls pending."""
    branch = await store.conversation(name)
    await branch.begin_turn(USER)
    await branch.save([ASKED], tool_calls=CALLS)
    return branch


async def at_once(observer: Observer, dsn: str, branch: turnkeep.AsyncBranch, *calls: Any) -> list[Any]:
    """Run calls that all wait for the branch's row before any of them gets it."""
    with branches_held(dsn, branch.conversation_id):
        tasks = [asyncio.ensure_future(call) for call in calls]
        await observer.see_waiting(len(calls))
    return await asyncio.gather(*tasks, return_exceptions=True)


def kinds(outcomes: list[Any]) -> list[str]:
    """The names of the types of outcomes, sorted."""
    return sorted(type(outcome).__name__ for outcome in outcomes)


async def test_of_two_writers_at_one_head_one_writes_and_nothing_of_the_other_is_kept(
    dsn: str, store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer
) -> None:
    mine = await open_turn(store)
    theirs = await other.conversation("c")
    before = observer.counts()
    results = [{"tool_call_id": call["id"], "content": "7 °C"} for call in CALLS]
    messages = [{"role": "tool", "content": str(n)} for n in range(3)]
    outcomes = await at_once(
        observer,
        dsn,
        mine,
        *(b.save(messages, tool_results=results, state={"n": 1}, final=True) for b in (mine, theirs)),
    )
    assert kinds(outcomes) == ["ConflictError", "Saved"]
    grown = {table: n - before[table] for table, n in observer.counts().items() if n != before[table]}
    assert grown == {"checkpoint": 1, "message": 3, "document": 1}
    assert observer.rows("SELECT next_position FROM turnkeep.branch") == [(5,)]


async def test_of_two_turns_begun_at_one_head_one_begins_and_the_other_key_is_free(
    dsn: str, store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer
) -> None:
    mine, theirs = await store.conversation("c"), await other.conversation("c")
    outcomes = await at_once(observer, dsn, mine, mine.begin_turn(USER, key="a"), theirs.begin_turn(USER, key="b"))
    assert kinds(outcomes) == ["ConflictError", "Saved"]
    counts = observer.counts()
    assert (counts["checkpoint"], counts["message"], counts["request"]) == (1, 1, 1)


async def test_one_write_sent_twice_at_once_is_saved_once_and_repeated_once(
    dsn: str, store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer
) -> None:
    mine = await open_turn(store)
    theirs = await other.conversation("c")
    write_id = uuid.uuid4()
    outcomes = await at_once(observer, dsn, mine, *(b.save([ASKED], write_id=write_id) for b in (mine, theirs)))
    assert kinds(outcomes) == ["Saved", "Saved"], outcomes
    assert sorted(saved.repeated for saved in outcomes) == [False, True]
    assert len({(saved.turn_index, saved.sub_step) for saved in outcomes}) == 1
    assert observer.counts()["checkpoint"] == 3


async def test_a_key_begun_twice_at_once_on_one_branch_begins_one_turn(
    dsn: str, store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer
) -> None:
    mine, theirs = await store.conversation("c"), await other.conversation("c")
    outcomes = await at_once(observer, dsn, mine, *(b.begin_turn(USER, key="k") for b in (mine, theirs)))
    assert kinds(outcomes) == ["Saved", "Saved"], outcomes
    assert sorted(saved.repeated for saved in outcomes) == [False, True]
    assert observer.counts()["checkpoint"] == observer.counts()["message"] == 1


async def test_a_key_begun_twice_at_once_with_two_bodies_is_an_error_for_one(
    dsn: str, store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer
) -> None:
    mine, theirs = await store.conversation("c"), await other.conversation("c")
    outcomes = await at_once(
        observer,
        dsn,
        mine,
        *(b.begin_turn({**USER, "content": str(n)}, key="k") for n, b in enumerate((mine, theirs))),
    )
    assert kinds(outcomes) == ["KeyReusedError", "Saved"], outcomes
    assert observer.counts()["checkpoint"] == 1


async def test_a_key_begun_on_two_branches_at_once_begins_one_turn(
    dsn: str, store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer
) -> None:
    mine = await store.conversation("c")
    await mine.begin_turn(USER)
    await mine.save([ASKED], final=True)
    forked = await other.fork("c")
    outcomes = await at_once(observer, dsn, mine, *(b.begin_turn(USER, key="k") for b in (mine, forked)))
    # The other branch is told where the turn is: written to from there, it would be another turn.
    assert kinds(outcomes) == ["KeyReusedError", "Saved"], outcomes
    assert observer.rows("SELECT key FROM turnkeep.request") == [("k",)]
    assert observer.counts()["checkpoint"] == 3


BEGIN = """
import asyncio, json, sys, turnkeep
async def main():
    async with turnkeep.open(sys.argv[1]) as store:
        branch = await store.conversation("c")
        saved = await branch.begin_turn({"role": "user", "content": "once"}, key="k")
        print(json.dumps([saved.branch, saved.turn_index, saved.sub_step, saved.repeated]))
asyncio.run(main())
"""


async def test_a_key_begun_by_two_processes_at_once_begins_one_turn(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await store.conversation("c")
    with branches_held(dsn, branch.conversation_id):
        processes = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", BEGIN, dsn, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        await observer.see_waiting(2)
    printed = [(await process.communicate())[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(json.loads(line) for line in printed) == [[0, 0, 0, False], [0, 0, 0, True]]


async def test_a_zombies_write_after_its_lease_expired_and_another_claimed_is_refused(
    store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer, advance: Advance
) -> None:
    zombie = await open_turn(store)
    await zombie.claim(seconds=15)
    advance(timedelta(seconds=16))
    successor = await other.conversation("c")
    await successor.claim(seconds=15)
    before = observer.counts(), observer.heads()
    with pytest.raises(turnkeep.LeaseLostError):
        await zombie.save([ASKED])
    with pytest.raises(turnkeep.LeaseLostError):
        await zombie.renew()
    assert not await zombie.release()
    assert (observer.counts(), observer.heads()) == before
    await successor.save([ASKED])


async def test_a_zombies_write_that_waits_while_another_claims_is_refused(
    dsn: str, store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer, advance: Advance
) -> None:
    zombie = await open_turn(store)
    await zombie.claim(seconds=15)
    successor = await other.conversation("c")
    before = observer.counts()
    with branches_held(dsn, zombie.conversation_id):
        advance(timedelta(seconds=16))
        claim = asyncio.ensure_future(successor.claim(seconds=15))
        await observer.see_waiting(1)
        advance(timedelta(0))  # the zombie's host has slept: its save began in time, and comes to the row too late
        save = asyncio.ensure_future(zombie.save([ASKED]))
        await observer.see_waiting(2)
    await claim
    with pytest.raises(turnkeep.LeaseLostError):
        await save
    assert observer.counts() == before


async def test_a_late_write_of_a_released_lease_is_refused(
    store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer
) -> None:
    first, second = await open_turn(store), await other.conversation("c")
    lease = await first.claim()
    assert await first.release()
    late = await store.conversation("c")
    late._lease = lease  # what a write under way would carry
    before = observer.counts(), observer.heads()
    with pytest.raises(turnkeep.LeaseLostError):
        await late.save([ASKED])
    assert (observer.counts(), observer.heads()) == before
    await second.save([ASKED])


async def test_a_write_that_waits_while_its_lease_is_released_is_refused(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch, again = await open_turn(store), await store.conversation("c")
    again._lease = await branch.claim()
    before = observer.counts()
    with branches_held(dsn, branch.conversation_id):
        released = asyncio.ensure_future(branch.release())
        await observer.see_waiting(1)
        late = asyncio.ensure_future(again.save([ASKED]))
        await observer.see_waiting(2)
    assert await released
    with pytest.raises(turnkeep.LeaseLostError):
        await late
    assert observer.counts() == before


async def test_a_writer_without_a_lease_writes_nothing_while_one_is_live(
    store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer, advance: Advance
) -> None:
    bare = await open_turn(store)
    holder = await other.conversation("c")
    await holder.claim(seconds=15)
    before = observer.counts(), observer.heads()
    with pytest.raises(turnkeep.LeaseHeldError):
        await bare.save([ASKED])
    assert (observer.counts(), observer.heads()) == before
    advance(timedelta(seconds=16))
    await bare.save([ASKED])


async def test_a_write_without_a_lease_that_waits_while_one_is_claimed_is_refused(
    dsn: str, store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer
) -> None:
    bare, holder = await open_turn(store), await other.conversation("c")
    before = observer.counts()
    with branches_held(dsn, bare.conversation_id):
        claim = asyncio.ensure_future(holder.claim())
        await observer.see_waiting(1)
        save = asyncio.ensure_future(bare.save([ASKED]))
        await observer.see_waiting(2)
    await claim
    with pytest.raises(turnkeep.LeaseHeldError):
        await save
    assert observer.counts() == before


async def test_of_claims_at_once_one_gets_the_lease(
    dsn: str, store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer
) -> None:
    handles = [await one.conversation("c") for one in (store, other, store, other)]
    outcomes = await at_once(observer, dsn, handles[0], *(handle.claim() for handle in handles))
    assert kinds(outcomes) == ["Lease", *["LeaseHeldError"] * 3]
    (lease,) = (outcome for outcome in outcomes if isinstance(outcome, turnkeep.Lease))
    assert observer.rows("SELECT lease_token FROM turnkeep.branch") == [(lease.token,)]


async def test_eight_forkers_at_once_get_eight_branches(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    source = await open_turn(store)
    outcomes = await at_once(observer, dsn, source, *(store.fork("c", at=(0, n % 2)) for n in range(8)))
    assert kinds(outcomes) == ["AsyncBranch"] * 8, outcomes
    assert sorted(branch.branch for branch in outcomes) == [*range(1, 9)]


async def test_forks_of_several_branches_at_once_get_numbers_of_their_own(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    await open_turn(store)
    for _ in range(3):
        source = await store.fork("c")
    calls = (store.fork("c", branch=n % 4, name="last" if n < 2 else None) for n in range(8))
    outcomes = await at_once(observer, dsn, source, *calls)
    assert kinds(outcomes) == [*["AsyncBranch"] * 7, "ConflictError"], outcomes
    numbers = [outcome.branch for outcome in outcomes if not isinstance(outcome, Exception)]
    assert sorted(numbers) == [*range(4, 11)]


async def test_one_fork_sent_twice_at_once_makes_one_branch(
    dsn: str, store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer
) -> None:
    source = await open_turn(store)
    fork_id = uuid.uuid4()
    outcomes = await at_once(
        observer, dsn, source, *(one.fork("c", name="again", fork_id=fork_id) for one in (store, other))
    )
    assert kinds(outcomes) == ["AsyncBranch", "AsyncBranch"], outcomes
    assert {branch.branch for branch in outcomes} == {1}
    assert observer.counts()["branch"] == 2


async def test_conversations_created_at_once_are_one(dsn: str, open_store: OpenStore, observer: Observer) -> None:
    async with open_store(dsn) as store:
        with transaction(dsn) as holder:
            holder.execute("LOCK TABLE turnkeep.conversation IN SHARE MODE")
            tasks = [asyncio.ensure_future(store.conversation("c")) for _ in range(8)]
            await observer.see_waiting(8)
        await asyncio.gather(*tasks)
    assert (observer.counts()["conversation"], observer.counts()["branch"]) == (1, 1)


async def test_a_save_chosen_as_the_victim_of_a_deadlock_is_sent_again(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await store.conversation("c")
    with transaction(dsn) as rival:
        rival.execute("SET deadlock_timeout = '600s'")  # so that the save is the one to find out
        rival.execute(
            "INSERT INTO turnkeep.request (conversation_id, key, branch, digest, received_at)"
            " VALUES (%s, 'k', 0, '', now())",
            (branch.conversation_id,),
        )
        begin = asyncio.ensure_future(branch.begin_turn(USER, key="k"))
        await observer.see_waiting(1)
        # Granted only once the save, which holds this row and waits for the rival's key, has been ended.
        await asyncio.to_thread(rival.execute, "SELECT FROM turnkeep.branch FOR UPDATE")
        assert not begin.done()
        rival.rollback()
    saved = await begin
    assert (saved.turn_index, saved.repeated) == (0, False)
    assert observer.counts()["checkpoint"] == observer.counts()["request"] == 1


async def test_a_save_that_can_not_be_serialized_is_sent_again(
    dsn: str, observer: Observer, store: turnkeep.AsyncStore, open_store: OpenStore
) -> None:
    await open_turn(store)
    strict = psycopg.conninfo.make_conninfo(dsn, options="-c default_transaction_isolation=serializable")
    async with open_store(strict) as serializable:
        branch = await serializable.conversation("c")
        with ExitStack() as held:
            rival = held.enter_context(transaction(dsn))
            rival.execute("UPDATE turnkeep.branch SET attempts = attempts + 1")
            save = asyncio.ensure_future(branch.save([ASKED]))
            await observer.see_waiting(1)
            rival.commit()  # what the save's snapshot does not show: 40001
        assert (await save).sub_step == 2
    assert observer.counts()["checkpoint"] == 3
