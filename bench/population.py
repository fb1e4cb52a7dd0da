"""A database full of conversations, made by a few statements: rows as the store would write them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import psycopg
from psycopg import sql

import turnkeep

TURNS = 13  # of four messages each, the last one of two
MESSAGES = 4 * (TURNS - 1) + 2
AGENTS = 50
_WORDS = 3_000
_PARAGRAPHS = 2_000


@dataclass(frozen=True)
class Population:
    """How many there are of what. Documents are one a turn; the first `vectors` of them have an embedding."""

    conversations: int
    vectors: int = 0

    @property
    def messages(self) -> int:
        """Messages, and as many checkpoints."""
        return self.conversations * MESSAGES


# Conversations are five minutes apart. Every second one has ended; of a hundred the first's turn is open, the second
# waits for a worker with a request, the third's lease has expired.
_CONVERSATIONS = """
INSERT INTO {schema}.conversation
    (conversation_id, external_id, agent_id, metadata, title, tags, next_branch, created_at, ended_at)
SELECT t.id, 'ticket-' || n, 'agent-' || n % {agents},
    jsonb_build_object('customer', n % 1000, 'tier', CASE WHEN n % 20 = 0 THEN 'gold' ELSE 'plain' END),
    'Ticket ' || n, ARRAY['tag-' || n % 30], 1, {start} + n * interval '5 minutes',
    CASE WHEN n % 2 = 1 AND n % 100 > 3 THEN {start} + n * interval '5 minutes' + interval '1 hour' END
FROM ticket AS t
"""
_BRANCHES = """
INSERT INTO {schema}.branch (conversation_id, branch, name, status, turn_index, sub_step, next_position, ready_at,
    turn_started_at, lease_owner, lease_token, lease_until, updated_at)
SELECT v.conversation_id, 0, 'main', k.status, {turns} - 1, CASE k.status WHEN 'open' THEN 0 ELSE 1 END,
    CASE k.status WHEN 'open' THEN {messages} - 1 ELSE {messages} END,
    CASE k.status WHEN 'ready' THEN v.created_at + interval '50 minutes' END, v.created_at + interval '40 minutes',
    CASE k.status WHEN 'running' THEN 'gone:1' END, CASE k.status WHEN 'running' THEN 7 ELSE 0 END,
    CASE k.status WHEN 'running' THEN v.created_at + interval '41 minutes' END, v.created_at + interval '45 minutes'
FROM {schema}.conversation AS v CROSS JOIN LATERAL (
    SELECT CASE WHEN v.ended_at IS NOT NULL THEN 'ended' ELSE
        CASE substr(v.external_id, 8)::int % 100 WHEN 1 THEN 'open' WHEN 2 THEN 'ready' WHEN 3 THEN 'running'
            ELSE 'idle' END
    END AS status) AS k
"""
_MESSAGES = """
INSERT INTO {schema}.message (conversation_id, branch, position, body, size)
SELECT m.conversation_id, 0, m.position, m.body::json, octet_length(m.body)
FROM (
    SELECT v.conversation_id, p AS position, CASE p % 4
            WHEN 0 THEN json_build_object('role', 'user', 'content', t.text || ' ' || v.external_id)
            WHEN 1 THEN json_build_object('role', 'assistant', 'content', NULL, 'metadata', json_build_object(
                'tool_calls', json_build_array(json_build_object('id', 'call_' || p, 'name', 'lookup'))))
            WHEN 2 THEN json_build_object('role', 'tool', 'content', t.text, 'metadata', json_build_object(
                'tool_name', 'lookup', 'tool_call_id', 'call_' || p - 1))
            ELSE json_build_object('role', 'assistant', 'content', t.text)
        END::text AS body
    FROM {schema}.conversation AS v CROSS JOIN generate_series(0, {messages} - 1) AS p
    JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id AND p < b.next_position
    JOIN paragraph AS t ON t.n = (substr(v.external_id, 8)::int * 31 + p * 7) % {paragraphs}) AS m
"""
_CHECKPOINTS = """
INSERT INTO {schema}.checkpoint (conversation_id, turn_index, sub_step, branch, parent_turn_index, parent_sub_step,
    parent_branch, phase, agent_id, created_at, write_id, spans, tool_calls, tool_results, answers, state)
SELECT v.conversation_id, p / 4, p % 4, 0, CASE WHEN p > 0 THEN (p - 1) / 4 END, CASE WHEN p > 0 THEN (p - 1) % 4 END,
    CASE WHEN p > 0 THEN 0 END,
    CASE WHEN p % 4 = 0 THEN 'input' WHEN p = {messages} - 1 OR p % 4 = 3 THEN 'final' WHEN p % 4 = 1 THEN 'tool_calls'
        ELSE 'tool_results' END,
    v.agent_id, v.created_at + p * interval '48 seconds', gen_random_uuid(), ARRAY[0, 0, p + 1],
    CASE WHEN p % 4 = 1 AND p < {messages} - 1
        THEN json_build_array(json_build_object('id', 'call_' || p, 'name', 'lookup')) END,
    CASE WHEN p % 4 = 2 THEN json_build_array(json_build_object('tool_call_id', 'call_' || p - 1)) END,
    CASE WHEN p % 4 = 2 THEN ARRAY[p / 4, 1, 0] END,
    json_build_object('step_count', p % 4, 'variables', json_build_object('ticket', v.external_id))
FROM {schema}.conversation AS v JOIN {schema}.branch AS b USING (conversation_id)
CROSS JOIN LATERAL generate_series(0, b.next_position - 1) AS p
"""
_REQUESTS = """
INSERT INTO {schema}.request (conversation_id, key, branch, digest, received_at, taken_turn, body)
SELECT v.conversation_id, 'key-' || t, 0, sha256(('key-' || t)::bytea), v.created_at + t * interval '3 minutes',
    CASE WHEN t < {turns} THEN t END, CASE WHEN t = {turns} THEN '{{"role": "user", "content": "more"}}'::json END
