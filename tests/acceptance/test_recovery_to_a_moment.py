"""Base backup, archived log, recovery to a moment: conversations as they were, and whom that leaves behind (G1, G5)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.acceptance.command_line import run
from tests.clusters import PORT, Cluster, room
from tests.observing import until

WRITERS = 8
USER = {"role": "user", "content": "hello"}
STEP = {"role": "assistant", "content": "let me see"}


@dataclass
class Ledger:
    """Writes, in the order in which they were sent and acknowledged. Moments have their place in it."""

    sent: dict[uuid.UUID, int] = field(default_factory=dict)
    acknowledged: dict[uuid.UUID, int] = field(default_factory=dict)
    _count: int = 0

    def next(self) -> int:
        """The place of what happens now."""
        self._count += 1
        return self._count


@dataclass(frozen=True)
class Moment:
    """A moment as the three ways to recover name it, and where it stands in the ledger: between these two places."""

    name: str
    lsn: str
    time: str
    after: int
    before: int


async def write(store: turnkeep.AsyncStore, ledger: Ledger, name: str, stopping: asyncio.Event) -> None:
    """Write turns, and keep the ledger."""
    branch = await store.conversation(name)
    while not stopping.is_set():
        write_id = uuid.uuid4()
        ledger.sent[write_id] = ledger.next()
        message = {"role": "assistant", "content": str(write_id)}
        if branch.turn_open:
            await branch.save([message], write_id=write_id, final=branch.sub_step == 2)
        else:
            await branch.begin_turn(message, write_id=write_id, key=str(write_id))
        ledger.acknowledged[write_id] = ledger.next()


class Past:
    """A server whose log is archived, a base backup taken beside writers, and moments in what came then."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.primary = Cluster(place / "primary")
        self.archive = self.primary.directory / "archive"
        copy = f"test ! -f {self.archive}/%f && mkdir -p {self.archive} && cp %p {self.archive}/%f"
        self.primary.initialise(archive_mode="on", archive_command=f"'{copy}'")
        self.primary.start()
        turnkeep.migrate(self.primary.conninfo)
        self.ledger = Ledger()
        self.backup = self.primary.directory / "backup"

    async def moment(self, name: str) -> Moment:
        """This very moment."""
        after = self.ledger.next()
        rows = await asyncio.to_thread(
            self.primary.rows,
            "SELECT pg_create_restore_point(%s)::text, clock_timestamp()::text",
            name,
        )
        ((lsn, at),) = rows
        return Moment(name, str(lsn), str(at), after, self.ledger.next())

    async def archived(self) -> None:
        """See to it that all of the log so far is in the archive."""
        ((file,),) = self.primary.rows("SELECT pg_walfile_name(pg_switch_wal())")
        await until(lambda: (self.archive / str(file)).exists(), "the log in the archive")

    def recover(self, name: str, **target: str) -> Cluster:
        """Another server, as things were."""
        return self.primary.recovered(self.backup, self.place / name, self.archive, **target)

    async def more(self, writes: int = 3 * WRITERS) -> None:
        """Wait until that many writes more are acknowledged."""
        goal = len(self.ledger.acknowledged) + writes
        await until(lambda: len(self.ledger.acknowledged) >= goal, f"{writes} writes more")


@pytest.fixture
def past() -> Iterator[Past]:
    with room() as place:
        one = Past(place)
        yield one
        one.primary.stop()


@pytest.fixture
async def writers(past: Past) -> AsyncIterator[asyncio.Event]:
    """Writers at work until the event is set."""
    stopping = asyncio.Event()
    async with turnkeep.open(past.primary.conninfo, pool_size=WRITERS, timeout=60) as store:
        running = [
            asyncio.ensure_future(write(store, past.ledger, f"writer {number}", stopping)) for number in range(WRITERS)
        ]
        await past.more()
        yield stopping
        stopping.set()
        await asyncio.gather(*running)


def stored(cluster: Cluster | _Database) -> set[object]:
    """Every write that a server has, each of them once."""
    rows = cluster.rows("SELECT write_id FROM turnkeep.checkpoint")
    assert len(rows) == len(set(rows))
    return {write_id for (write_id,) in rows}


def check_whole(cluster: Cluster | _Database) -> None:
    """Heads, checkpoints and messages of every branch belong together."""
    assert not cluster.rows(
        "SELECT b.* FROM turnkeep.branch AS b WHERE turn_index >= 0 AND ((turn_index, sub_step) <> ("
        " SELECT c.turn_index, c.sub_step FROM turnkeep.checkpoint AS c WHERE c.conversation_id = b.conversation_id"
        " ORDER BY c.turn_index DESC, c.sub_step DESC LIMIT 1) OR next_position <> ("
        " SELECT count(*) FROM turnkeep.message AS m WHERE m.conversation_id = b.conversation_id))"
    )
    looked = run("doctor", "--deep", dsn=cluster.conninfo)
    assert looked.code == 0, looked.out


