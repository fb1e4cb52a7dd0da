"""Requests (G1, G4): accepted durably, taken up once and in order, answered once; none is forgotten at a turn's end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, branches_held
from turnkeep import AsyncBranch, AsyncStore

Advance = Callable[[timedelta], None]
ANSWER = {"role": "assistant", "content": "done"}


async def claimed(store: AsyncStore, seconds: float = 15.0) -> AsyncBranch:
    (branch,) = await store.claim_waiting(["support"], limit=10, seconds=seconds)
    return branch


async def status(store: AsyncStore, name: str = "c") -> str:
    return (await store.restore(name)).status


async def test_a_posted_message_is_taken_up_answered_and_read(store: AsyncStore, other: AsyncStore) -> None:
    posted = await store.post("c", "hello", key="k1", agent_id="support")
    assert (posted.branch, posted.key, posted.repeated) == (0, "k1", False)
    assert await status(store) == "ready"
    branch = await claimed(other)
    taken = await branch.take_request(state={"step_count": 0})
    assert taken is not None
    assert (taken.turn_index, taken.sub_step, branch.turn_open, branch.state) == (0, 0, True, {"step_count": 0})
    (message,) = branch.messages
    assert (message["role"], message["content"]) == ("user", "hello")
    assert "timestamp" in message["metadata"]
    await branch.save([ANSWER], final=True)
    assert await branch.take_request() is None
    await branch.release()
    reply = await store.wait_reply("c", "k1", seconds=60)
    assert (reply.content, reply.checkpoint.turn_index, reply.checkpoint.sub_step) == ("done", 0, 1)
    assert await status(store) == "idle"


async def test_requests_are_taken_in_the_order_they_came(store: AsyncStore) -> None:
    for number in range(3):
        await store.post("c", f"m{number}", key=f"k{number}", agent_id="support")
    branch = await claimed(store)
    for number in range(3):
        assert await branch.take_request() is not None
        assert branch.messages[-1]["content"] == f"m{number}"
        await branch.save([ANSWER], final=True)
    assert await branch.take_request() is None


async def test_the_same_key_posts_once_and_another_body_is_refused(store: AsyncStore, other: AsyncStore) -> None:
    first = await store.post("c", "hello", key="k", agent_id="support")
    again = await other.post("c", {"role": "user", "content": "hello"}, key="k")
    assert (first.repeated, again.repeated) == (False, True)
    with pytest.raises(turnkeep.KeyReusedError, match="'k'"):
        await store.post("c", "something else", key="k")
    branch = await claimed(store)
    await branch.take_request()
    await branch.save([ANSWER], final=True)
    assert await branch.take_request() is None
    assert (await store.post("c", "hello", key="k")).repeated


async def test_a_repeated_post_wakes_nobody(store: AsyncStore) -> None:
    await store.post("c", "hello", key="k", agent_id="support")
    branch = await claimed(store)
    await branch.take_request()
    await branch.save([ANSWER], final=True)
    await branch.release()
    await store.post("c", "hello", key="k")
    assert await status(store) == "idle"


async def test_several_messages_and_exact_text_make_one_request(store: AsyncStore) -> None:
    odd = turnkeep.RawJSON('{ "role":"user", "content": 1e2, "x":"\\u0000\\ud800" }')
    await store.post("c", [odd, {"role": "user", "content": "two"}], agent_id="support")
    await store.post("c", odd)
    branch = await claimed(store)
    assert await branch.take_request() is not None
    assert (await store.restore("c")).message_texts == (odd.text, '{"role":"user","content":"two"}')
    await branch.save([ANSWER], final=True)
    assert await branch.take_request() is not None
    assert (await store.restore("c")).message_texts[-1] == odd.text


async def test_posting_needs_a_conversation_or_its_agent(store: AsyncStore) -> None:
    with pytest.raises(turnkeep.NotFoundError, match="agent_id"):
        await store.post("nowhere", "hello")
    await store.conversation("c")
    with pytest.raises(turnkeep.NotFoundError, match="branch 3"):
        await store.post("c", "hello", branch=3, agent_id="support")
    for bad in ([], 7, [7], None):
        with pytest.raises(turnkeep.InvalidInputError):
            await store.post("c", bad)  # type: ignore[arg-type]


async def test_an_ended_conversation_takes_no_requests(store: AsyncStore, dsn: str, observer: Observer) -> None:
    await store.conversation("c", agent_id="support")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.conversation SET ended_at = now()")
    before = observer.heads()
    with pytest.raises(turnkeep.ConversationEndedError):
        await store.post("c", "hello")
    assert observer.heads() == before


async def test_a_turn_begun_under_a_posted_key_takes_that_request(store: AsyncStore) -> None:
    await store.post("c", {"role": "user", "content": "hello"}, key="k", agent_id="support")
    branch = await store.conversation("c")
    begun = await branch.begin_turn({"role": "user", "content": "hello"}, key="k")
    assert (begun.turn_index, begun.repeated) == (0, False)
    assert await branch.take_request() is None if not branch.turn_open else True
    await branch.save([ANSWER], final=True)
    assert (await store.wait_reply("c", "k", seconds=60)).content == "done"
    assert await status(store) == "idle"
    with pytest.raises(turnkeep.KeyReusedError):
        await branch.begin_turn({"role": "user", "content": "other"}, key="k")


async def test_a_key_posted_to_another_branch_is_named(store: AsyncStore) -> None:
    branch = await store.conversation("c", agent_id="support")
    await branch.begin_turn({"role": "user", "content": "a"})
    fork = await store.fork("c")
    await branch.save([ANSWER], final=True)
    await fork.save([ANSWER], final=True)
    await store.post("c", {"role": "user", "content": "b"}, key="k")
    with pytest.raises(turnkeep.KeyReusedError, match="posted on branch 0"):
        await fork.begin_turn({"role": "user", "content": "b"}, key="k")


# -- waking up


async def test_a_request_beside_an_open_turn_waits_for_its_end(store: AsyncStore) -> None:
    branch = await store.conversation("c", agent_id="support")
    await branch.begin_turn({"role": "user", "content": "a"})
    await store.post("c", "b")
    assert await store.claim_waiting(["support"], limit=10) == []
    await branch.save([ANSWER], final=True)
    assert await status(store) == "ready"
    assert await (await claimed(store)).take_request() is not None


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("post_first", [False, True])
async def test_no_request_is_forgotten_by_a_turn_that_ends_meanwhile(
    store: AsyncStore, other: AsyncStore, dsn: str, observer: Observer, leased: bool, post_first: bool
) -> None:
    branch = await store.conversation("c", agent_id="support")
    if leased:
        await branch.claim()
    await branch.begin_turn({"role": "user", "content": "a"})

    async def end() -> None:
        await branch.save([ANSWER], final=True)
        if leased:
            await branch.release()

    async def post() -> None:
        await other.post("c", "b", key="k")

    order = [post, end] if post_first else [end, post]
    with branches_held(dsn, branch.conversation_id):
        tasks = []
        for number, action in enumerate(order, 1):
            tasks.append(asyncio.create_task(action()))
            await observer.see_waiting(number)
    await asyncio.gather(*tasks)
    assert await status(store) == "ready"
    assert await (await claimed(store)).take_request() is not None


async def test_eight_posts_of_one_key_are_one_request(store: AsyncStore, dsn: str, observer: Observer) -> None:
    branch = await store.conversation("c", agent_id="support")
    with branches_held(dsn, branch.conversation_id):
        tasks = [asyncio.create_task(store.post("c", "b", key="k")) for _ in range(8)]
        await observer.see_waiting(8)
    posted = await asyncio.gather(*tasks)
    assert sorted(one.repeated for one in posted) == [False, *[True] * 7]
    assert observer.counts()["request"] == 1


# -- replies


async def test_a_reply_that_is_late_says_so_and_can_be_waited_for_again(store: AsyncStore) -> None:
    await store.post("c", "hello", key="k", agent_id="support")
    with pytest.raises(turnkeep.ReplyTimeoutError, match="'k'"):
        await store.wait_reply("c", "k", seconds=0.01)
    with pytest.raises(turnkeep.NotFoundError, match="'other'"):
        await store.wait_reply("c", "other", seconds=60)
    waiting = asyncio.create_task(store.wait_reply("c", "k", seconds=60))
    branch = await claimed(store)
    await branch.take_request()
    await branch.save([ANSWER], final=True)
    assert (await waiting).content == "done"


async def test_a_reply_stays_the_turns_own_when_others_follow(store: AsyncStore) -> None:
    for number in range(2):
        await store.post("c", f"m{number}", key=f"k{number}", agent_id="support")
    branch = await claimed(store)
    for number in range(2):
        await branch.take_request()
        await branch.save([{"role": "assistant", "content": f"a{number}"}], final=True)
    assert [(await store.wait_reply("c", f"k{n}", seconds=60)).content for n in range(2)] == ["a0", "a1"]


async def test_a_failed_turn_is_told_and_resumed(store: AsyncStore) -> None:
    await store.post("c", "hello", key="k", agent_id="support")
    await store.post("c", "later", key="l")
    branch = await claimed(store)
    await branch.take_request()
    failure = {"type": "max_steps", "message": "20 inferences \0 \ud800"}
    assert await branch.release(failure=failure)
    for key in ("k", "l"):
        with pytest.raises(turnkeep.TurnFailedError, match="20 inferences") as caught:
            await store.wait_reply("c", key, seconds=60)
        assert caught.value.failure == failure
    assert await status(store) == "failed"
    assert await store.claim_waiting(["support"], limit=10) == []
    assert await store.resume("c")
    branch = await claimed(store)
    assert branch.turn_open
    await branch.save([ANSWER], final=True)
    assert (await store.wait_reply("c", "k", seconds=60)).content == "done"
    await branch.take_request()
    await branch.save([ANSWER], final=True)
    await branch.release()
    assert not await store.resume("c")
    assert await status(store) == "idle"


async def test_resume_is_refused_while_somebody_runs_the_branch(store: AsyncStore) -> None:
    await store.post("c", "hello", agent_id="support")
    await claimed(store)
    with pytest.raises(turnkeep.LeaseHeldError):
        await store.resume("c")
    with pytest.raises(turnkeep.NotFoundError):
        await store.resume("nowhere")


async def test_a_turn_left_open_and_a_fork_can_be_given_to_workers(store: AsyncStore) -> None:
    branch = await store.conversation("c", agent_id="support")
    await branch.begin_turn({"role": "user", "content": "a"})
    await store.fork("c")
    assert await store.claim_waiting(["support"], limit=10) == []
    assert await store.resume("c")
    assert await store.resume("c", branch=1)
    assert {one.branch for one in await store.claim_waiting(["support"], limit=10)} == {0, 1}


# -- claims of workers


async def test_the_longest_waiting_come_first_and_only_those_of_the_agents(store: AsyncStore, advance: Advance) -> None:
    for minutes, number in enumerate((2, 0, 1), 1):
        await store.post(f"c{number}", "x", agent_id="support")
        advance(timedelta(minutes=minutes))
    await store.post("x", "x", agent_id="sales")
    first = await store.claim_waiting(["support", "other"], limit=2)
    assert [branch.external_id for branch in first] == ["c2", "c0"]
    assert [branch.external_id for branch in await store.claim_waiting(["support"], limit=9)] == ["c1"]
    assert await store.claim_waiting(["support"], limit=9) == []
    assert await store.busy(["sales"])
    assert not await store.busy(["other"])


async def test_a_claimed_branch_goes_by_its_conversations_agent(store: AsyncStore) -> None:
    branch = await store.conversation("c", agent_id="support")
    other = await store.conversation("c", agent_id="visitor")
    await other.begin_turn({"role": "user"})
    await store.resume("c")
    assert (await claimed(store)).agent_id == branch.agent_id == "support"


async def test_two_workers_never_get_the_same_branch(store: AsyncStore, other: AsyncStore) -> None:
    await asyncio.gather(*(store.post(f"c{number}", "x", agent_id="support") for number in range(40)))
    batches = await asyncio.gather(*(one.claim_waiting(["support"], limit=25) for one in (store, other, store, other)))
    ids = [branch.conversation_id for batch in batches for branch in batch]
    assert len(ids) == len(set(ids))
    rest = await store.claim_waiting(["support"], limit=40)
    assert len(ids) + len(rest) == 40


async def test_a_branch_that_somebody_holds_keeps_no_worker_from_the_others(store: AsyncStore, dsn: str) -> None:
    held = await store.post("held", "x", agent_id="support")
    await store.post("free", "x", agent_id="support")
    with branches_held(dsn, held.conversation_id):
        assert [branch.external_id for branch in await store.claim_waiting(["support"], limit=9)] == ["free"]
    assert [branch.external_id for branch in await store.claim_waiting(["support"], limit=9)] == ["held"]


async def test_a_branch_handed_back_for_later_waits_until_then(store: AsyncStore, advance: Advance) -> None:
    await store.post("c", "x", agent_id="support")
    branch = await claimed(store)
    await branch.release(delay=30)
    assert await store.claim_waiting(["support"], limit=9) == []
    advance(timedelta(seconds=31))
    branch = await claimed(store)
    await branch.release(delay=3000)
    assert await store.resume("c")
    await claimed(store)


async def test_an_expired_lease_is_taken_over_and_a_live_one_is_not(store: AsyncStore, advance: Advance) -> None:
    await store.post("c", "x", agent_id="support")
    dead = await claimed(store)
    await dead.take_request()
    assert await store.claim_waiting(["support"], limit=9) == []
    advance(timedelta(seconds=16))
    heir = await claimed(store)
    assert (heir.turn_index, heir.turn_open) == (0, True)
    with pytest.raises(turnkeep.LeaseLostError):
        await dead.save([ANSWER], final=True)
    await heir.save([ANSWER], final=True)


async def test_a_branch_that_kills_five_workers_without_progress_is_failed(store: AsyncStore, advance: Advance) -> None:
    await store.post("c", "x", key="k", agent_id="support")
    branch = await claimed(store)
    await branch.take_request()
    await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1"}])
    for death in range(1, 5):
        advance(timedelta(seconds=16 * death))
        branch = await claimed(store)
        if death == 1:
            await branch.mark_started(branch.pending)  # no progress
    advance(timedelta(seconds=16 * 5))
    assert await store.claim_waiting(["support"], limit=9) == []
    with pytest.raises(turnkeep.TurnFailedError, match="5 times") as caught:
        await store.wait_reply("c", "k", seconds=60)
    assert caught.value.failure["type"] == "worker_died"
    assert await store.resume("c")
    assert (await claimed(store)).pending == branch.pending


async def test_progress_forgets_earlier_deaths(store: AsyncStore, advance: Advance) -> None:
    await store.post("c", "x", agent_id="support")
    branch = await claimed(store)
    await branch.take_request()
    for death in range(1, 8):
        advance(timedelta(seconds=16 * death))
        branch = await claimed(store)
        await branch.save([{"role": "assistant"}])
    assert await status(store) == "running"


# -- calls marked as started


async def test_a_started_call_is_known_as_such_by_whoever_restores_it(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user"})
    await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1"}, {"id": "2"}, {"id": "3"}])
    await branch.mark_started(branch.pending[:2])
    assert [call.attempts for call in branch.pending] == [1, 1, 0]
    await branch.save([{"role": "tool"}], tool_results=[{"id": "1"}])
    await branch.mark_started(branch.pending[:1])
    again = await store.restore("c")
    assert [(call.call_id, call.attempts) for call in again.pending] == [("2", 2), ("3", 0)]
    assert again.pending == branch.pending
    fork = await store.fork("c")
    assert [(call.branch, call.attempts, call.uncertain) for call in fork.pending] == [(0, 2, True), (0, 0, True)]
    with pytest.raises(turnkeep.UnknownToolCallError):
        await branch.mark_started(())


async def test_marking_twice_with_one_write_id_counts_once(store: AsyncStore, other: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user"})
    await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1"}])
    twin = await other.conversation("c")
    write_id = uuid.uuid4()
    first = await branch.mark_started(branch.pending, write_id=write_id)
    again = await twin.mark_started(twin.pending, write_id=write_id)
    assert (first.sub_step, again.sub_step, again.repeated) == (2, 2, True)
    assert [call.attempts for call in (await store.restore("c")).pending] == [1]


async def test_a_turn_is_not_taken_behind_another_checkpoint_in_the_place_that_was_seen(
    store: AsyncStore, dsn: str
) -> None:
    """After a failover that has lost writes, somebody else's checkpoint can stand there."""
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user", "content": "hello"})
    await branch.save([{"role": "assistant", "content": "hi"}], final=True)
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE turnkeep.checkpoint SET write_id = gen_random_uuid() WHERE phase = 'final'")
    await store.post("c", "go on", key="k")
    with pytest.raises(turnkeep.ConflictError):
        await branch.take_request()
    await branch.refresh()
    assert (await branch.take_request()) is not None
    assert (branch.turn_index, branch.sub_step) == (1, 0)
