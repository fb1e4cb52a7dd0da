-- What showing a conversation asks beside the store's own statements. Same form as statements.sql.

-- name: waiting
-- Requests that wait for a turn on a branch, oldest first.
SELECT r.key, r.received_at, r.body::pg_catalog.text
FROM {schema}.request AS r
WHERE r.conversation_id = %(conversation)s AND r.branch = %(branch)s AND r.taken_turn IS NULL
ORDER BY r.number
LIMIT %(limit)s
