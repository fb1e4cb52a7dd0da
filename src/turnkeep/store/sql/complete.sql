-- What completing a command line asks. Same form as statements.sql.

-- name: beginning
-- Of the newest conversations those whose id begins with a text.
SELECT n.conversation_id::pg_catalog.text, n.external_id, coalesce(n.title, n.agent_id, '')
FROM (
    SELECT v.conversation_id, v.external_id, v.title, v.agent_id, b.turn_started_at
    FROM {schema}.branch AS b
    JOIN {schema}.conversation AS v ON v.conversation_id = b.conversation_id AND v.current_branch = b.branch
    ORDER BY b.turn_started_at DESC, b.conversation_id DESC
    LIMIT 2000
) AS n
WHERE pg_catalog.starts_with(n.external_id, %(beginning)s) OR pg_catalog.starts_with(n.conversation_id::pg_catalog.text, %(beginning)s)
ORDER BY n.turn_started_at DESC
LIMIT %(limit)s
