"""Cases of storage growth, deletion, secrets and large transactions: conversations grow old, and nobody notices."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.observing import Observer
from turnkeep import AsyncStore
from turnkeep.redaction import secrets

DAY = timedelta(days=1)
Advance = Callable[[timedelta], None]
USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def fill(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.document SET text = 't', next_try_at = NULL")


async def turn(branch: Any, number: int) -> None:
    await branch.begin_turn({"role": "user", "content": f"question {number}"})
    await branch.save([ANSWER], tool_calls=[{"id": "1"}], state={"n": number})
    await branch.save([{"role": "tool", "n": number}], tool_results=[{"tool_call_id": "1"}])
    await branch.save([ANSWER], final=True)


async def test_storage_growth_03_retention_leaves_heads_and_no_orphan(
    dsn: str, store: AsyncStore, observer: Observer, advance: Advance
) -> None:
    """Of finished conversations, 95 of 100 checkpoints are never read again."""
    for number in range(25):
        branch = await store.conversation(f"c{number}", agent_id="kept" if number % 5 == 0 else "short")
        for one in range(6):
            await turn(branch, one)
    fill(dsn)
    before = {
        one.external_id: (await store.restore(one.conversation_id)).messages for one in await store.conversations()
    }
    counts = observer.counts()
    await store.set_retention("short", 30 * DAY)
    advance(20 * DAY)
    assert (await store.prune_all(keep="heads", older_than=10 * DAY)).checkpoints == 25 * 23
    assert observer.counts() == {**counts, "checkpoint": 25, "retention": 1}
    assert {name: (await store.restore(name)).messages for name in before} == before
    advance(40 * DAY)
    assert (await store.expire()).erased.conversations == 20
    left = observer.counts()
    assert {name: left[name] for name in ("conversation", "branch", "checkpoint", "message", "document")} == {
        "conversation": 5, "branch": 5, "checkpoint": 5, "message": 5 * 24, "document": 5 * 6,
    }  # fmt: skip
    branch = await store.conversation("c0")
    await turn(branch, 6)
    assert (await store.restore("c0")).messages[:24] == before["c0"]


async def test_deletion_03_a_chain_cut_in_the_middle_goes_on_from_what_is_left(
    dsn: str, store: AsyncStore, observer: Observer, advance: Advance
) -> None:
    branch = await store.conversation("c")
    for number in range(25):
        await turn(branch, number)
        if number == 12:
            advance(40 * DAY)  # what comes from here on is young
            branch = await store.conversation("c")
    fill(dsn)
    history = [(one.turn_index, one.sub_step) for one in await store.history("c", limit=1000)]
    before = {at: (await store.restore("c", at=at)).message_texts for at in history}
    assert (await store.prune("c", keep="heads", older_than=30 * DAY)).checkpoints == 51
    left = [(one.turn_index, one.sub_step) for one in await store.history("c", limit=1000)]
    assert left == history[: 12 * 4 + 1]  # the young ones, and what the first of them has gone on from
    assert {at: (await store.restore("c", at=at)).message_texts for at in left} == {at: before[at] for at in left}
    await turn(branch, 25)
    fork = await store.fork("c", at=(15, 1))
    await fork.save([ANSWER], tool_results=[{"tool_call_id": "1"}], final=True)
    assert (await store.restore("c", branch=fork.branch)).message_texts[:-1] == before[15, 1]


async def test_secrets_01_configuration_is_stored_nowhere_and_no_error_shows_it(
    dsn: str, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "sk-test-canary4711canary"
    config = {"configurable": {"api_key": secret}}
    caplog.set_level(0)
    async with turnkeep.open(dsn, redact=secrets()) as store:
        branch = await store.conversation("c", metadata={"config": config})
        await branch.begin_turn({"role": "user", "metadata": config}, state={"config": config})
        await branch.save([ANSWER], tool_calls=[{"id": "1", "arguments": config}])
        refused: list[Exception] = []
        for call in (
            lambda: branch.begin_turn({"role": "user", "config": config}),
            lambda: branch.save([{"config": config}], final=True),
            lambda: branch.save([{"config": config, "bad": float("nan")}]),
            lambda: branch.save([{"config": config, "large": "x" * (65 * 1024 * 1024)}]),
            lambda: branch.save([], tool_results=[{"tool_call_id": secret}]),
            lambda: store.update("c", metadata={"config": [config] * 4000}),
            lambda: store.restore("c", at=(9, 9)),
        ):
            with pytest.raises(turnkeep.TurnkeepError) as caught:
                await call()
            refused.append(caught.value)
        assert observer.traces([], secret) == {}
        assert observer.traces([], "[redacted]")
    assert not [error for error in refused if "canary4711" in str(error)]
    assert "canary4711" not in caplog.text
    # And by itself Turnkeep keeps no configuration at all: an agent's key is in no table.
    assert {"config", "configuration", "api_key", "options"}.isdisjoint(
        name
        for (name,) in observer.rows(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'turnkeep'"
        )
    )


MANY = 60_000


def generate(dsn: str, conversations: int, messages: int) -> None:
    """Conversations of one turn each whose messages are many, by hand."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            """
            WITH made AS (
                SELECT gen_random_uuid() AS id, n FROM generate_series(1, %(conversations)s) AS n
            ), c AS (
                INSERT INTO turnkeep.conversation (conversation_id, external_id, agent_id, created_at)
                SELECT id, 'made ' || n, 'old', now() FROM made
            ), b AS (
                INSERT INTO turnkeep.branch (conversation_id, branch, name, status, turn_index, sub_step, next_position,
                                             turn_started_at, updated_at)
                SELECT id, 0, 'main', 'idle', %(messages)s - 1, 0, %(messages)s, now(), now() FROM made
            ), m AS (
                INSERT INTO turnkeep.message (conversation_id, branch, position, body, size)
                SELECT id, 0, p, ('{"role":"user","content":"' || p || '"}')::json, 30
                FROM made, generate_series(0, %(messages)s - 1) AS p
            )
            INSERT INTO turnkeep.checkpoint (conversation_id, turn_index, sub_step, branch, parent_turn_index,
                                             parent_sub_step, parent_branch, phase, created_at, write_id, spans)
            SELECT id, p, 0, 0, p - 1, 0, 0, 'final', now(), gen_random_uuid(),
                -- every list is the newest message: what pruned checkpoints held goes with them
                ARRAY[0, p, p + 1]
            FROM made, generate_series(0, %(messages)s - 1) AS p
            """,
            {"conversations": conversations, "messages": messages},
        )
        connection.execute("ANALYZE turnkeep.message, turnkeep.checkpoint, turnkeep.branch, turnkeep.conversation")


def watch_steps(dsn: str) -> None:
    """Write down how many rows each transaction removes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.step (transaction xid8, removed bigint)")
        connection.execute(
            "CREATE FUNCTION public.step() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO public.step SELECT pg_catalog.pg_current_xact_id(), count(*) FROM gone; RETURN NULL; END $$"
        )
        for table in ("checkpoint", "message"):
            connection.execute(
                f"CREATE TRIGGER step AFTER DELETE ON turnkeep.{table} REFERENCING OLD TABLE AS gone"
                " FOR EACH STATEMENT EXECUTE FUNCTION public.step()"
            )


