"""`turnkeep grant`: real logins that may do what they are for, and nothing else."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.acceptance.command_line import run
from turnkeep.search import EmbedWorker, Search

USER = {"role": "user", "content": "hello"}
RELATIONS = (
    "SELECT relname, relkind FROM pg_class WHERE relnamespace = 'turnkeep'::regnamespace AND relkind IN ('r', 'v')"
)
Named = Callable[[str], str]


def alter(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def name(dsn: str) -> Iterator[Named]:
    """Names of roles of the test's own, which are gone afterwards."""
    own = uuid.uuid4().hex[:8]
    given: list[str] = []

    def make(text: str) -> str:
        given.append(f"{text}{own}")
        return given[-1]

    yield make
    with psycopg.connect(dsn, autocommit=True) as connection:
        for role in given:
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                for statement in ("DROP OWNED BY {}", "DROP ROLE {}"):
                    connection.execute(sql.SQL(statement).format(sql.Identifier(role)))


async def live_long(store: turnkeep.AsyncStore) -> None:
    """What is done with what is old: indexed, found, archived, carried over, pruned, expired."""
    branch = await store.conversation("old", agent_id="desk", ttl=timedelta(days=1))
    await branch.begin_turn({"role": "user", "content": "a walrus"})
    await branch.save([], final=True, embedding=[1.0, 2.0], embedding_model="m")
    await EmbedWorker(store).run(drain=True)
    assert [hit.external_id for hit in (await Search(store).search("walrus")).hits] == ["old"]
    await store.archive("old")
    file = io.BytesIO()
    await store.export(file, ["old"])
    await store.unarchive("old")
    await store.erase("old")
    assert (await store.import_(io.BytesIO(file.getvalue()))).conversations == 1
    await store.unarchive("old")
    await store.prune("old", older_than=timedelta(days=1))
    await store.set_retention("desk", timedelta(days=30))
    assert (await store.expire()).erased.conversations == 0
    await store.set_retention("desk", None)


async def do_everything(dsn: str) -> None:
    """What stores, workers and commands do, as the role of the DSN."""
    async with turnkeep.open(dsn) as store:
        branch = await store.conversation("c", agent_id="desk")
        await branch.begin_turn(USER, key="k")
        await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1"}], state={"n": 1})
        await branch.save([{"role": "tool"}], tool_results=[{"tool_call_id": "1"}])
        await branch.save_all([{"role": "summary"}], final=True)
        await store.post("c", USER, key="later")
        (taken,) = await store.claim_waiting(["desk"], limit=1, owner="w", seconds=60)
        assert await taken.take_request() is not None
        await taken.save([{"role": "assistant"}], final=True)
        await taken.release()
        fork = await store.fork("c", at=(0, 1))
        await fork.claim(owner="w")
        await fork.renew()
        await fork.release()
        await store.fork("c", into="copy")
        await store.update("c", title="t", tags=["a"], metadata={"x": 1})
        await store.switch("c", fork.branch)
        await store.end("copy")
        await store.reopen("copy")
        await branch.refresh()
        await branch.begin_turn(USER)
        async with branch.transaction() as transaction:
            await transaction.connection.execute("SELECT 1")
            await transaction.save([{"role": "tool"}])
        assert (await store.restore("c")).messages
        assert len(await store.conversations()) == 2
        await store.erase("copy")
        await live_long(store)
    with psycopg.connect(dsn, autocommit=True) as connection:
        insert = "INSERT INTO turnkeep.agent_checkpoints (conversation_id, turn_index, messages) VALUES (%s, 0, '[{}]')"
        connection.execute(insert, (uuid.uuid4(),))
        connection.execute("UPDATE turnkeep.document SET text = 'x', next_try_at = NULL")
        connection.execute("DELETE FROM turnkeep.document")
    for command in (("ls",), ("show", "c"), ("stats",), ("doctor",), ("erase", "c", "--yes")):
        ran = run(*command, dsn=dsn)
        assert ran.code == 0, (command, ran.out, ran.err)