def check_as_it_was(cluster: Cluster | _Database, past: Past, moment: Moment) -> None:
    """Nothing acknowledged before the moment is missing, nothing sent after it is there, and all of it fits."""
    there = stored(cluster)
    ledger = past.ledger
    before = {one for one, place in ledger.acknowledged.items() if place < moment.after}
    afterwards = {one for one, place in ledger.sent.items() if place > moment.before}
    assert before  # the test is of use only if there is something on both sides
    assert afterwards
    assert before <= there
    assert not afterwards & there
    check_whole(cluster)


async def test_conversations_are_as_they_were_at_the_moment_however_it_is_named(
    past: Past, writers: asyncio.Event
) -> None:
    await asyncio.to_thread(past.primary.backup, past.backup)  # beside the writers
    await past.more()
    moments = []
    for name in ("by name", "by lsn", "by time"):
        moments.append(await past.moment(name))
        await past.more()
    writers.set()
    await past.archived()
    by_name, by_lsn, by_time = moments
    for moment, target in (
        (by_name, {"recovery_target_name": by_name.name}),
        (by_lsn, {"recovery_target_lsn": by_lsn.lsn}),
        (by_time, {"recovery_target_time": by_time.time}),
    ):
        recovered = await asyncio.to_thread(past.recover, moment.name.replace(" ", "-"), **target)
        try:
            check_as_it_was(recovered, past, moment)
            await go_on(recovered)
        finally:
            recovered.stop()


async def go_on(cluster: Cluster | _Database) -> None:
    """Use what was recovered: numbers go on without a clash, and every conversation can be gone on with."""
    ((highest, requests),) = cluster.rows(
        "SELECT (SELECT max(id) FROM turnkeep.checkpoint), (SELECT max(number) FROM turnkeep.request)"
    )
    assert isinstance(highest, int)
    assert isinstance(requests, int)
    async with turnkeep.open(cluster.conninfo) as store:
        for number in range(WRITERS):
            branch = await store.conversation(f"writer {number}")
            await branch.save([STEP], final=True) if branch.turn_open else await branch.begin_turn(USER)
            await store.post(f"writer {number}", USER, key="afterwards")
    ((least, count, posted),) = cluster.rows(
        "SELECT min(id), count(*), (SELECT min(number) FROM turnkeep.request WHERE key = 'afterwards')"
        " FROM turnkeep.checkpoint WHERE id > %s",
        highest,
    )
    assert isinstance(least, int)
    assert isinstance(posted, int)
    assert (least > highest, count, posted > requests) == (True, WRITERS, True)


