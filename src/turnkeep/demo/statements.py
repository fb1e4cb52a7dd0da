"""Every SQL statement of the demo: plain SQL on the tables, without a function of the store."""

from __future__ import annotations

from typing import Any, Final, LiteralString

from psycopg import sql

# -- the tools' effects

MAKE_EFFECTS: Final = """
CREATE SCHEMA demo;
CREATE TABLE demo.effect (
    run text NOT NULL, conversation text NOT NULL, turn int NOT NULL, call_id text NOT NULL, tool text NOT NULL,
    idempotency_key uuid NOT NULL)  -- nothing is unique: what is done twice has to show
"""

LEAVE_EFFECT: Final = """
INSERT INTO demo.effect (run, conversation, turn, call_id, tool, idempotency_key) VALUES (%s, %s, %s, %s, %s, %s)
"""

# -- what the kills need

# How far each conversation is, and whether a worker is at it.
HEADS: Final = """
SELECT v.external_id, b.turn_index, b.sub_step, b.next_position, b.status
FROM turnkeep.branch AS b
JOIN turnkeep.conversation AS v ON v.conversation_id = b.conversation_id
"""

# Keeps the next writes to some conversations waiting inside the store's functions.
HOLD: Final = """
SELECT b.conversation_id FROM turnkeep.branch AS b
WHERE b.conversation_id = ANY(%s) ORDER BY b.conversation_id, b.branch FOR UPDATE
"""

# The server processes that are inside one of those functions now, waiting for a lock.
IN_FLIGHT: Final = """
SELECT a.pid FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = current_database() AND a.state = 'active' AND a.wait_event_type = 'Lock'
    AND a.query LIKE ANY (%s)
"""

# Whether a process that has been killed still has sessions.
SESSIONS: Final = """
SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.application_name = %s
"""

# -- what the check reads

BRANCHES: Final = """
SELECT v.external_id, b.branch, b.status, b.lease_until IS NOT NULL OR b.lease_token <> 0
FROM {schema}.conversation AS v
LEFT JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id
ORDER BY v.external_id, b.branch
"""

REQUESTS: Final = """
SELECT v.external_id, r.key, r.taken_turn
FROM {schema}.request AS r
LEFT JOIN {schema}.conversation AS v ON v.conversation_id = r.conversation_id
ORDER BY v.external_id, r.number
"""

CHECKPOINTS: Final = """
SELECT v.external_id, c.turn_index, c.sub_step, c.branch, c.write_id::text, c.phase,
    extract(epoch FROM c.created_at)::float8, coalesce(c.tool_calls, '[]'), coalesce(c.tool_results, '[]'),
    coalesce(c.answers, '{{}}')
FROM {schema}.checkpoint AS c
LEFT JOIN {schema}.conversation AS v ON v.conversation_id = c.conversation_id
ORDER BY v.external_id, c.turn_index, c.sub_step, c.branch
"""

# The messages of each conversation as the spans of its head checkpoint list them.
TRANSCRIPTS: Final = """
SELECT v.external_id, m.body
FROM {schema}.conversation AS v
JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id AND b.branch = v.current_branch
JOIN {schema}.checkpoint AS c ON c.conversation_id = b.conversation_id AND c.branch = b.branch
    AND c.turn_index = b.turn_index AND c.sub_step = b.sub_step
CROSS JOIN LATERAL generate_series(1, cardinality(c.spans), 3) AS i
JOIN {schema}.message AS m ON m.conversation_id = c.conversation_id AND m.branch = c.spans[i]
    AND m.position >= c.spans[i + 1] AND m.position < c.spans[i + 2]
ORDER BY v.external_id, i, m.position
"""

# Every message there is, in a transcript or not.
MESSAGES: Final = """
SELECT v.external_id, pg_catalog.count(*)
FROM {schema}.message AS m
LEFT JOIN {schema}.conversation AS v ON v.conversation_id = m.conversation_id
GROUP BY v.external_id
"""

EFFECTS: Final = """
SELECT e.conversation, e.turn, e.call_id, e.tool, e.idempotency_key::text FROM demo.effect AS e WHERE e.run = %s
"""


def in_schema(statement: LiteralString, schema: str) -> sql.Composed:
    """A statement of the check, about the store in that schema."""
    names: dict[str, Any] = {"schema": sql.Identifier(schema)}
    return sql.SQL(statement).format(**names)
