"""G5: one runner at a time, by tokens that are compared for equality and by the database's clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

import turnkeep
from turnkeep import AsyncBranch, AsyncStore

USER = {"role": "user", "content": "go"}
ANSWER = {"role": "assistant", "content": "…"}
Advance = Callable[[timedelta], None]


async def two(store: AsyncStore) -> tuple[AsyncBranch, AsyncBranch]:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    return branch, await store.conversation("c")


async def test_while_a_lease_lives_nobody_else_writes_or_claims(store: AsyncStore) -> None:
    runner, other = await two(store)
    lease = await runner.claim(owner="worker-1", seconds=60)
    with pytest.raises(turnkeep.LeaseHeldError):
        await other.save([ANSWER])
    with pytest.raises(turnkeep.LeaseHeldError, match="worker-1 holds a lease"):
        await other.claim(owner="worker-2")
    await runner.save([ANSWER])
    restored = await store.restore("c")
    assert (restored.sub_step, restored.status, restored.lease_owner) == (1, "running", "worker-1")
    assert runner.lease is not None
    assert runner.lease.until > lease.until


async def test_an_expired_lease_writes_nothing_even_if_nobody_took_over(store: AsyncStore, advance: Advance) -> None:
    runner, other = await two(store)
    await runner.claim(seconds=10)
    advance(timedelta(seconds=11))
    with pytest.raises(turnkeep.LeaseLostError):
        await runner.save([ANSWER], final=True)
    assert (await store.restore("c")).sub_step == 0
    await other.save([ANSWER])
    assert (await store.restore("c")).sub_step == 1
    with pytest.raises(turnkeep.LeaseLostError):
        await runner.renew()


async def test_an_expired_lease_that_nobody_used_can_be_renewed(store: AsyncStore, advance: Advance) -> None:
    runner, other = await two(store)
    lease = await runner.claim(seconds=10)
    advance(timedelta(seconds=11))
    await store.post("c", "meanwhile")
    renewed = await runner.renew()
    assert renewed.token == lease.token
    with pytest.raises(turnkeep.LeaseHeldError):
        await other.save([ANSWER])
    await runner.save([ANSWER], final=True)
    assert (await store.restore("c")).sub_step == 1


@pytest.mark.parametrize("use", ["save", "claim", "claim_waiting", "resume", "release"])
async def test_an_expired_lease_that_somebody_used_is_over_for_good(
    store: AsyncStore, advance: Advance, use: str
) -> None:
    runner = await store.conversation("c", agent_id="support")
    await runner.claim(seconds=10)
    await runner.begin_turn(USER)
    advance(timedelta(seconds=11))
    other = await store.conversation("c")
    match use:
        case "save":
            await other.save([ANSWER])
        case "claim":
            await other.claim(seconds=10)
        case "claim_waiting":
            assert len(await store.claim_waiting(["support"], limit=1, seconds=10)) == 1
        case "resume":
            await store.resume("c")
        case "release":
            await other.claim(seconds=10)
            await other.release()
    for later in (12, 120):
        advance(timedelta(seconds=later))
        with pytest.raises(turnkeep.LeaseLostError):
            await runner.renew()
        with pytest.raises(turnkeep.LeaseLostError):
            await runner.save([ANSWER])


async def test_a_zombie_of_the_same_owner_is_shut_out_by_its_token(store: AsyncStore, advance: Advance) -> None:
    zombie, successor = await two(store)
    await zombie.claim(owner="worker-1", seconds=10)
    advance(timedelta(seconds=11))
    await successor.claim(owner="worker-1", seconds=10)
    for write in (zombie.save([ANSWER]), zombie.begin_turn(USER), zombie.renew()):
        with pytest.raises(turnkeep.LeaseLostError):
            await write
    assert await zombie.release() is False
    await successor.save([ANSWER])
    assert (await store.restore("c")).sub_step == 1


async def test_every_save_and_renewal_lets_the_lease_live_on(store: AsyncStore, advance: Advance) -> None:
    runner, _ = await two(store)
    await runner.claim(seconds=10)
    for passed, act in ((9, runner.renew), (18, lambda: runner.save([ANSWER])), (27, runner.renew)):
        advance(timedelta(seconds=passed))
        await act()
    assert (await store.restore("c")).sub_step == 1


async def test_a_lease_handed_back_is_over_for_good(store: AsyncStore) -> None:
    runner, other = await two(store)
    await runner.claim(seconds=60)
    token = runner.lease
    assert await runner.release() is True
    assert (await store.restore("c")).status == "ready"
    runner._lease = token  # a zombie that does not know
    with pytest.raises(turnkeep.LeaseLostError):
        await runner.save([ANSWER])
    await other.save([ANSWER], final=True)
    assert (await store.restore("c")).status == "idle"


async def test_a_claim_goes_on_from_the_head_it_finds(store: AsyncStore) -> None:
    stale, other = await two(store)
    await other.save([ANSWER])
    await stale.claim()
    assert (stale.sub_step, stale.messages) == (1, [USER, ANSWER])
    await stale.save([ANSWER], final=True)


async def test_a_lease_covers_one_branch(store: AsyncStore) -> None:
    runner, _ = await two(store)
    await runner.claim(seconds=60)
    fork = await store.fork("c")
    await fork.save([ANSWER])
    await fork.claim()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 86_401])
async def test_a_length_that_no_lease_has_is_refused(store: AsyncStore, seconds: float) -> None:
    runner, _ = await two(store)
    with pytest.raises(turnkeep.InvalidInputError, match="seconds"):
        await runner.claim(seconds=seconds)


async def test_without_a_lease_there_is_nothing_to_renew(store: AsyncStore) -> None:
    runner, _ = await two(store)
    with pytest.raises(turnkeep.LeaseLostError):
        await runner.renew()


async def test_interrupted_turns_are_those_open_without_a_live_lease(store: AsyncStore, advance: Advance) -> None:
    async def begin(name: str, *, agent: str = "a") -> AsyncBranch:
        branch = await store.conversation(name, agent_id=agent)
        await branch.begin_turn({"role": "user", "content": name})
        return branch

    await begin("open")
    await (await begin("ended")).save([ANSWER], final=True)
    await (await begin("held")).claim(seconds=3600)
    await (await begin("expired", agent="b")).claim(seconds=10)
    handed_back = await begin("handed back")
    await handed_back.claim()
    await handed_back.release()
    await store.conversation("empty")
    await store.fork("open")  # nobody has begun to work on it
    advance(timedelta(seconds=11))
    interrupted = await store.restore_interrupted()
    assert sorted(c.external_id for c in interrupted) == ["expired", "handed back", "open"]
    assert all(c.messages == [{"role": "user", "content": c.external_id}] for c in interrupted)
    assert [c.external_id for c in await store.restore_interrupted(agent_id="b")] == ["expired"]


async def test_all_interrupted_turns_come_back_however_many(store: AsyncStore) -> None:
    for number in range(230):
        branch = await store.conversation(f"c{number}")
        await branch.begin_turn({"role": "user", "content": number})
    interrupted = await store.restore_interrupted()
    assert sorted(c.messages[0]["content"] for c in interrupted) == list(range(230))


async def test_a_save_changes_no_index_of_the_branch(store: AsyncStore, dsn: str) -> None:
    runner, _ = await two(store)
    lease = await runner.claim(seconds=60)
    with psycopg.connect(dsn) as connection:
        saved = connection.execute(
            """
            SELECT outcome FROM turnkeep.save_v1(p_conversation => %s, p_branch => 0, p_turn => 0, p_sub_step => 0,
                p_token => %s, p_lease_seconds => 60, p_write_id => gen_random_uuid(), p_repeatable => false,
                p_phase => 'step', p_agent => NULL, p_count => 1, p_messages => '[{}]')
            """,
            (runner.conversation_id, lease.token),
        ).fetchone()
        updates = connection.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'branch'"
        ).fetchone()
    assert saved == ("saved",)
    assert updates == (1, 1)


async def test_a_lease_that_a_lease_less_write_ended_is_over_whatever_the_clock_says(
    store: AsyncStore, advance: Advance
) -> None:
    runner, other = await two(store)
    lease = await runner.claim(seconds=10)
    advance(timedelta(seconds=11))
    await other.save([ANSWER])
    assert await runner.release() is False
    assert (await store.restore("c")).status == "open"
    advance(timedelta(seconds=0))
    zombie = await store.conversation("c")
    zombie._lease = lease
    with pytest.raises(turnkeep.LeaseLostError):
        await zombie.save([ANSWER])
    await other.save([ANSWER])


async def test_a_late_release_leaves_a_lease_less_turn_as_it_is(store: AsyncStore, advance: Advance) -> None:
    runner = await store.conversation("c")
    await runner.claim(seconds=10)
    advance(timedelta(seconds=11))
    other = await store.conversation("c")
    await other.begin_turn(USER)
    assert await runner.release() is False
    assert (await store.restore("c")).status == "open"


@pytest.mark.parametrize(("token", "seconds"), [("0", "5"), ("7", "NULL"), ("7", "0")])
async def test_no_language_can_claim_a_lease_that_is_none(
    store: AsyncStore, dsn: str, token: str, seconds: str
) -> None:
    runner, _ = await two(store)
    query = f"SELECT turnkeep.claim_v1(%s, 0, 'x', {token}, {seconds}, false)"
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.InvalidParameterValue):
        connection.execute(query.encode(), (runner.conversation_id,))