async def test_whoever_knows_more_than_was_recovered_is_told_and_writes_nothing_into_the_past(past: Past) -> None:
    await asyncio.to_thread(past.primary.backup, past.backup)
    hosts = f"{past.primary.directory},{past.place / 'recovered'}"
    both = make_conninfo(past.primary.conninfo, host=hosts, port=f"{PORT},{PORT}", target_session_attrs="read-write")
    async with turnkeep.open(both, timeout=60, pool_size=2) as store:
        names = ("behind", "same place", "leased", "leased later", "expired", "untouched")
        old = {name: await store.conversation(name, agent_id="desk") for name in names}
        for name in ("leased", "expired"):
            await old[name].claim(owner="the old world", seconds=3600 if name == "leased" else 0.5)
        for branch in old.values():
            await branch.begin_turn(USER)
        await store.post("untouched", USER, key="before")
        moment = await past.moment("then")

        await old["behind"].save([STEP])
        await old["same place"].save([{**STEP, "content": "lost"}])
        await old["leased"].save([STEP])
        await old["leased later"].claim(owner="the old world", seconds=3600)
        await store.post("untouched", USER, key="after")
        newcomer = await store.conversation("newcomer")
        await newcomer.begin_turn(USER)
        await past.archived()
        past.primary.kill()
        recovered = await asyncio.to_thread(past.recover, "recovered", recovery_target_name=moment.name)
        try:
            async with turnkeep.open(recovered.conninfo) as others:
                other = await others.conversation("same place")
                await other.save([{**STEP, "content": "of the new world"}])
                every = "SELECT conversation_id, write_id FROM turnkeep.checkpoint ORDER BY 1, 2"
                before = recovered.rows(every)
                for name in ("behind", "same place", "leased"):
                    with pytest.raises(turnkeep.ConflictError):
                        await old[name].save([STEP])
                with pytest.raises(turnkeep.LeaseLostError):
                    await old["leased later"].save([STEP])
                with pytest.raises(turnkeep.LeaseLostError):
                    await old["leased later"].renew()
                with pytest.raises(turnkeep.NotFoundError):
                    await newcomer.save([STEP])
                assert recovered.rows(every) == before

                # A lease of before the moment holds as long as it would have: its holder goes on from what there is.
                with pytest.raises(turnkeep.LeaseHeldError):
                    await (await others.conversation("leased")).save([STEP])
                await old["leased"].refresh()
                await old["leased"].save([STEP])
                ended = time.monotonic() + 60
                while not (taken := await others.claim_waiting(["desk"], limit=9, owner="new", seconds=60)):
                    assert time.monotonic() < ended
                assert {branch.conversation_id for branch in taken} == {old["expired"].conversation_id}
                with pytest.raises(turnkeep.LeaseLostError):
                    await old["expired"].save([STEP])

                # Keys of before are known, keys of after it are new: what was lost is posted again, once.
                posted = [await others.post("untouched", USER, key=key) for key in ("before", "after", "after")]
                assert len(posted) == 3
                keys = recovered.rows(
                    "SELECT key FROM turnkeep.request WHERE conversation_id = %s ORDER BY number",
                    old["untouched"].conversation_id,
                )
                assert keys == [("before",), ("after",)]
                await old["behind"].refresh()
                await old["behind"].save([{**STEP, "content": "again"}], final=True)
                said = [m["content"] for m in (await others.restore("behind")).messages]
                assert said == ["hello", "again"]
                check_whole(recovered)
        finally:
            recovered.stop()


@pytest.mark.parametrize("scope", ["the database", "the schema"])
async def test_a_dump_taken_beside_writers_is_whole_and_works_where_it_is_restored(
    past: Past, writers: asyncio.Event, scope: str
) -> None:
    cluster = past.primary
    own = make_conninfo(cluster.conninfo, dbname="restored")
    with psycopg.connect(cluster.conninfo, autocommit=True) as connection:
        connection.execute("CREATE DATABASE restored TEMPLATE template0")
    assert run("grant", "--reader", "dashboard", "--writer", "agents", "--create", dsn=cluster.conninfo).code == 0
    moment = await past.moment("dumped")
    file = str(cluster.directory / "dump")
    only = ["--schema=turnkeep"] if scope == "the schema" else []
    await asyncio.to_thread(cluster.run, "pg_dump", "-Fc", "-f", file, *only, cluster.conninfo)
    finished = past.ledger.next()
    await past.more()
    writers.set()
    if only:  # which the extension does not belong to
        with psycopg.connect(own, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector SCHEMA public")
    await asyncio.to_thread(cluster.run, "pg_restore", "--exit-on-error", "-d", own, file)
    restored = _Database(own)
    check_as_it_was(restored, past, Moment("dumped", "", "", moment.after, finished))
    assert run("migrate", "--status", dsn=own).code == 0
    await go_on(restored)
    for described in (
        "SELECT count(*) FROM pg_description AS d JOIN pg_class AS c ON c.oid = d.objoid"
        " WHERE c.relnamespace = 'turnkeep'::regnamespace",
        "SELECT array_agg(p.proname || coalesce(p.proacl::text, '') ORDER BY p.oid::regprocedure::text)::text"
        " FROM pg_proc AS p WHERE p.pronamespace = 'turnkeep'::regnamespace",
        "SELECT array_agg(defaclobjtype::text || defaclacl::text ORDER BY defaclobjtype)::text FROM pg_default_acl",
        "SELECT array_agg(c.relname || coalesce(c.reloptions::text, '') ORDER BY c.relname)::text FROM pg_class AS c"
        " WHERE c.relnamespace = 'turnkeep'::regnamespace",
    ):
        assert restored.rows(described) == cluster.rows(described)
    async with turnkeep.open(make_conninfo(own, user="agents")) as store:
        await (await store.conversation("by the writer")).begin_turn(USER)
    with psycopg.connect(make_conninfo(own, user="dashboard")) as connection:
        assert connection.execute("SELECT count(*) > 0 FROM turnkeep.all_checkpoints").fetchall() == [(True,)]


class _Database:
    """A database that is looked at as a cluster is."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo

    def rows(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return connection.execute(query.encode(), parameters or None).fetchall()