async def appending(store: AsyncStore, name: str | uuid.UUID, stop: asyncio.Event) -> int:
    """Save until told to stop: how often that was."""
    branch = await store.conversation(name)
    await branch.begin_turn(USER)
    count = 0
    while not stop.is_set():
        await branch.save([ANSWER])
        count += 1
    assert (await store.restore(name)).messages == branch.messages
    return count


@pytest.mark.parametrize("conversations", [1, 300])
async def test_large_transaction_01_what_is_old_goes_in_small_steps_beside_live_writers(
    dsn: str, observer: Observer, advance: Advance, conversations: int
) -> None:
    generate(dsn, conversations, MANY // conversations)
    watch_steps(dsn)
    advance(40 * DAY)
    seen: list[int] = []
    async with (
        turnkeep.open(make_conninfo(dsn, options="-c statement_timeout=5s")) as store,
        turnkeep.open(dsn) as other,
    ):
        names = [one.external_id for one in await store.conversations(limit=1)]
        stop = asyncio.Event()
        writers = [asyncio.create_task(appending(other, name, stop)) for name in ("beside", *names)]
        pruned = await store.prune_all(
            keep="heads", older_than=30 * DAY, progress=lambda done, of, _: seen.append(done)
        )
        stop.set()
        counts = await asyncio.gather(*writers)
    assert pruned.busy == 0
    assert seen == [*range(1, conversations + 1)]
    assert (pruned.checkpoints, pruned.messages) == (MANY - conversations, MANY - conversations)
    assert min(counts) > 10
    steps = [
        removed
        for (removed,) in observer.rows("SELECT sum(removed)::bigint FROM public.step GROUP BY transaction")
        if removed
    ]
    assert sum(steps) == pruned.checkpoints + pruned.messages
    assert len(steps) >= 10
    assert max(steps) <= 20_000


async def test_large_transaction_01_what_has_expired_is_erased_one_by_one(
    dsn: str, observer: Observer, advance: Advance
) -> None:
    generate(dsn, 300, 100)
    watch_steps(dsn)
    async with turnkeep.open(make_conninfo(dsn, options="-c statement_timeout=5s")) as store:
        await store.set_retention("old", 30 * DAY)
        advance(40 * DAY)
        branch = await store.conversation((await store.conversations(limit=1))[0].conversation_id)
        await branch.begin_turn(USER)  # a write saves it
        first = await store.expire(limit=100)
        assert first.erased.conversations == 100
        rest = await store.expire()  # goes on where it stood
        assert rest.erased.conversations == 199
        assert first.erased.messages + rest.erased.messages == 299 * 100
        assert observer.counts()["conversation"] == 1
    steps = observer.rows("SELECT sum(removed)::bigint FROM public.step GROUP BY transaction")
    assert [removed for (removed,) in steps if removed] == [200] * 299
