-- What erasing a conversation would remove. Same form as statements.sql.

-- name: erasure
-- A conversation and those below it: their ids, and how many rows of each kind they have, in the archive or out of it.
WITH RECURSIVE family AS (
    SELECT v.conversation_id, v.external_id, 0 AS generation
    FROM {schema}.conversation AS v WHERE v.conversation_id = %(conversation)s
    UNION
    SELECT v.conversation_id, v.external_id, f.generation + 1
    FROM family AS f
    JOIN {schema}.conversation AS v ON v.parent_conversation_id = f.conversation_id
)
SELECT f.external_id,
    (SELECT pg_catalog.count(*) FROM {schema}.branch AS b WHERE b.conversation_id = f.conversation_id) + coalesce(a.branches, 0),
    (SELECT pg_catalog.count(*) FROM {schema}.checkpoint AS c WHERE c.conversation_id = f.conversation_id) + coalesce(a.checkpoints, 0),
    (SELECT pg_catalog.count(*) FROM {schema}.message AS m WHERE m.conversation_id = f.conversation_id) + coalesce(a.messages, 0),
    (SELECT pg_catalog.count(*) FROM {schema}.request AS r WHERE r.conversation_id = f.conversation_id) + coalesce(a.requests, 0)
FROM family AS f
LEFT JOIN {schema}.archive AS a ON a.conversation_id = f.conversation_id
ORDER BY f.generation, f.external_id
