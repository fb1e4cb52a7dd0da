"""What a save costs: directly, late in a conversation, through a pooler, beside others, under a snapshot."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

import turnkeep
from bench.scene import FLOOR_INSERT, Finding, Step, conversation, interleaved, message, milliseconds, ratio

WORDS = 220
ROUNDS = 1500
WARM_UP = 400


class Saver:
    """Saves that go on and on: a new conversation every 200 sub-steps, as conversations are."""

    def __init__(self, store: turnkeep.AsyncStore) -> None:
        self._store = store
        self._branch: turnkeep.AsyncBranch | None = None
        self._count = 0
        self._message = message(WORDS, 1)

    async def prepare(self) -> None:
        self._branch = await self._store.conversation(uuid.uuid4(), agent_id="bench")
        await self._branch.begin_turn(message(20, 0))

    async def save(self) -> None:
        self._count += 1
        if self._count % 200 == 0:
            await self.prepare()
        assert self._branch is not None
        await self._branch.save([self._message], state={"step_count": self._count})


def floor_step(connection: psycopg.AsyncConnection[Any]) -> Step:
    """One INSERT of the same bytes and its commit."""
    text = json.dumps(message(WORDS, 1), ensure_ascii=False, separators=(",", ":"))
    own = uuid.uuid4()

    async def insert() -> None:
        await connection.execute(FLOOR_INSERT, (own, text))

    return insert


async def direct(conninfo: str) -> Finding:
    """A save against the floor, both over one direct connection, prepared."""
    async with (
        turnkeep.open(conninfo) as store,
        await psycopg.AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=0) as floor,
    ):
        saver = Saver(store)
        await saver.prepare()
        insert, save = await interleaved([floor_step(floor), saver.save], ROUNDS, WARM_UP)
    flush = milliseconds(insert)
    found, detail = ratio(save, insert)
    return Finding(f"save, direct (the floor takes {flush})", found, 1.6, False, detail)


async def pooled(conninfo: str) -> Finding:
    """A save against the floor's INSERT, both through the same pooler in transaction mode."""
    async with (
        turnkeep.open(conninfo) as store,
        await psycopg.AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None) as floor,
    ):
        saver = Saver(store)
        await saver.prepare()
        insert, save = await interleaved([floor_step(floor), saver.save], ROUNDS, WARM_UP)
    found, detail = ratio(save, insert)
    return Finding("save, through pgbouncer in transaction mode", found, 1.6, False, detail)


async def late(conninfo: str, turns: int = 1000) -> Finding:
    """A save at turn 1,000 of a conversation, or at a later one, against one at turn 1 of another."""
    async with turnkeep.open(conninfo) as store:
        old = await store.conversation("old", agent_id="bench")
        for turn in range(turns):
            await old.begin_turn(message(20, turn))
            await old.save([message(20, -turn)], final=True)
        await old.begin_turn(message(20, 0))
        saver = Saver(store)
        await saver.prepare()
        body = message(WORDS, 1)
        first, later = await interleaved([saver.save, lambda: old.save([body], state={"n": 1})], 800, 100)
    found, detail = ratio(later, first)
    return Finding(f"save at turn {turns:,} against turn 1", found, 1.15, False, detail)


async def forked(conninfo: str) -> Finding:
    """A fork of a conversation that has 1,000 of them, against one of a conversation that has few."""
    async with turnkeep.open(conninfo) as store:
        for name in ("few", "many"):
            branch = await store.conversation(name, agent_id="bench")
            await branch.begin_turn(message(20, 0))
            await branch.save([message(20, 1)], final=True)
        for _ in range(1000):
            await store.fork("many")
        few, many = await interleaved([lambda: store.fork("few"), lambda: store.fork("many")], 200, 20)
    found, detail = ratio(many, few)
    return Finding("fork number 1,000 against number 1", found, None, False, detail)


async def many(conninfo: str, agents: int = 64, connections: int = 16, each: int = 60) -> Finding:
    """The rate of 64 agents on 16 connections against the floor's at the same concurrency."""
    rates: list[float] = []
    floors: list[float] = []
    text = json.dumps(message(WORDS, 1), ensure_ascii=False, separators=(",", ":"))
    async with (
        turnkeep.open(conninfo, pool_size=connections) as store,
        AsyncConnectionPool(
            conninfo, kwargs={"autocommit": True, "prepare_threshold": 0}, min_size=connections, open=False
        ) as pool,
    ):
        savers = [Saver(store) for _ in range(agents)]
        await asyncio.gather(*(saver.prepare() for saver in savers))

        async def insert_all() -> None:
            own = uuid.uuid4()
            for _ in range(each):
                async with pool.connection() as connection:
                    await connection.execute(FLOOR_INSERT, (own, text))

        async def save_all(saver: Saver) -> None:
            for _ in range(each):
                await saver.save()

        for number in range(6):
            start = time.perf_counter()
            await asyncio.gather(*(insert_all() for _ in range(agents)))
            between = time.perf_counter()
            await asyncio.gather(*(save_all(saver) for saver in savers))
            if number:
                floors.append(agents * each / (between - start))
                rates.append(agents * each / (time.perf_counter() - between))
    found, _ = ratio(rates, floors)
    detail = f"{sorted(rates)[2]:.0f} saves/s against {sorted(floors)[2]:.0f} inserts/s"
    return Finding(f"{agents} agents on {connections} connections, rate", found, 0.7, True, detail)


async def under_snapshot(conninfo: str) -> Finding:
    """Saves on one branch while another session holds a snapshot, as a dump does, against the usual."""
    async with turnkeep.open(conninfo) as store:
        usual, held = Saver(store), Saver(store)
        await usual.prepare()
        await held.prepare()
        before, _ = await interleaved([usual.save, held.save], 600, 100)
        async with await psycopg.AsyncConnection.connect(conninfo) as dump:
            await dump.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            await dump.execute("SELECT count(*) FROM turnkeep.branch")
            for _ in range(3000):
                await held.save()
            (after,) = await interleaved([held.save], 600, 0)
    found, detail = ratio(after, before)
    return Finding("save while a snapshot is held, after 3,000 saves", found, 1.5, False, detail)


async def full_snapshots(conninfo: str) -> list[Finding]:
    """The plain table of full snapshots, one row a turn: the same conversation, for comparison."""
    turns = conversation(5)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE snapshot "
            "(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, conversation uuid, messages jsonb)"
        )
        own, seen, times, size = uuid.uuid4(), [], [], 0
        for turn in turns:
            for one in turn:
                seen.append(one)
                text = json.dumps(seen, ensure_ascii=False)
                start = time.perf_counter()
                connection.execute("INSERT INTO snapshot (conversation, messages) VALUES (%s, %s)", (own, text))
                times.append(time.perf_counter() - start)
        row = connection.execute("SELECT pg_total_relation_size('snapshot')").fetchone()
        assert row is not None
        size = row[0]
    raw = sum(len(json.dumps(one, ensure_ascii=False)) for one in seen)
    growth, detail = ratio(times[-20:], times[:20], 1)
    return [
        Finding("peer, full snapshots: last writes against first ones", growth, None, False, detail),
        Finding("peer, full snapshots: storage against raw JSON", size / raw, None, False, f"{size / 1e6:.1f} MB"),
    ]
