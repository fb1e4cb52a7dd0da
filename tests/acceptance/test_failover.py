"""A standby takes over from a killed primary: what was acknowledged, what is lost, and who notices (G1, G2, G5)."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.acceptance.load import Load
from tests.clusters import PORT, Cluster, room
from tests.observing import Observer, until

AGENTS = 16
USER = {"role": "user", "content": "hello"}
STEP = {"role": "assistant", "content": "let me see"}


@dataclass(frozen=True)
class Pair:
    """A primary, the standby that follows it, and the DSN that means whichever of them takes writes."""

    primary: Cluster
    standby: Cluster

    @property
    def dsn(self) -> str:
        """Both of them."""
        hosts = f"{self.primary.directory},{self.standby.directory}"
        return make_conninfo(
            host=hosts, port=f"{PORT},{PORT}", user="postgres", dbname="postgres", target_session_attrs="read-write"
        )

    def synchronous(self) -> None:
        """Let a commit wait until the standby has it."""
        with psycopg.connect(self.primary.conninfo, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            connection.execute("SELECT pg_reload_conf()")

    async def following(self, state: str) -> None:
        """Wait until the standby streams, as `state` says: sync or async."""
        with Observer(self.primary.conninfo) as observer:
            query = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
            await until(lambda: observer.rows(query) == [(state,)], f"{state} standby")

    def fall_behind(self) -> None:
        """Let the standby get nothing more, as over a network that is gone."""
        ((pid,),) = self.primary.rows("SELECT pid FROM pg_stat_replication")
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGSTOP)

    def fail_over(self) -> None:
        """Kill the primary, and make the standby one."""
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with room() as place:
        primary = Cluster(place / "primary")
        primary.initialise()
        primary.start()
        turnkeep.migrate(primary.conninfo)
        standby = primary.standby(place / "standby")
        standby.start()
        yield Pair(primary, standby)
        standby.stop()
        primary.stop()


class Ledger:
    """What was acknowledged, in a file that is synced for each of it, by a process that nobody kills."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)

    def enter(self, write_id: uuid.UUID) -> None:
        """Write down what has been acknowledged."""
        os.write(self._file, f"{write_id}\n".encode())
        os.fsync(self._file)

    def entries(self) -> set[uuid.UUID]:
        """All of it."""
        return {uuid.UUID(line) for line in os.pread(self._file, 1 << 24, 0).decode().split()}


class Agent:
    """An agent that keeps a ledger, and goes on from what is there when it is told that its own head is gone."""

    def __init__(self, store: turnkeep.AsyncStore, ledger: Ledger, name: str) -> None:
        self._store, self._ledger, self._name = store, ledger, name
        self.acknowledged = 0
        self.told: list[turnkeep.TurnkeepError] = []
        self.since_told: set[object] = set()
        self.stopping = False

    async def run(self) -> None:
        """Write until told to stop."""
        branch = await self._store.conversation(self._name)
        while not self.stopping:
            write_id = uuid.uuid4()
            message = {"role": "assistant", "content": str(write_id)}
            try:
                if branch.turn_open:
                    await branch.save([message], write_id=write_id)
                else:
                    await branch.begin_turn(message, write_id=write_id)
            except (turnkeep.ConflictError, turnkeep.NotFoundError) as error:
                self.told.append(error)
                self.since_told.clear()
                branch = await self._store.conversation(self._name)
            else:
                self._ledger.enter(write_id)
                self.since_told.add(write_id)
                self.acknowledged += 1


def stored(cluster: Cluster) -> set[object]:
    """Every write that a server has, each of them once."""
    rows = cluster.rows("SELECT write_id FROM turnkeep.checkpoint")
    assert len(rows) == len(set(rows))
    return {write_id for (write_id,) in rows}


def check_whole(cluster: Cluster) -> None:
    """Heads, checkpoints and messages of every branch belong together."""
    assert not cluster.rows(
        "SELECT b.* FROM turnkeep.branch AS b WHERE turn_index >= 0 AND (next_position, turn_index, sub_step) <>"
        " (SELECT (SELECT count(*) FROM turnkeep.message AS m WHERE m.conversation_id = b.conversation_id),"
        " max(c.turn_index), max(c.sub_step) FROM turnkeep.checkpoint AS c"
        " WHERE c.conversation_id = b.conversation_id GROUP BY b.conversation_id)"
    )