FROM {schema}.conversation AS v JOIN {schema}.branch AS b USING (conversation_id)
CROSS JOIN LATERAL generate_series(0, {turns} - CASE b.status WHEN 'ready' THEN 0 ELSE 1 END) AS t
"""
# Of a hundred turns one is still to be read, and of a thousand one is a dead letter.
_DOCUMENTS = """
INSERT INTO {schema}.document (conversation_id, branch, turn_index, text, tsv, created_at, next_try_at, error, tries)
SELECT d.conversation_id, 0, d.turn, CASE WHEN d.due OR d.dead THEN NULL ELSE d.text END,
    CASE WHEN d.due OR d.dead THEN NULL ELSE to_tsvector('simple', d.text) END,
    CASE WHEN d.due OR d.dead THEN NULL ELSE d.created_at END, CASE WHEN d.due THEN d.created_at END,
    CASE WHEN d.dead THEN 'the provider answered 400' END, CASE WHEN d.dead THEN 9 ELSE 0 END
FROM (
    SELECT v.conversation_id, t AS turn, v.created_at + t * interval '3 minutes' AS created_at,
        p.text || ' ' || v.external_id AS text, (substr(v.external_id, 8)::int + t) % 100 = 0 AS due,
        (substr(v.external_id, 8)::int + t) % 1000 = 1 AS dead
    FROM {schema}.conversation AS v JOIN {schema}.branch AS b USING (conversation_id)
    CROSS JOIN LATERAL generate_series(0, {turns} - CASE b.status WHEN 'open' THEN 2 ELSE 1 END) AS t
    JOIN paragraph AS p ON p.n = (substr(v.external_id, 8)::int * 31 + t * 28) % {paragraphs}) AS d
"""
_VECTORS = """
UPDATE {schema}.document AS d SET model = 'scale', embedding = made.embedding::{vector}
FROM (
    SELECT o.conversation_id, o.branch, o.turn_index, o.chunk, (
        SELECT '[' || string_agg(round(random()::numeric - 0.5, 4)::text, ',') || ']'
        FROM generate_series(1, {dimensions}) AS g WHERE g + o.turn_index > 0) AS embedding
    FROM {schema}.document AS o WHERE o.text IS NOT NULL LIMIT {vectors}) AS made
WHERE (d.conversation_id, d.branch, d.turn_index, d.chunk)
    = (made.conversation_id, made.branch, made.turn_index, made.chunk)
"""


def populate(dsn: str, population: Population, schema: str = "turnkeep") -> None:
    """Fill a schema that is empty, and let the planner know of it."""
    names: dict[str, sql.Composable] = {
        "schema": sql.Identifier(schema),
        "agents": sql.Literal(AGENTS),
        "turns": sql.Literal(TURNS),
        "messages": sql.Literal(MESSAGES),
        "paragraphs": sql.Literal(_PARAGRAPHS),
        "vectors": sql.Literal(population.vectors),
        "start": sql.SQL("(now() - {} * interval '5 minutes' - interval '2 hours')").format(population.conversations),
    }
    with psycopg.connect(dsn, autocommit=True) as connection:
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            connection.execute("CREATE TEMP TABLE paragraph (n int PRIMARY KEY, text text) ON COMMIT DROP")
            connection.execute("CREATE TEMP TABLE ticket (n int PRIMARY KEY, id uuid) ON COMMIT DROP")
            with connection.cursor().copy("COPY paragraph FROM STDIN") as copy:
                for row in enumerate(_paragraphs()):
                    copy.write_row(row)
            with connection.cursor().copy("COPY ticket FROM STDIN") as copy:
                for number in range(1, population.conversations + 1):
                    copy.write_row((number, turnkeep.conversation_uuid(f"ticket-{number}")))
            connection.execute("ANALYZE paragraph")
            for statement in (_CONVERSATIONS, _BRANCHES):
                connection.execute(sql.SQL(statement).format(**names))
            for table in ("conversation", "branch"):
                connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(schema, table)))
            for statement in (_MESSAGES, _CHECKPOINTS, _REQUESTS, _DOCUMENTS):
                connection.execute(sql.SQL(statement).format(**names))
            if population.vectors:
                names |= _vector(connection, schema)
                connection.execute(sql.SQL(_VECTORS).format(**names))
        connection.execute("VACUUM (ANALYZE)")


def words() -> list[str]:
    """The words of the texts, the most frequent first: they are as unevenly frequent as those of a language."""
    rng = random.Random(7)
    return ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 10))) for _ in range(_WORDS)]


def _paragraphs() -> list[str]:
    """Some texts."""
    rng = random.Random(8)
    every = words()
    weights = [1 / rank for rank in range(1, _WORDS + 1)]
    return [" ".join(rng.choices(every, weights, k=rng.randint(20, 90))) for _ in range(_PARAGRAPHS)]


def _vector(connection: psycopg.Connection[tuple[object, ...]], schema: str) -> dict[str, sql.Composable]:
    """The type of an embedding, and its dimensions."""
    row = connection.execute(
        "SELECT n.nspname, t.typname, a.atttypmod FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid"
        " JOIN pg_namespace AS n ON n.oid = t.typnamespace WHERE a.attrelid = %s::regclass AND a.attname = 'embedding'",
        (sql.Identifier(schema, "document").as_string(None),),
    ).fetchone()
    assert row is not None
    assert row[1] != "_float4", "vectors need pgvector"
    return {"vector": sql.Identifier(str(row[0]), str(row[1])), "dimensions": sql.Literal(row[2])}
