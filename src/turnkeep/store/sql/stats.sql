-- What `turnkeep stats` asks. Same form as statements.sql.

-- name: tables
-- Tables of the schema: rows as the planner estimates them (-1 where it has never looked), bytes with and without indexes.
SELECT c.relname::pg_catalog.text, c.reltuples::pg_catalog.float8, pg_catalog.pg_table_size(c.oid), pg_catalog.pg_indexes_size(c.oid)
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r'
ORDER BY pg_catalog.pg_total_relation_size(c.oid) DESC, c.relname

-- name: conversations
-- Conversations counted, where that is wanted.
SELECT pg_catalog.count(*) FROM {schema}.conversation WHERE %(wanted)s

-- name: checkpoints
-- Checkpoints counted, where that is wanted.
SELECT pg_catalog.count(*) FROM {schema}.checkpoint WHERE %(wanted)s

-- name: messages
-- Messages counted, where that is wanted.
SELECT pg_catalog.count(*) FROM {schema}.message WHERE %(wanted)s

-- name: statuses
-- Branches by status in a part of the table, and all that were looked at.
SELECT b.status, pg_catalog.count(*), (pg_catalog.sum(pg_catalog.count(*)) OVER ())::pg_catalog.int8
FROM {schema}.branch AS b TABLESAMPLE SYSTEM (%(percent)s)
GROUP BY b.status ORDER BY 2 DESC, 1

-- name: agents
-- Conversations by agent in a part of the table, the most frequent first, and all that were looked at.
SELECT v.agent_id, pg_catalog.count(*), (pg_catalog.sum(pg_catalog.count(*)) OVER ())::pg_catalog.int8
FROM {schema}.conversation AS v TABLESAMPLE SYSTEM (%(percent)s)
GROUP BY v.agent_id ORDER BY 2 DESC, 1 LIMIT %(limit)s

-- name: activity
-- What is under way: branches by whether their lease is live, with the oldest turn of each kind.
SELECT pg_catalog.count(*) FILTER (WHERE b.lease_until > t.now), pg_catalog.min(b.turn_started_at) FILTER (WHERE b.lease_until > t.now),
    pg_catalog.count(*) FILTER (WHERE b.lease_until <= t.now), pg_catalog.min(b.lease_until) FILTER (WHERE b.lease_until <= t.now)
FROM (SELECT {schema}.clock() AS now OFFSET 0) AS t
JOIN {schema}.branch AS b ON b.status = 'running'

-- name: requests
-- Requests that wait for a turn, and since when the first one does.
SELECT pg_catalog.count(*), pg_catalog.min(r.received_at)
FROM {schema}.request AS r WHERE r.taken_turn IS NULL

-- name: pending
-- Calls without a result, and those of them of which nobody knows whether they have run.
SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE p.uncertain OR p.attempts > 0)
FROM {schema}.pending_calls AS p
