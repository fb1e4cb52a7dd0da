"""What people look up goes by an index: in a database of 20,000 checkpoints, analysed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import _database
from tests.store.plain_sql import connect
from turnkeep.embedded import EmbeddedPostgres

LONG = uuid.UUID(int=1)
SOME = uuid.UUID(int=77)
# A conversation of one turn of 6,000 sub-steps, and 700 of ten turns of two checkpoints each, some of them stopped.
FILL = """
INSERT INTO conversation (conversation_id, external_id, agent_id, created_at)
SELECT lpad(to_hex(n), 32, '0')::uuid, n, 'agent ' || n % 50, now() FROM generate_series(1, 701) AS n;
INSERT INTO branch (conversation_id, branch, name, status,
    turn_index, sub_step, next_position, turn_started_at, updated_at)
SELECT conversation_id, 0, 'main',
    CASE external_id::int % 100 WHEN 99 THEN 'failed' WHEN 98 THEN 'waiting' ELSE 'idle' END,
    CASE external_id WHEN '1' THEN 0 ELSE 9 END, CASE external_id WHEN '1' THEN 5999 ELSE 1 END, 20, now(), now()
FROM conversation;
INSERT INTO checkpoint (conversation_id, turn_index, sub_step, branch,
    parent_turn_index, parent_sub_step, parent_branch, phase, agent_id, created_at, write_id, spans, state)
SELECT conversation_id, n / 2, n % 2, 0, (n - 1) / 2, (n - 1) % 2, 0, CASE n % 2 WHEN 0 THEN 'input' ELSE 'final' END,
    agent_id, now() + n * interval '1 s', gen_random_uuid(), ARRAY[0, 0, n + 1],
    json_build_object('flags', json_build_object('requires_human_input', external_id = '78' AND n = 19))
FROM conversation CROSS JOIN generate_series(0, 19) AS n WHERE external_id <> '1' ORDER BY random();
UPDATE checkpoint SET parent_turn_index = NULL, parent_sub_step = NULL, parent_branch = NULL
WHERE turn_index = 0 AND sub_step = 0;
INSERT INTO checkpoint (conversation_id, turn_index, sub_step, branch,
    parent_turn_index, parent_sub_step, parent_branch, phase, agent_id, created_at, write_id, spans)
SELECT conversation_id, 0, n, 0, CASE WHEN n > 0 THEN 0 END, CASE WHEN n > 0 THEN n - 1 END, CASE WHEN n > 0 THEN 0 END,
    'step', agent_id, now() + n * interval '1 s', gen_random_uuid(), '{0,0,20}'
FROM conversation CROSS JOIN generate_series(0, 5999) AS n WHERE external_id = '1';
INSERT INTO message (conversation_id, branch, position, body, size)
SELECT conversation_id, 0, n, '{"role": "user"}', 16 FROM conversation CROSS JOIN generate_series(0, 19) AS n;
ANALYZE;
"""
WALK = """
WITH RECURSIVE walk AS (
    (SELECT {columns} FROM {view} AS p WHERE conversation_id = %s ORDER BY turn_index DESC, created_at DESC LIMIT 1)
    UNION ALL
    SELECT {columns} FROM walk AS w JOIN {view} AS p
        ON p.conversation_id = w.conversation_id AND p.turn_index = w.parent_turn_index
        AND p.sub_step = w.parent_sub_step AND p.branch = w.parent_branch
) SELECT * FROM walk
"""
PLACE = "p.id, p.conversation_id, p.parent_turn_index, p.parent_sub_step, p.parent_branch"
WAITING_FOR_A_PERSON = """SELECT id FROM agent_checkpoints WHERE state @> '{"flags": {"requires_human_input": true}}'"""


@pytest.fixture(scope="module")
def filled(server: EmbeddedPostgres, template: str) -> Iterator[str]:
    """The conninfo of a database with 20,000 checkpoints."""
    for dsn in _database(server, template):
        with connect(dsn) as connection:
            connection.execute(FILL)
        yield dsn


def explain(connection: psycopg.Connection[Any], query: str, *parameters: object) -> list[dict[str, Any]]:
    """The nodes of a query's plan, as it ran."""
    explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}"
    ((plan,),) = connection.execute(explained.encode(), parameters or None).fetchall()

    def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", []):
            yield from nodes(child)

    return list(nodes(plan[0]["Plan"]))


