"""G9: whatever stands in a json column, every view answers, through a driver and through psql."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conftest import _database
from tests.store.plain_sql import connect, psql
from tests.store.test_exact import AWKWARD
from turnkeep.embedded import EmbeddedPostgres

VIEWS = ("all_checkpoints", "all_messages", "pending_calls")  # the others are parts of the first two
# Made by the server, so that no test has to carry it: an SQL expression for the text of a JSON value.
LARGE = {
    "34 MB of numbers": "'[1' || repeat(',1', 17000000) || ']'",
    "numbers that are spelled out at length": "'[1' || repeat(',1e99', 500000) || ']'",
    "17 MB of text": "'\"' || repeat('x', 17000000) || '\"'",
}
# One turn with a call, its result, another call, and everywhere the same value.
FILL = """
SELECT create_v1(%(id)s, %(name)s, 'awkward');
CREATE TEMPORARY TABLE given AS SELECT (EXPRESSION)::json AS v;
SELECT save_v1(%(id)s, 0, -1, 0, 0, 0, gen_random_uuid(), false, 'input', 'awkward', 1, body, NULL, NULL, NULL, v)
FROM given CROSS JOIN json_build_object('role', 'user', 'content', v) AS body;
SELECT save_v1(%(id)s, 0, 0, 0, 0, 0, gen_random_uuid(), false, 'tool_calls', 'awkward', 1, body, calls, NULL, NULL, v)
FROM given CROSS JOIN json_build_object('role', 'assistant', 'content', v) AS body
CROSS JOIN json_build_array(v, body) AS calls;
SELECT save_v1(%(id)s, 0, 0, 1, 0, 0, gen_random_uuid(), false, 'tool_results', 'awkward', 1, body, NULL, results,
    '{0,1,0}', v)
FROM given CROSS JOIN json_build_object('role', 'tool', 'content', v) AS body
CROSS JOIN json_build_array(v) AS results;
SELECT post_v1(%(id)s, NULL, 'a key', json_build_array(v), 'digest') FROM given;
UPDATE branch SET status = 'failed', failure = json_build_object('type', 'x', 'message', v)
FROM given WHERE conversation_id = %(id)s;
DROP TABLE given;
"""
# The number of messages in a conversation, and the text of each.
TOTALS = {
    "over 64 MB": (7, """'{"role":"user","c":"' || repeat('x', 10000000) || '"}'"""),
    "over 256 MB": (28, """'{"role":"user","c":"' || repeat('x', 10000000) || '"}'"""),
    "over 256 MB as jsonb": (3, """'{"role":"user","n":[1' || repeat(',1', 7500000) || ']}'"""),
}


def fill(connection: psycopg.Connection[Any], name: str, expression: str) -> uuid.UUID:
    """A conversation that holds a value in each of its json columns."""
    conversation = uuid.uuid5(uuid.NAMESPACE_OID, name)
    script = FILL.replace("EXPRESSION", expression)
    for statement in script.split(";\n"):
        if statement.strip():
            connection.execute(statement.encode(), {"id": conversation, "name": name})
    return conversation


def fill_total(connection: psycopg.Connection[Any], name: str, count: int, expression: str) -> None:
    """A conversation of that many messages."""
    conversation = uuid.uuid5(uuid.NAMESPACE_OID, name)
    connection.execute("SELECT create_v1(%s, %s, 'awkward')", (conversation, name))
    for number in range(count):
        statement = (
            "SELECT save_v1(%s, 0, %s, %s, 0, 0, gen_random_uuid(), false, %s, 'awkward', 1, (EXPRESSION)::json)"
        )
        connection.execute(
            statement.replace("EXPRESSION", expression).encode(),
            (conversation, min(number - 1, 0), max(number - 1, 0), "step" if number else "input"),
        )


@pytest.fixture(scope="module")
def awkward(server: EmbeddedPostgres, template: str) -> Iterator[str]:
    """A database that holds everything there is no jsonb for, and everything there is too much of."""
    for dsn in _database(server, template):
        with connect(dsn) as connection:
            for name, text in AWKWARD.items():
                quoted = "'" + text.replace("'", "''") + "'"
                fill(connection, name, quoted)
            for name, expression in LARGE.items():
                fill(connection, name, expression)
            for name, (count, expression) in TOTALS.items():
                fill_total(connection, name, count, expression)
        yield dsn


def conversations(dsn: str) -> list[tuple[uuid.UUID, str]]:
    with connect(dsn) as connection:
        return connection.execute("SELECT conversation_id, external_id FROM conversation").fetchall()


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_answers_for_every_value(awkward: str, view: str) -> None:
    query = sql.SQL("SELECT * FROM {} WHERE conversation_id = %s").format(sql.Identifier(view))
    with connect(awkward) as connection:
        for conversation, name in conversations(awkward):
            if name not in TOTALS:
                assert connection.execute(query, (conversation,)).fetchall(), name


def test_every_view_answers_in_psql(awkward: str) -> None:
    query = "SELECT * FROM turnkeep.VIEW WHERE conversation_id = 'ID';\n"
    script = "".join(
        query.replace("VIEW", view).replace("ID", str(conversation))
        for view in VIEWS
        for conversation, name in conversations(awkward)
        if name in AWKWARD or name == "17 MB of text"
    )
    ran = psql(awkward, script, "-o", "/dev/null")
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_what_no_view_has_is_shown_by_the_same_function(awkward: str) -> None:
    with connect(awkward) as connection:
        rows = connection.execute(
            "SELECT shown(b.failure), shown(r.body) FROM branch AS b JOIN request AS r USING (conversation_id, branch)"
        ).fetchall()
    assert len(rows) == len(AWKWARD) + len(LARGE)
    assert all(isinstance(failure, dict) and isinstance(body, list | dict) for failure, body in rows)


def test_what_is_too_large_says_so_and_what_stands_beside_it_is_there(awkward: str) -> None:
    with connect(awkward) as connection:
        for conversation, name in conversations(awkward):
            if name in LARGE:
                rows = connection.execute(
                    "SELECT state::text, left(messages::text, 200), tool_results::text FROM agent_checkpoints"
                    " WHERE conversation_id = %s",
                    (conversation,),
                ).fetchall()
                assert all("too l" in shown for row in rows for shown in row if shown is not None), name
                messages = connection.execute(
                    "SELECT role, octet_length(body_text), body ? 'turnkeep_unrepresentable' FROM agent_messages"
                    " WHERE conversation_id = %s",
                    (conversation,),
                ).fetchall()
                assert [role for role, *_ in messages] == ["user", "assistant", "tool"]
                assert all(length > 2_500_000 and hidden for _, length, hidden in messages)


def test_a_conversation_too_large_to_show_says_so_and_is_read_by_message(awkward: str) -> None:
    with connect(awkward) as connection:
        for conversation, name in conversations(awkward):
            if name in TOTALS:
                row = connection.execute(
                    "SELECT messages FROM agent_checkpoints WHERE conversation_id = %s ORDER BY sub_step DESC LIMIT 1",
                    (conversation,),
                ).fetchone()
                assert row is not None
                assert list(row[0]) == ["turnkeep_unrepresentable"], name
                count = connection.execute(
                    "SELECT count(*), min(octet_length(body_text)) FROM agent_messages"
                    " WHERE conversation_id = %s AND role = 'user'",
                    (conversation,),
                ).fetchone()
                assert count is not None
                assert count[0] == TOTALS[name][0]
                assert count[1] > 10_000_000
