-- What `turnkeep stats` asks. Same form as statements.sql.

-- name: tables
-- Tables of the schema: rows as the planner estimates them (-1 where it has never looked), bytes with and without indexes,
-- rows that are live and dead as the server's statistics have them, those of what was moved out of line included, and when
-- they were last vacuumed.
SELECT c.relname::pg_catalog.text, c.reltuples::pg_catalog.float8, pg_catalog.pg_table_size(c.oid), pg_catalog.pg_indexes_size(c.oid),
    u.n_live_tup + coalesce(o.n_live_tup, 0), u.n_dead_tup + coalesce(o.n_dead_tup, 0), greatest(u.last_autovacuum, u.last_vacuum)
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_stat_all_tables AS u ON u.relid = c.oid
LEFT JOIN pg_catalog.pg_stat_all_tables AS o ON o.relid = c.reltoastrelid
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
-- Calls without a result, and those of them of which nobody knows whether they have run; of all branches, or of those that
-- are neither idle, as forks are in the middle of a turn, nor ended.
SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE p.uncertain OR p.attempts > 0)
FROM {schema}.pending_calls AS p
WHERE %(all)s OR p.status NOT IN ('idle', 'ended')

-- name: stats_moment
-- The server's time, since when it runs, connections in use and how many there can be.
SELECT pg_catalog.clock_timestamp(), pg_catalog.pg_postmaster_start_time(),
    (SELECT pg_catalog.sum(d.numbackends) FROM pg_catalog.pg_stat_database AS d)::pg_catalog.int4,
    (SELECT pg_catalog.sum(CASE s.name WHEN 'max_connections' THEN 1 ELSE -1 END * s.setting::pg_catalog.int4)
     FROM pg_catalog.pg_settings AS s
     WHERE s.name IN ('max_connections', 'superuser_reserved_connections', 'reserved_connections'))::pg_catalog.int4

-- name: drawn
-- Numbers drawn so far: of checkpoints from their sequence, null where this role may not see it; and the requests that
-- the server's statistics count as inserted, which it writes down a second or more later.
SELECT (SELECT coalesce(q.last_value, 0) FROM pg_catalog.pg_sequences AS q
        WHERE q.schemaname = %(schema)s AND q.sequencename = 'checkpoint_id_seq'
            AND pg_catalog.has_sequence_privilege(
                pg_catalog.format('%%I.%%I', q.schemaname, q.sequencename), 'SELECT, USAGE')),
    (SELECT u.n_tup_ins FROM pg_catalog.pg_stat_user_tables AS u WHERE u.schemaname = %(schema)s AND u.relname = 'request')

-- name: begun
-- Branches whose newest turn began after a time, or in the last minute; and since when the oldest open turn goes on, of
-- a bounded number of them.
SELECT (SELECT pg_catalog.count(*) FROM (
            SELECT FROM {schema}.branch AS b
            WHERE b.turn_started_at > coalesce(%(since)s::pg_catalog.timestamptz, t.now - interval '1 minute')
            LIMIT %(most)s) AS counted),
    (SELECT pg_catalog.min(o.turn_started_at) FROM (
        SELECT b.turn_started_at FROM {schema}.branch AS b WHERE b.status = 'open' LIMIT %(most)s) AS o)
FROM (SELECT {schema}.clock() AS now OFFSET 0) AS t

-- name: documents
-- Documents that something is to be done about, up to a number of each kind: those without text, those without an embedding,
-- since when the first has been due; and dead letters.
SELECT d.to_fill, d.to_embed, d.oldest_due, (SELECT pg_catalog.count(*) FROM (
    SELECT FROM {schema}.document AS l WHERE l.next_try_at IS NULL AND l.error IS NOT NULL AND l.tries > 0 LIMIT %(most)s) AS dead)
FROM (
    SELECT pg_catalog.count(*) FILTER (WHERE w.text IS NULL) AS to_fill,
        pg_catalog.count(*) FILTER (WHERE w.text IS NOT NULL) AS to_embed,
        pg_catalog.min(w.next_try_at) FILTER (WHERE w.next_try_at <= {schema}.clock()) AS oldest_due
    FROM (
        (SELECT f.next_try_at, f.text FROM {schema}.document AS f WHERE f.text IS NULL AND f.next_try_at IS NOT NULL
        ORDER BY f.next_try_at LIMIT %(most)s)
        UNION ALL
        (SELECT e.next_try_at, e.text FROM {schema}.document AS e WHERE e.text IS NOT NULL AND e.next_try_at IS NOT NULL
        ORDER BY e.next_try_at LIMIT %(most)s)) AS w) AS d

-- name: archived_conversations
-- Conversations in the archive counted, where that is wanted.
SELECT pg_catalog.count(*) FROM {schema}.archive WHERE %(wanted)s