@pytest.mark.parametrize(
    ("query", "index", "condition"),
    [
        ("SELECT * FROM agent_checkpoints WHERE conversation_id = %s ORDER BY turn_index DESC, created_at DESC LIMIT 1",
         "checkpoint_pkey", "conversation_id"),
        ("SELECT * FROM agent_checkpoints WHERE conversation_id = %s AND turn_index = 5",
         "checkpoint_pkey", "turn_index = 5"),
        ("SELECT * FROM agent_checkpoints WHERE conversation_id = %s AND turn_index = 5 AND sub_step = 1",
         "checkpoint_pkey", "sub_step = 1"),
        ("SELECT * FROM all_checkpoints WHERE conversation_id = %s AND branch = 0", "checkpoint_pkey", "branch = 0"),
        ("SELECT * FROM agent_messages WHERE conversation_id = %s ORDER BY index", "message_pkey", "conversation_id"),
        ("SELECT * FROM all_messages WHERE conversation_id = %s AND branch = 0", "message_pkey", "conversation_id"),
        ("SELECT * FROM pending_calls WHERE conversation_id = %s", "branch_pkey", "conversation_id"),
    ],
)  # fmt: skip
def test_what_belongs_to_a_conversation_goes_by_its_keys(filled: str, query: str, index: str, condition: str) -> None:
    with connect(filled) as connection:
        nodes = explain(connection, query, SOME)
    assert any(node.get("Index Name") == index and condition in node.get("Index Cond", "") for node in nodes)
    assert not {"checkpoint", "message"} & {
        node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"
    }  # fmt: skip


def test_the_checkpoints_of_an_agent_go_by_an_index(filled: str) -> None:
    with connect(filled) as connection:
        nodes = explain(connection, "SELECT id, state FROM agent_checkpoints WHERE agent_id = 'agent 7'")
    assert "checkpoint_agent" in [node.get("Index Name") for node in nodes]


def test_stopped_branches_go_by_an_index(filled: str) -> None:
    with connect(filled) as connection:
        nodes = explain(connection, "SELECT * FROM branch WHERE status IN ('failed', 'waiting')")
        pending = explain(connection, "SELECT * FROM pending_calls WHERE status IN ('failed', 'waiting')")
    assert nodes[0]["Actual Rows"] == 14
    assert "branch_stopped" in [node.get("Index Name") for node in nodes]
    assert "branch_stopped" in [node.get("Index Name") for node in pending]


@pytest.mark.parametrize("status", ["ready", "running", "open"])
def test_branches_at_work_go_by_an_index(filled: str, status: str) -> None:
    with connect(filled) as connection:
        nodes = explain(connection, "SELECT * FROM branch WHERE status = %s", status)
    assert f"branch_{status}" in [node.get("Index Name") for node in nodes]


@pytest.mark.parametrize("view", ["agent_checkpoints", "all_checkpoints"])
def test_the_walk_by_place_takes_the_same_for_each_step(filled: str, view: str) -> None:
    with connect(filled) as connection:
        long = explain(connection, WALK.format(columns=PLACE, view=view), LONG)
        short = explain(connection, WALK.format(columns=PLACE, view=view), SOME)
    assert [nodes[0]["Actual Rows"] for nodes in (long, short)] == [6000, 20]
    for nodes in (long, short):
        steps = [node for node in nodes if "parent_sub_step" in node.get("Index Cond", "")]
        assert [(node["Index Name"], node["Actual Rows"] <= 1) for node in steps] == [("checkpoint_pkey", True)]
    # By id a step reads all rows of the conversation: hundreds of blocks.
    assert long[0]["Shared Hit Blocks"] < 6000 * 20


def test_states_are_looked_up_by_an_index_where_one_has_been_made(filled: str) -> None:
    with connect(filled) as connection:
        (found,) = connection.execute(WAITING_FOR_A_PERSON.encode()).fetchall()
        connection.execute(
            "CREATE INDEX CONCURRENTLY checkpoint_state ON checkpoint"
            " USING gin (turnkeep.shown_state(state, sub_step) jsonb_path_ops)"
        )
        nodes = explain(connection, WAITING_FOR_A_PERSON)
        assert connection.execute(WAITING_FOR_A_PERSON.encode()).fetchall() == [found]
        connection.execute("DROP INDEX checkpoint_state")
    assert "checkpoint_state" in [node.get("Index Name") for node in nodes]
    assert nodes[0]["Shared Hit Blocks"] < 100
