"""A role that reads everything, and writes nothing; and one that writes through the view."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.observing import Observer
from tests.store.plain_sql import connect
from turnkeep import AsyncStore

READS = """
GRANT USAGE ON SCHEMA turnkeep TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA turnkeep TO {role};
ALTER DEFAULT PRIVILEGES IN SCHEMA turnkeep GRANT SELECT ON TABLES TO {role};
"""
WRITES = "GRANT INSERT, UPDATE ON ALL TABLES IN SCHEMA turnkeep TO {role}"
INSERT = "INSERT INTO agent_checkpoints (conversation_id, turn_index, messages) VALUES (%s, %s, '[{}]')"
# A value for a parameter of each type.
VALUES = {
    "uuid": "(SELECT conversation_id FROM turnkeep.conversation LIMIT 1)",
    "integer": "0",
    "bigint": "7",
    "double precision": "1.5",
    "boolean": "false",
    "text": "'step'",
    "text[]": "'{title}'",
    "integer[]": "'{0,0,1}'",
    "bigint[]": "'{7}'",
    "real[]": "'{0.5}'",
    "uuid[]": "ARRAY(SELECT conversation_id FROM turnkeep.conversation)",
    "interval": "'1 day'",
    "timestamp with time zone": "now()",
    "bytea": "'x'",
    "json": """'[{"role": "user"}]'""",
    "jsonb": "'[]'",
    "turnkeep.branch": "(SELECT b FROM turnkeep.branch AS b LIMIT 1)",
    "turnkeep.checkpoint": "(SELECT c FROM turnkeep.checkpoint AS c LIMIT 1)",
}
FUNCTIONS = """
SELECT p.proname, coalesce(array_agg(format_type(a.type, NULL) ORDER BY a.ord) FILTER (WHERE a.ord IS NOT NULL), '{}')
FROM pg_proc AS p LEFT JOIN LATERAL unnest(p.proargtypes) WITH ORDINALITY AS a (type, ord) ON true
WHERE p.pronamespace = 'turnkeep'::regnamespace AND p.prorettype <> 'trigger'::regtype GROUP BY p.oid
"""


@pytest.fixture
def role(dsn: str) -> Iterator[Callable[..., str]]:
    """Make a role with these rights, and give the conninfo it connects with."""
    name = f"reader_{uuid.uuid4().hex[:8]}"

    def make(*grants: str) -> str:
        with connect(dsn) as connection:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
            for grant in grants:
                connection.execute(grant.format(role=name).encode())
        return make_conninfo(dsn, user=name)

    yield make
    with connect(dsn) as connection:
        for statement in ("DROP OWNED BY {}", "DROP ROLE {}"):
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


async def begin(store: AsyncStore) -> uuid.UUID:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user"}, key="k")
    await branch.save(tool_calls=[{"id": "x"}])
    await store.post("c", {"role": "user"}, key="waiting")
    return branch.conversation_id


def denied(connection: psycopg.Connection[Any], statement: Any, *parameters: object) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement, parameters or None)


async def test_a_reader_reads_every_view_and_table(store: AsyncStore, dsn: str, role: Callable[..., str]) -> None:
    await begin(store)
    with connect(role(READS)) as connection:
        names = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'turnkeep'::regnamespace"
                                   " AND relkind IN ('r', 'v')").fetchall()  # fmt: skip
        assert len(names) >= 12
        for (name,) in names:
            rows = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(name))).fetchall()
            assert rows or name in ("document", "archive", "retention"), name


async def test_a_reader_writes_nothing(store: AsyncStore, dsn: str, role: Callable[..., str]) -> None:
    conversation = await begin(store)
    with Observer(dsn) as observer, connect(role(READS)) as connection:
        before = observer.counts(), observer.heads()
        for (name,) in observer.rows("SELECT relname FROM pg_class WHERE relnamespace = 'turnkeep'::regnamespace"
                                     " AND relkind IN ('r', 'v')"):  # fmt: skip
            table = sql.Identifier(name)
            if name not in ("agent_messages", "all_messages", "all_checkpoints", "pending_calls"):
                denied(connection, sql.SQL("INSERT INTO {} DEFAULT VALUES").format(table))
                denied(connection, sql.SQL("DELETE FROM {}").format(table))
        denied(connection, "UPDATE agent_checkpoints SET phase = 'x'")
        denied(connection, INSERT, conversation, 1)
        denied(connection, INSERT, uuid.uuid4(), 0)
        denied(connection, "SELECT create_v1(gen_random_uuid(), 'other', NULL)")
        refused = set()
        for name, types in observer.rows(FUNCTIONS):
            call = f"SELECT turnkeep.{name}({', '.join(VALUES[one] for one in types)})"
            try:
                connection.execute(call.encode())
            except psycopg.errors.InsufficientPrivilege:
                refused.add(name)
            except psycopg.Error:
                pass
        assert refused >= {
            "save_v1", "post_v1", "take_v1", "claim_v1", "renew_v1", "release_v1", "resume_v1", "fork_v1",
            "fork_into_v1", "update_v1", "end_v1", "reopen_v1", "erase_v1", "switch_v1", "delete_branch_v1",
            "insert_branch", "insert_write",
        }  # fmt: skip
        assert (observer.counts(), observer.heads()) == before


async def test_a_writer_needs_no_right_to_delete(store: AsyncStore, dsn: str, role: Callable[..., str]) -> None:
    with connect(role(READS, WRITES)) as connection:
        conversation = uuid.uuid4()
        connection.execute(INSERT, (conversation, 0))
        connection.execute(INSERT, (conversation, 1))
        denied(connection, "DELETE FROM message")
    assert (await store.restore(conversation)).turn_index == 1


async def test_what_a_reader_may_read_stays_so_when_views_are_made_anew(dsn: str, role: Callable[..., str]) -> None:
    reader = role(READS)
    with connect(dsn) as connection:
        connection.execute("DROP VIEW agent_checkpoints, all_checkpoints")
        connection.execute("UPDATE migration SET digest = 'older' WHERE number = 0")
    turnkeep.migrate(dsn)
    with connect(reader) as connection:
        assert connection.execute("SELECT * FROM agent_checkpoints").fetchall() == []
