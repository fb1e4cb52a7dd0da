"""Order, doubles and two at once: by position and key, never by clock or chance (G2, G4)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.observing import Observer, branches_held
from turnkeep import AsyncStore

USER = {"role": "user", "content": "go"}
YES = {"role": "user", "content": "yes"}


def said(checkpoint: turnkeep.Checkpoint) -> list[Any]:
    return [message.get("content") for message in checkpoint.messages]


async def answer(branch: turnkeep.AsyncBranch, text: str = "ok") -> None:
    await branch.save([{"role": "assistant", "content": text}], final=True)


# -- order


async def test_order_equal_timestamps_a_batch_stays_as_it_was_appended(store: AsyncStore, dsn: str) -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "id": "msg_1"},
        {"type": "function_call", "id": "fc_1"},
        {"type": "function_call_output", "id": "fco_1"},
    ]
    branch = await store.conversation("c")
    await branch.begin_turn([USER, *items])
    for rewrite in ("VACUUM FULL turnkeep.message", "CLUSTER turnkeep.message USING message_pkey", "ANALYZE"):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("UPDATE turnkeep.message SET size = size WHERE position = 1")  # moves it to the end
            connection.execute(rewrite.encode())
            ((shown,),) = connection.execute("SELECT messages FROM turnkeep.agent_checkpoints").fetchall()
        assert shown == [USER, *items]
        for _ in range(33):
            assert (await store.restore("c")).messages == [USER, *items]


async def test_order_equal_timestamps_a_hundred_messages_of_one_moment_keep_theirs(store: AsyncStore, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:  # time stands still
        connection.execute(
            "CREATE OR REPLACE FUNCTION turnkeep.clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
            " AS $$ SELECT '2026-01-01 00:00+00'::timestamptz $$"
        )
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user", "content": 0})
    for number in range(1, 100):
        await branch.save([{"role": "tool", "content": number}])
    assert said(await store.restore("c")) == [*range(100)]
    places = [(summary.turn_index, summary.sub_step) for summary in await store.history("c")]
    assert places == [(0, number) for number in range(99, -1, -1)]
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT created_at FROM turnkeep.all_checkpoints ORDER BY sub_step").fetchall()
    assert rows == sorted(set(rows))


async def test_order_equal_timestamps_who_writes_later_comes_later_though_it_began_first(
    store: AsyncStore, dsn: str
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    with psycopg.connect(dsn) as first:
        first.execute("SELECT now()")  # the transaction's time, for as long as it lasts
        await branch.save([{"role": "tool", "content": "second, but committed first"}])
        first.execute(
            "SELECT turnkeep.save_v1(p_conversation => %s, p_branch => 0, p_turn => 0, p_sub_step => 1, p_token => 0,"
            " p_lease_seconds => 0, p_write_id => gen_random_uuid(), p_repeatable => false, p_phase => 'step',"
            ' p_agent => NULL, p_count => 1, p_messages => \'{"role": "tool", "content": "first"}\')',
            (branch.conversation_id,),
        )
        ((began,),) = first.execute("SELECT now()").fetchall()
    assert said(await store.restore("c"))[1:] == ["second, but committed first", "first"]
    times = [summary.created_at for summary in await store.history("c")]
    assert times == sorted(times, reverse=True)
    assert began < times[1]


async def test_clock_skew_of_a_client_orders_nothing(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    early = {"role": "user", "content": "first", "metadata": {"timestamp": "2099-01-01T05:00:00Z"}}
    await branch.begin_turn(early)
    await answer(branch, "second")
    await branch.begin_turn({"role": "user", "content": "third", "metadata": {"timestamp": "1999-01-01T00:00:00Z"}})
    restored = await store.restore("c")
    assert said(restored) == ["first", "second", "third"]
    assert restored.messages[0] == early
    assert restored.created_at is not None
    assert restored.created_at.year < 2099


async def test_timezone_of_client_and_server_change_no_time(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    monkeypatch.setenv("PGTZ", "America/Los_Angeles")
    kolkata = make_conninfo(dsn, options="-c timezone=Asia/Kolkata")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''Asia/Kolkata''',"
                           " current_database()); END $$")  # fmt: skip
        # Half an hour before Los Angeles puts its clocks back, and then half an hour after.
        clock = (
            "CREATE OR REPLACE FUNCTION turnkeep.clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
            " AS $$ SELECT '2026-11-01 {}:30+00'::timestamptz $$"
        )
        async with turnkeep.open(kolkata) as there, turnkeep.open(dsn) as here:
            connection.execute(clock.format("08").encode())
            branch = await there.conversation("c")
            await branch.begin_turn(USER)
            connection.execute(clock.format("09").encode())
            await branch.save([USER])
            lease = await branch.claim(seconds=60)
            checkpoints = [await store.restore("c", at=(0, n)) for store in (here, there) for n in range(2)]
            listed = [summary for store in (here, there) for summary in await store.history("c")]
            (conversation,) = await here.conversations()
    times = [checkpoint.created_at for checkpoint in checkpoints]
    assert times[:2] == times[2:] == [summary.created_at for summary in listed[1::-1]]
    assert times[0] is not None
    assert times[1] is not None
    for later, earlier in ((times[1], times[0]), (listed[0].created_at, listed[1].created_at)):
        assert round((later - earlier).total_seconds()) == 3600
        assert earlier.astimezone(ZoneInfo("America/Los_Angeles")).hour == 1
    assert round((lease.until - conversation.created_at).total_seconds()) == 3660
    returned = (*times, lease.until, conversation.created_at, conversation.updated_at, conversation.turn_started_at)
    assert {time and time.utcoffset() for time in returned} == {timedelta(0)}


# -- doubles


async def test_duplicate_reply_one_key_is_one_message_and_another_key_another(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    first = await branch.begin_turn(YES, key="K")
    await answer(branch)
    async with turnkeep.open(dsn) as restarted:
        again = await (await restarted.conversation("c")).begin_turn(YES, key="K")
        assert (again.turn_index, again.repeated, again.final) == (first.turn_index, True, True)
        second = await (await restarted.conversation("c")).begin_turn(YES, key="K2")
        assert (second.turn_index, second.repeated) == (1, False)
        third = await (await restarted.conversation("c")).begin_turn(YES, key="K2")
        assert (third.turn_index, third.repeated) == (1, True)
    assert said(await store.restore("c")) == ["yes", "ok", "yes"]


async def test_duplicate_reply_a_key_with_another_body_is_an_error_after_a_restart_too(
    store: AsyncStore, dsn: str
) -> None:
    await (await store.conversation("c")).begin_turn(YES, key="K")
    await store.post("c", YES, key="posted")
    async with turnkeep.open(dsn) as restarted:
        branch = await restarted.conversation("c")
        with pytest.raises(turnkeep.KeyReusedError):
            await branch.begin_turn({"role": "user", "content": "no"}, key="K")
        with pytest.raises(turnkeep.KeyReusedError):
            await restarted.post("c", {"role": "user", "content": "no"}, key="posted")
        assert (await restarted.post("c", YES, key="posted")).repeated
    assert said(await store.restore("c")) == ["yes"]


# -- two at once


async def test_sequence_race_fifty_workers_append_a_thousand_messages(store: AsyncStore, dsn: str) -> None:
    workers, each = 50, 20
    branch = await store.conversation("c")

    async def worker(name: int) -> None:
        for number in range(each):
            await store.post("c", {"role": "user", "content": [name, number]}, key=f"{name}.{number}")

    async def take_up() -> None:
        for _ in range(workers * each):
            while await branch.take_request() is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await branch.save([], final=True)

    await asyncio.gather(take_up(), *map(worker, range(workers)))
    texts = said(await store.restore("c"))
    assert len(texts) == workers * each
    for name in range(workers):
        assert [number for worker, number in texts if worker == name] == [*range(each)]
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT position FROM turnkeep.message ORDER BY position").fetchall()
    assert rows == [(position,) for position in range(workers * each)]


async def test_lost_update_of_two_runs_at_once_both_are_there_in_the_end(
    store: AsyncStore, other: AsyncStore, dsn: str
) -> None:
    branch = await store.conversation("c")
    rival = await other.conversation("c")

    async def run(branch: turnkeep.AsyncBranch, text: str) -> None:
        while True:
            try:
                await branch.begin_turn({"role": "user", "content": text}, key=text)
                return await answer(branch, f"reply to {text}")
            except turnkeep.ConflictError:
                await branch.refresh()
                await asyncio.sleep(0)

    with Observer(dsn) as observer, branches_held(dsn, branch.conversation_id):
        runs = [asyncio.ensure_future(run(one, text)) for one, text in ((branch, "a"), (rival, "b"))]
        await observer.see_waiting(2)  # both have seen the same head
    await asyncio.gather(*runs)
    texts = said(await store.restore("c"))
    assert texts in (["a", "reply to a", "b", "reply to b"], ["b", "reply to b", "a", "reply to a"])


async def test_lost_update_a_large_state_changed_at_once_is_saved_as_it_was(store: AsyncStore) -> None:
    state: dict[str, Any] = {str(number): {"n": number} for number in range(50_000)}
    branch = await store.conversation("c")
    save = asyncio.ensure_future(branch.begin_turn(USER, state=state))
    await asyncio.sleep(0)  # the call has begun
    for value in state.values():
        value["n"] = "torn"
    await save
    assert (await store.restore("c")).state == {str(number): {"n": number} for number in range(50_000)}


async def test_deadlock_no_mixture_of_calls_on_one_conversation_meets_one(store: AsyncStore, other: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)

    async def append() -> None:
        for _ in range(40):
            await branch.save([USER, USER])
            lease = await branch.claim(seconds=60)
            assert await branch.release() is (lease is not None)

    async def fork(using: AsyncStore) -> None:
        for _ in range(15):
            await using.fork("c", at=(0, 0))

    async def post(using: AsyncStore, name: str, keys: list[int]) -> None:
        for key in keys:
            await using.post("c", USER, key=f"{name}{key}")

    up, down = [*range(40)], [*range(39, -1, -1)]
    await asyncio.gather(
        append(), fork(store), fork(other), post(store, "k", up), post(other, "k", down), post(other, "own", up)
    )
    assert (await store.restore("c")).sub_step == 40
    assert len((await store.restore("c")).messages) == 81
    assert (await store.fork("c")).branch == 31


async def test_double_texting_is_refused_or_waits_and_the_transcript_stays_well_formed(store: AsyncStore) -> None:
    calls = [{"id": f"call_{n}", "name": "f"} for n in range(1, 6)]
    second = {"role": "user", "content": "message 2"}
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save([{"role": "assistant", "tool_calls": calls}], tool_calls=calls)
    for call in calls[:2]:
        result = {"role": "tool", "tool_call_id": call["id"], "content": "r"}
        await branch.save([result], tool_results=[result])
    with pytest.raises(turnkeep.TurnOpenError) as caught:
        await (await store.conversation("c")).begin_turn(second)
    assert [call.call_id for call in caught.value.pending] == ["call_3", "call_4", "call_5"]
    await store.post("c", second, key="2")
    for call in calls[2:]:
        result = {"role": "tool", "tool_call_id": call["id"], "content": "r"}
        await branch.save([result], tool_results=[result])
    assert (await branch.save([{"role": "assistant", "content": "done"}], final=True)).waiting
    assert await branch.take_request() is not None
    roles = [message["role"] for message in (await store.restore("c")).messages]
    assert roles == ["user", "assistant", *["tool"] * 5, "assistant", "user"]


async def test_double_texting_a_message_sent_beside_somebody_elses_write_is_never_lost(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await answer(branch)
    seen_before = await store.conversation("c")
    await branch.begin_turn({"role": "system", "content": "summary"})  # somebody at work in the background
    await branch.save([], final=True)
    with pytest.raises(turnkeep.ConflictError):
        await seen_before.begin_turn(YES, key="K")
    await seen_before.refresh()
    assert not (await seen_before.begin_turn(YES, key="K")).repeated
    assert said(await store.restore("c")) == ["go", "ok", "summary", "yes"]
