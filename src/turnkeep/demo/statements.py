"""Every SQL statement of the demo: plain SQL on the tables, without a function of the store."""

from __future__ import annotations

from typing import Final

# -- what the kills need

# Keeps the next saves of some conversations waiting inside save_v1.
HOLD: Final = """
SELECT b.conversation_id FROM turnkeep.branch AS b
WHERE b.conversation_id = ANY(%s) ORDER BY b.conversation_id, b.branch FOR UPDATE
"""

# The server processes that are inside save_v1 now, waiting for the session of that process id.
IN_FLIGHT: Final = """
SELECT a.pid FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = current_database() AND a.state = 'active' AND a.wait_event_type = 'Lock'
    AND a.query LIKE '%%save_v1%%' AND %s = ANY(pg_catalog.pg_blocking_pids(a.pid))
"""

# -- what the check reads

CONVERSATIONS: Final = """
SELECT v.external_id, b.branch, b.turn_index, b.sub_step, b.status
FROM turnkeep.conversation AS v
LEFT JOIN turnkeep.branch AS b ON b.conversation_id = v.conversation_id
ORDER BY v.external_id, b.branch
"""

CHECKPOINTS: Final = """
SELECT v.external_id, c.branch, c.turn_index, c.sub_step, c.write_id::text, c.phase,
    c.tool_calls::text, c.tool_results::text, c.state::text
FROM turnkeep.checkpoint AS c
LEFT JOIN turnkeep.conversation AS v ON v.conversation_id = c.conversation_id
ORDER BY v.external_id, c.turn_index, c.sub_step, c.branch
"""

# The messages of each conversation as the spans of its head checkpoint list them.
TRANSCRIPTS: Final = """
SELECT v.external_id, m.body::text
FROM turnkeep.conversation AS v
JOIN turnkeep.branch AS b ON b.conversation_id = v.conversation_id AND b.branch = v.current_branch
JOIN turnkeep.checkpoint AS c ON c.conversation_id = b.conversation_id AND c.branch = b.branch
    AND c.turn_index = b.turn_index AND c.sub_step = b.sub_step
CROSS JOIN LATERAL generate_series(1, cardinality(c.spans), 3) AS i
JOIN turnkeep.message AS m ON m.conversation_id = c.conversation_id AND m.branch = c.spans[i]
    AND m.position >= c.spans[i + 1] AND m.position < c.spans[i + 2]
ORDER BY v.external_id, i, m.position
"""

# Every message there is, in a transcript or not.
MESSAGES: Final = """
SELECT v.external_id, m.body::text
FROM turnkeep.message AS m
LEFT JOIN turnkeep.conversation AS v ON v.conversation_id = m.conversation_id
ORDER BY v.external_id, m.branch, m.position
"""
