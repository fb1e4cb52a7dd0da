"""G11: any schema, beside other applications, with and without pgvector, without a superuser's rights."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.conftest import Server
from turnkeep._version import REVISION
from turnkeep.search import EmbedWorker, LocalEmbeddings
from turnkeep.store import plan, status

USER = {"role": "user", "content": "hello"}


def run(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return rows


def embedding_type(dsn: str, schema: str = "turnkeep") -> str:
    view = sql.Identifier(schema, "agent_checkpoints").as_string(None)
    query = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attname = 'embedding' AND attrelid = "
    rows = run(dsn, query + sql.Literal(view).as_string(None) + "::regclass")
    return str(rows[0][0])


async def talk(dsn: str, schema: str = "turnkeep") -> None:
    async with turnkeep.open(dsn, schema=schema) as store:
        branch = await store.conversation("c")
        await branch.begin_turn(USER, key=str(uuid.uuid4()))
        await branch.save([{"role": "assistant"}], final=True)
        assert (await store.restore("c")).messages[-2:] == [USER, {"role": "assistant"}]


@pytest.fixture
def owner(empty_dsn: str, server: Server) -> Iterator[str]:
    """The conninfo of a role that owns its database and is no superuser."""
    role = f"owner_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        name = sql.Identifier(role)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
        connection.execute(
            sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(connection.info.dbname), name)
        )
    yield make_conninfo(empty_dsn, user=role)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("REASSIGN OWNED BY {} TO postgres").format(name))
        connection.execute(sql.SQL("DROP OWNED BY {}").format(name))
        connection.execute(sql.SQL("DROP ROLE {}").format(name))


async def test_migrate_makes_the_schema_once(empty_dsn: str) -> None:
    before = status(empty_dsn)
    assert (before.exists, before.current, [m.applied for m in before.migrations]) == (False, False, [False] * REVISION)
    assert turnkeep.migrate(empty_dsn).current
    applied = run(empty_dsn, "SELECT number, applied_at FROM turnkeep.migration ORDER BY 1")
    assert turnkeep.migrate(empty_dsn).current
    assert run(empty_dsn, "SELECT number, applied_at FROM turnkeep.migration ORDER BY 1") == applied
    await talk(empty_dsn)


@pytest.mark.parametrize(
    "schema", ["agents", "My Schema", 'quo"te', "ünï.cödé", "x" * 63, "select", "{braces}", "50%s"]
)
async def test_any_name_will_do_for_the_schema(empty_dsn: str, schema: str) -> None:
    turnkeep.migrate(empty_dsn, schema)
    await talk(empty_dsn, schema)
    with psycopg.connect(empty_dsn) as connection:
        query = sql.SQL("SELECT messages FROM {} ORDER BY sub_step").format(sql.Identifier(schema, "agent_checkpoints"))
        assert len(connection.execute(query).fetchall()[-1][0]) == 2


@pytest.mark.parametrize("schema", ["", "x" * 64, "a\0b", "pg_mine"])
def test_a_name_that_postgres_refuses_is_refused_first(schema: str) -> None:
    with pytest.raises(turnkeep.ConfigurationError, match="schema"):
        turnkeep.open("host=nowhere", schema=schema)


async def test_schemas_stand_side_by_side_and_apart(empty_dsn: str) -> None:
    for schema in ("one", "two"):
        turnkeep.migrate(empty_dsn, schema)
    await talk(empty_dsn, "one")
    assert run(empty_dsn, "SELECT count(*) FROM two.checkpoint") == [(0,)]
    assert run(empty_dsn, "SELECT count(*) FROM one.checkpoint") == [(2,)]


@pytest.mark.pgvector
async def test_without_a_superusers_rights_everything_but_vectors_works(owner: str, empty_dsn: str) -> None:
    result = turnkeep.migrate(owner)
    assert result.current
    assert result.vector_hint is not None
    assert "CREATE EXTENSION vector" in result.vector_hint
    await talk(owner)
    assert embedding_type(owner) == "real[]"

    run(empty_dsn, "CREATE EXTENSION vector")
    assert not status(owner).current
    await talk(owner)  # and nothing stands still until then
    assert turnkeep.migrate(owner).vector_hint is None
    assert embedding_type(owner) == "vector(768)"
    await talk(owner)


@pytest.mark.pgvector
async def test_embeddings_stored_before_pgvector_came_are_kept(owner: str, empty_dsn: str) -> None:
    turnkeep.migrate(owner)
    await talk(owner)
    run(owner, "UPDATE turnkeep.document SET embedding = array_fill(0.5::real, ARRAY[768])")
    run(empty_dsn, "CREATE EXTENSION vector")
    turnkeep.migrate(owner)
    rows = run(owner, "SELECT embedding::real[] FROM turnkeep.agent_checkpoints WHERE phase = 'final'")
    assert rows == [([0.5] * 768,)]


@pytest.mark.pgvector
async def test_a_view_of_others_that_stands_in_pgvectors_way_is_named(owner: str, empty_dsn: str) -> None:
    turnkeep.migrate(owner)
    await talk(owner)
    mine = "CREATE VIEW public.mine AS SELECT conversation_id, messages FROM turnkeep.agent_checkpoints"
    run(empty_dsn, mine, "CREATE EXTENSION vector")
    with pytest.raises(turnkeep.SchemaError, match=r"(?s)mine.*Drop those, run `turnkeep migrate`"):
        turnkeep.migrate(owner)
    assert embedding_type(owner) == "real[]"
    await talk(owner)  # and nothing stands still until then
    run(empty_dsn, "DROP VIEW public.mine")
    assert turnkeep.migrate(owner).current
    run(empty_dsn, mine)
    assert len(run(empty_dsn, "SELECT * FROM public.mine")) == 4


@pytest.mark.pgvector
def test_what_to_ask_an_administrator_for_is_said_again_each_time(owner: str) -> None:
    first = turnkeep.migrate(owner)
    again = turnkeep.migrate(owner)
    assert first.current
    assert first.vector_hint is not None
    assert again.vector_hint is not None
    assert again.vector_hint in first.vector_hint  # the first one says why, too
    assert (
        f"CREATE EXTENSION vector in database {psycopg.conninfo.conninfo_to_dict(owner)['dbname']}" in first.vector_hint
    )


@pytest.mark.pgvector
async def test_pgvector_may_live_in_any_schema(empty_dsn: str) -> None:
    run(empty_dsn, 'CREATE SCHEMA "ext-1"', 'CREATE EXTENSION vector SCHEMA "ext-1"')
    turnkeep.migrate(empty_dsn)
    await talk(empty_dsn)
    assert embedding_type(empty_dsn) == '"ext-1".vector(768)'


def test_a_role_without_rights_is_told_which(owner: str, empty_dsn: str) -> None:
    run(empty_dsn, "ALTER DATABASE " + psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"] + " OWNER TO postgres")  # type: ignore[operator]
    with pytest.raises(turnkeep.PermissionDeniedError, match="permission denied for database"):
        turnkeep.migrate(owner)


async def test_a_prepared_schema_is_enough_for_a_role_that_may_create_none(owner: str, empty_dsn: str) -> None:
    dbname = psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"]
    role = psycopg.conninfo.conninfo_to_dict(owner)["user"]
    run(empty_dsn, f"ALTER DATABASE {dbname} OWNER TO postgres", f"CREATE SCHEMA turnkeep AUTHORIZATION {role}")
    assert turnkeep.migrate(owner).current
    await talk(owner)


def test_a_database_in_another_encoding_is_refused_and_left_as_it_was(server: Server) -> None:
    name = f"latin_{uuid.uuid4().hex}"
    run(
        server.conninfo,
        f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )
    dsn = make_conninfo(server.conninfo, dbname=name)
    with pytest.raises(turnkeep.ConfigurationError, match="LATIN1"):
        turnkeep.migrate(dsn)
    assert run(dsn, "SELECT count(*) FROM pg_namespace WHERE nspname = 'turnkeep'") == [(0,)]
    run(server.conninfo, f"DROP DATABASE {name}")


async def test_a_missing_schema_is_an_error_that_names_the_remedy(empty_dsn: str) -> None:
    with pytest.raises(turnkeep.SchemaError, match="turnkeep init"):
        async with turnkeep.open(empty_dsn):
            pass


async def test_a_schema_of_an_older_release_is_an_error_that_names_the_remedy(dsn: str) -> None:
    run(dsn, "DELETE FROM turnkeep.migration WHERE number > 0")
    with pytest.raises(turnkeep.SchemaError, match="turnkeep migrate"):
        async with turnkeep.open(dsn):
            pass


async def test_a_failure_halfway_leaves_nothing(empty_dsn: str) -> None:
    run(empty_dsn, "CREATE SCHEMA turnkeep", "CREATE VIEW turnkeep.document AS SELECT 1 AS x")
    with pytest.raises(turnkeep.DatabaseError):
        turnkeep.migrate(empty_dsn)
    assert run(empty_dsn, "SELECT relname FROM pg_class WHERE relnamespace = 'turnkeep'::regnamespace") == [
        ("document",)
    ]
    run(empty_dsn, "DROP VIEW turnkeep.document")
    assert turnkeep.migrate(empty_dsn).current


async def test_views_of_others_on_ours_stay(dsn: str) -> None:
    run(dsn, "CREATE VIEW public.mine AS SELECT conversation_id, messages FROM turnkeep.agent_checkpoints")
    run(dsn, "UPDATE turnkeep.migration SET digest = 'older' WHERE number = 0")
    assert turnkeep.migrate(dsn).current
    await talk(dsn)
    assert len(run(dsn, "SELECT * FROM public.mine")) == 2


async def test_an_older_release_leaves_newer_functions_alone(dsn: str) -> None:
    run(dsn, "UPDATE turnkeep.migration SET digest = 'newer', name = '99.0.0' WHERE number = 0")
    assert turnkeep.migrate(dsn).current
    assert run(dsn, "SELECT digest FROM turnkeep.migration WHERE number = 0") == [("newer",)]
    await talk(dsn)


def test_a_lock_that_somebody_else_holds_ends_in_an_error(dsn: str) -> None:
    run(dsn, "UPDATE turnkeep.migration SET digest = 'older' WHERE number = 0")
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE turnkeep.migration IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(turnkeep.UnavailableError, match="lock"):
            turnkeep.migrate(dsn, timeout=0.2)
    assert turnkeep.migrate(dsn).current


def test_the_revision_of_the_release_is_its_newest_migration(dsn: str) -> None:
    assert max(migration.number for migration in status(dsn).migrations) == REVISION


async def test_a_schema_of_the_first_revision_is_brought_up_to_date(dsn: str) -> None:
    await talk(dsn)
    run(
        dsn,
        "DELETE FROM turnkeep.migration WHERE number = 2",
        "UPDATE turnkeep.migration SET digest = 'older' WHERE number = 0",
        "DROP INDEX turnkeep.request_waiting",
        "DROP FUNCTION turnkeep.claim_v1",
        "CREATE FUNCTION turnkeep.claim_v1(uuid, int, text, bigint, float8) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    )
    assert turnkeep.migrate(dsn).current
    assert run(dsn, "SELECT count(*) FROM pg_proc WHERE proname = 'claim_v1' AND pronargs = 6") == [(1,)]
    assert run(dsn, "SELECT count(*) FROM pg_proc WHERE proname = 'claim_v1'") == [(1,)]
    async with turnkeep.open(dsn) as store:
        await store.post("c", "hello", agent_id="support")
    await talk(dsn)


async def test_a_writer_and_a_reader_need_the_rights_that_are_told_and_no_more(empty_dsn: str) -> None:
    turnkeep.migrate(empty_dsn)
    suffix = uuid.uuid4().hex[:8]
    writer, reader = f"writer_{suffix}", f"reader_{suffix}"
    run(
        empty_dsn,
        f"CREATE ROLE {writer} LOGIN",
        f"CREATE ROLE {reader} LOGIN",
        f"GRANT USAGE ON SCHEMA turnkeep TO {writer}, {reader}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA turnkeep TO {writer}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA turnkeep TO {reader}",
    )
    try:
        as_writer, as_reader = (make_conninfo(empty_dsn, user=role) for role in (writer, reader))
        await talk(as_writer)
        assert turnkeep.migrate(as_writer).current
        async with turnkeep.open(as_writer) as store:
            await store.post("c", "more", key="m", agent_id="desk")
            await store.fork("c", name="other")
            for _ in range(2):  # the second finds nothing
                await store.erase("c")
        await talk(as_writer)
        assert len(run(as_reader, "SELECT messages, state FROM turnkeep.agent_checkpoints")) == 2
        async with turnkeep.open(as_reader) as store:
            assert len((await store.restore("c")).messages) == 2
            with pytest.raises(turnkeep.PermissionDeniedError):
                await (await store.conversation("c")).begin_turn(USER)
    finally:
        run(empty_dsn, f"DROP OWNED BY {writer}, {reader}", f"DROP ROLE {writer}, {reader}")


async def filled_and_given_vectors(dsn: str) -> None:
    async with turnkeep.open(dsn) as store:
        await EmbedWorker(store, LocalEmbeddings()).run(drain=True)


@pytest.mark.pgvector
@pytest.mark.parametrize("back", [False, True])
async def test_what_went_with_pgvector_is_put_back(empty_dsn: str, back: bool) -> None:
    turnkeep.migrate(empty_dsn)
    await talk(empty_dsn)
    await filled_and_given_vectors(empty_dsn)
    run(empty_dsn, "DROP EXTENSION vector CASCADE")
    await talk(empty_dsn)  # saves go on
    if back:
        run(empty_dsn, "CREATE EXTENSION vector")
        with pytest.raises(turnkeep.SchemaError, match="turnkeep migrate"):
            await filled_and_given_vectors(empty_dsn)
        found = status(empty_dsn)
        assert set(found.missing) == {"column document.embedding", "view agent_checkpoints", "view all_checkpoints"}
        assert not found.current
        assert plan(empty_dsn)
    assert turnkeep.migrate(empty_dsn).current
    assert not plan(empty_dsn)
    assert embedding_type(empty_dsn) == "vector(768)"
    await filled_and_given_vectors(empty_dsn)
    rows = run(empty_dsn, "SELECT count(*), count(embedding), count(text) FROM turnkeep.document")
    assert rows == [(2, 2, 2)]
    assert run(empty_dsn, "SELECT count(*) FROM pg_indexes WHERE indexname = 'document_model'") == [(1,)]


async def test_a_table_that_is_away_is_named_and_not_made_anew(empty_dsn: str) -> None:
    turnkeep.migrate(empty_dsn)
    run(empty_dsn, "ALTER TABLE turnkeep.document RENAME TO papers", "DROP VIEW turnkeep.pending_calls")
    assert set(status(empty_dsn).missing) == {"table document", "view pending_calls"}
    with pytest.raises(turnkeep.SchemaError, match="lacks table document"):
        turnkeep.migrate(empty_dsn)
    run(empty_dsn, "ALTER TABLE turnkeep.papers RENAME TO document")
    assert turnkeep.migrate(empty_dsn).current
    run(empty_dsn, "SELECT FROM turnkeep.pending_calls")