async def test_with_a_synchronous_standby_nothing_acknowledged_is_lost_by_a_failover(
    pair: Pair, tmp_path: Path
) -> None:
    pair.synchronous()
    await pair.following("sync")
    ledger = Ledger(tmp_path / "ledger")
    async with turnkeep.open(pair.dsn, pool_size=AGENTS, timeout=120) as store:
        agents = [Agent(store, ledger, f"agent {number}") for number in range(AGENTS)]
        running = [asyncio.ensure_future(agent.run()) for agent in agents]
        await until(lambda: min(agent.acknowledged for agent in agents) >= 3, "agents at work")
        await asyncio.to_thread(pair.fail_over)
        before = [agent.acknowledged for agent in agents]
        await until(lambda: all(a.acknowledged > n + 2 for a, n in zip(agents, before, strict=True)), "agents go on")
        for agent in agents:
            agent.stopping = True
        await asyncio.gather(*running)
    assert not [agent.told for agent in agents if agent.told]
    assert ledger.entries() == stored(pair.standby)
    check_whole(pair.standby)


async def test_writers_over_a_failover_write_each_thing_once_and_in_order(pair: Pair) -> None:
    pair.synchronous()
    await pair.following("sync")
    async with turnkeep.open(pair.dsn, pool_size=AGENTS, timeout=120) as store:
        async with Load([store], AGENTS) as load:
            await load.in_flight(AGENTS // 2)
            await asyncio.to_thread(pair.fail_over)
            await load.progress()
        load.check(pair.standby.conninfo)


async def test_what_an_asynchronous_standby_had_not_received_is_lost_and_every_writer_of_it_is_told(
    pair: Pair, tmp_path: Path
) -> None:
    await pair.following("async")
    ledger = Ledger(tmp_path / "ledger")
    async with turnkeep.open(pair.dsn, pool_size=AGENTS, timeout=120) as store:
        agents = [Agent(store, ledger, f"agent {number}") for number in range(AGENTS)]
        running = [asyncio.ensure_future(agent.run()) for agent in agents]
        await until(lambda: min(agent.acknowledged for agent in agents) >= 3, "agents at work")
        pair.fall_behind()
        newcomer = Agent(store, ledger, "one that the standby never heard of")
        agents.append(newcomer)
        running.append(asyncio.ensure_future(newcomer.run()))
        before = [agent.acknowledged for agent in agents]
        await until(lambda: all(a.acknowledged > n + 2 for a, n in zip(agents, before, strict=True)), "agents go on")
        await asyncio.to_thread(pair.primary.kill)
        await asyncio.to_thread(pair.standby.promote)
        before = [agent.acknowledged for agent in agents]
        await until(lambda: all(a.acknowledged > n + 2 for a, n in zip(agents, before, strict=True)), "agents go on")
        for agent in agents:
            agent.stopping = True
        await asyncio.gather(*running)
    kept = stored(pair.standby)
    lost = ledger.entries() - kept
    assert len(lost) >= 3 * AGENTS  # the test is of use only if something was lost
    assert all(agent.told for agent in agents)
    assert any(isinstance(error, turnkeep.NotFoundError) for error in newcomer.told)
    assert all(agent.since_told <= kept for agent in agents)  # nothing of what was written afterwards
    assert kept <= ledger.entries()
    check_whole(pair.standby)


async def replicated(pair: Pair, checkpoints: int) -> None:
    """Wait until the standby shows that many checkpoints."""
    await until(lambda: len(stored(pair.standby)) == checkpoints, f"{checkpoints} checkpoints on the standby")


async def test_a_handle_whose_head_is_lost_is_told_also_where_others_have_written_in_its_place(pair: Pair) -> None:
    await pair.following("async")
    async with turnkeep.open(pair.dsn, timeout=60) as store, turnkeep.open(pair.dsn, timeout=60) as others:
        branch = await store.conversation("c")
        await branch.begin_turn(USER)
        await replicated(pair, 1)
        pair.fall_behind()
        await branch.save([{**STEP, "content": "lost"}])
        await asyncio.to_thread(pair.fail_over)
        other = await others.conversation("c")
        await other.save([{**STEP, "content": "other"}])
        assert (other.turn_index, other.sub_step) == (branch.turn_index, branch.sub_step)
        with pytest.raises(turnkeep.ConflictError, match="refresh"):
            await branch.save([{**STEP, "content": "after the lost one"}])
        await branch.refresh()
        await branch.save([{**STEP, "content": "after the other"}])
        said = [message["content"] for message in (await store.restore("c")).messages]
    assert said == ["hello", "other", "after the other"]
    check_whole(pair.standby)


async def test_a_lease_holds_over_a_failover_where_the_standby_knows_of_it_and_is_lost_where_not(pair: Pair) -> None:
    await pair.following("async")
    async with turnkeep.open(pair.dsn, timeout=60) as store:
        known, forgotten = [await store.conversation(name) for name in ("known", "forgotten")]
        await known.claim(seconds=3600)
        await known.begin_turn(USER)
        await forgotten.begin_turn(USER)
        await replicated(pair, 2)
        pair.fall_behind()
        await known.save([STEP])
        await forgotten.claim(seconds=3600)
        await asyncio.to_thread(pair.fail_over)
        with pytest.raises(turnkeep.ConflictError):
            await known.save([STEP])
        with pytest.raises(turnkeep.LeaseHeldError):
            await (await store.conversation("known")).save([STEP])
        await known.renew()
        await known.refresh()
        await known.save([STEP])
        with pytest.raises(turnkeep.LeaseLostError):
            await forgotten.save([STEP])
        with pytest.raises(turnkeep.LeaseLostError):
            await forgotten.renew()
        await forgotten.claim()
        await forgotten.save([STEP])
    check_whole(pair.standby)


@pytest.mark.parametrize("write", ["save", "key", "post", "save_all"])
async def test_a_retry_is_acknowledged_only_when_the_standby_has_what_it_repeats(pair: Pair, write: str) -> None:
    pair.synchronous()
    await pair.following("sync")
    async with turnkeep.open(pair.dsn, timeout=4) as store:
        branch = await store.conversation("c", agent_id="desk")
        if write in ("save", "save_all"):
            await branch.begin_turn(USER)
        write_id = uuid.uuid4()

        async def attempt() -> object:
            match write:
                case "save":
                    return await branch.save([STEP], write_id=write_id)
                case "save_all":
                    return await branch.save_all([USER, STEP], write_id=write_id)
                case "key":
                    return await branch.begin_turn(USER, key="k")
                case _:
                    return await store.post("c", USER, key="k")

        pair.fall_behind()
        for _ in range(2):  # the first is committed on the primary alone, and the second finds it there
            with pytest.raises(turnkeep.UnavailableError):
                await attempt()
        query = "SELECT number FROM turnkeep.request" if write == "post" else "SELECT id FROM turnkeep.checkpoint"
        before = pair.primary.rows(query)
        await asyncio.to_thread(pair.fail_over)
        assert len(pair.standby.rows(query)) == len(before) - 1
    async with turnkeep.open(pair.dsn, timeout=60) as store:
        branch = await store.conversation("c", agent_id="desk")
        await attempt()
    assert len(pair.standby.rows(query)) == len(before)


async def test_an_erasure_repeated_is_acknowledged_only_when_the_standby_has_erased_as_well(pair: Pair) -> None:
    pair.synchronous()
    await pair.following("sync")
    async with turnkeep.open(pair.dsn, timeout=4) as store:
        await (await store.conversation("c")).begin_turn(USER)
        pair.fall_behind()
        for _ in range(2):
            with pytest.raises(turnkeep.UnavailableError):
                await store.erase("c")
        assert not stored(pair.primary)
        await asyncio.to_thread(pair.fail_over)
    async with turnkeep.open(pair.dsn, timeout=60) as store:
        assert (await store.erase("c")).conversations == 1