def denied(connection: psycopg.Connection[tuple[object, ...]], statement: sql.SQL | sql.Composed) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


@pytest.mark.parametrize("public", [True, False], ids=["everybody may call functions", "nobody may by default"])
async def test_a_writer_can_do_everything_but_change_the_schema(dsn: str, name: Named, public: bool) -> None:
    if not public:
        alter(dsn, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA turnkeep FROM PUBLIC")
    role = name("writer")
    assert run("grant", "--writer", role, dsn=dsn).code == 2
    assert run("grant", "--writer", role, "--create", dsn=dsn).code == 0
    assert run("grant", "--writer", role, "--create", dsn=dsn).code == 0  # again is harmless
    own = make_conninfo(dsn, user=role)
    await do_everything(own)
    with psycopg.connect(own, autocommit=True) as connection:
        for refused in (
            "CREATE TABLE turnkeep.more ()",
            "ALTER TABLE turnkeep.branch ADD COLUMN x int",
            "DROP FUNCTION turnkeep.clock()",
            "TRUNCATE turnkeep.message",
            "INSERT INTO turnkeep.migration VALUES (99, 'x', NULL, now())",
            "CREATE OR REPLACE FUNCTION turnkeep.clock() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
        ):
            denied(connection, sql.SQL(refused))
    assert run("migrate", "--status", dsn=own).code == 0


@pytest.mark.parametrize("public", [True, False], ids=["everybody may call functions", "nobody may by default"])
async def test_a_reader_reads_all_and_writes_nothing(
    dsn: str, store: turnkeep.AsyncStore, name: Named, public: bool
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER, key="k")
    await branch.save(tool_calls=[{"id": "x"}], state={"n": 1})
    if not public:
        alter(dsn, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA turnkeep FROM PUBLIC")
    role = name("reader")
    assert run("grant", "--reader", role, "--create", dsn=dsn).code == 0
    own = make_conninfo(dsn, user=role)
    with psycopg.connect(own, autocommit=True) as connection:
        for relation, kind in connection.execute(RELATIONS).fetchall():
            table = sql.Identifier("turnkeep", relation)
            connection.execute(sql.SQL("SELECT * FROM {}").format(table)).fetchall()
            if kind == "r":
                for statement in ("DELETE FROM {}", "INSERT INTO {} DEFAULT VALUES", "TRUNCATE {}"):
                    denied(connection, sql.SQL(statement).format(table))
        insert = (
            "INSERT INTO turnkeep.agent_checkpoints (conversation_id, turn_index, messages) VALUES ({}, 0, '[{{}}]')"
        )
        denied(connection, sql.SQL(insert).format(sql.Literal(uuid.uuid4())))
        denied(connection, sql.SQL("SELECT turnkeep.create_v1(gen_random_uuid(), 'x', NULL)"))
        denied(connection, sql.SQL("SELECT turnkeep.erase_v1({})").format(sql.Literal(branch.conversation_id)))
    async with turnkeep.open(own) as reading:
        assert (await reading.restore("c")).messages == [USER]
        with pytest.raises(turnkeep.PermissionDeniedError):
            await reading.post("c", USER, key="p")
    for command in (("ls",), ("show", "c"), ("stats",)):
        assert run(*command, dsn=own).code == 0
    assert run("stats", "--json", dsn=own).out.count('"saves_drawn": 2') == 1


def test_what_a_later_release_adds_is_included(dsn: str, name: Named) -> None:
    reader, writer = name("reader"), name("writer")
    assert run("grant", "--reader", reader, "--writer", writer, "--create", dsn=dsn).code == 0
    alter(
        dsn,
        "CREATE TABLE turnkeep.later (n int GENERATED ALWAYS AS IDENTITY, t text)",
        "CREATE FUNCTION turnkeep.later_v1() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "REVOKE EXECUTE ON FUNCTION turnkeep.later_v1() FROM PUBLIC",
    )
    with psycopg.connect(make_conninfo(dsn, user=writer), autocommit=True) as connection:
        connection.execute("INSERT INTO turnkeep.later (t) VALUES ('x')")
        assert connection.execute("SELECT turnkeep.later_v1()").fetchall() == [(1,)]
    with psycopg.connect(make_conninfo(dsn, user=reader), autocommit=True) as connection:
        assert connection.execute("SELECT t FROM turnkeep.later").fetchall() == [("x",)]
        denied(connection, sql.SQL("DELETE FROM turnkeep.later"))


@pytest.mark.parametrize("text", ['"; DROP SCHEMA turnkeep CASCADE; --', "Ärger {} %s", "sel'ect"])
def test_a_hostile_name_is_only_a_name(dsn: str, name: Named, text: str) -> None:
    role = name(text)
    assert run("grant", "--reader", role, "--create", dsn=dsn).code == 0
    with psycopg.connect(make_conninfo(dsn, user=role), autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM turnkeep.conversation").fetchall() == [(0,)]
    assert run("grant", "--reader", role, "--revoke", dsn=dsn).code == 0


@pytest.mark.parametrize("role", ["", "public", "pg_monitor", "x" * 64, "ä" * 32])
def test_a_name_that_would_mean_another_role_is_refused(dsn: str, role: str) -> None:
    assert run("grant", "--reader", role, "--create", dsn=dsn).code == 2


def test_the_printed_sql_does_the_same_and_rights_are_taken_back(dsn: str, name: Named) -> None:
    role = name("reader")
    printed = run("grant", "--reader", role, "--create", "--sql", dsn=dsn)
    assert printed.code == 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchall()
    alter(dsn, printed.out)
    own = make_conninfo(dsn, user=role)
    assert run("ls", dsn=own).code == 0
    record = json.loads(run("grant", "--reader", role, "--revoke", "--dry-run", "--json", dsn=dsn).out)
    assert (record["changed"], record["kind"]) == (False, "reader")
    assert run("ls", dsn=own).code == 0
    assert run("grant", "--reader", role, "--revoke", dsn=dsn).code == 0
    assert run("ls", dsn=own).code == 1
    left = "SELECT count(*) FROM pg_shdepend AS d JOIN pg_roles AS r ON r.oid = d.refobjid WHERE r.rolname = %s"
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute(left, (role,)).fetchall() == [(0,)]
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_who_may_not_grant_is_told_and_nothing_is_half_done(dsn: str, name: Named) -> None:
    role, other = name("weak"), name("other")
    alter(dsn, f'CREATE ROLE "{role}" LOGIN', f'CREATE ROLE "{other}" LOGIN')
    refused = run("grant", "--writer", other, dsn=make_conninfo(dsn, user=role))
    assert refused.code == 1
    assert run("ls", dsn=make_conninfo(dsn, user=other)).code == 1
    assert run("grant", dsn=dsn).code == 2
    assert run("grant", "--reader", other, "--schema", "nowhere", dsn=dsn).code == 1
    assert run("grant", "--reader", other, "--create", "--revoke", dsn=dsn).code == 2


def test_a_reader_is_judged_as_one_and_indexes_are_the_owners(dsn: str, name: Named) -> None:
    reader, writer = name("reader"), name("writer")
    assert run("grant", "--reader", reader, "--writer", writer, "--create", dsn=dsn).code == 0
    looked = run("doctor", dsn=make_conninfo(dsn, options=f"-c role={reader}"))
    assert (looked.code, "write nothing: a reader" in looked.out) == (0, True), looked.out
    assert "may read, write and call all" in run("doctor", dsn=make_conninfo(dsn, options=f"-c role={writer}")).out
    made = run("search", "--index", "--embeddings", "local", dsn=make_conninfo(dsn, options=f"-c role={writer}"))
    assert "run this as that role" in made.err
    alter(dsn, f'REVOKE INSERT ON turnkeep.message FROM "{writer}"')
    assert run("doctor", dsn=make_conninfo(dsn, options=f"-c role={writer}")).code == 6
