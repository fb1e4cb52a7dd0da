-- What `turnkeep doctor` asks about how a schema is kept: space, snapshots, archives, documents. Same form as statements.sql.

-- name: observed
-- Whether pg_stat_statements is there, in this database and in the server; this package's connections to the database as
-- far as this role may see them; and how WAL archiving goes.
SELECT EXISTS (SELECT FROM pg_catalog.pg_extension AS e WHERE e.extname = 'pg_stat_statements') AS statements_created,
    pg_catalog.current_setting('pg_stat_statements.track', true) IS NOT NULL AS statements_loaded,
    EXISTS (SELECT FROM pg_catalog.pg_available_extensions AS e WHERE e.name = 'pg_stat_statements') AS statements_available,
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity AS a
     WHERE a.datname = pg_catalog.current_database() AND a.application_name = 'turnkeep')::pg_catalog.int4 AS connections,
    pg_catalog.current_setting('archive_mode') <> 'off' AS archiving,
    w.failed_count AS archive_failures, w.last_failed_time AS archive_failed_at, w.last_archived_time AS archived_at,
    pg_catalog.current_setting('autovacuum') = 'on' AND pg_catalog.current_setting('track_counts') = 'on' AS autovacuum
FROM pg_catalog.pg_stat_archiver AS w

-- name: vacuumed
-- The schema's tables: whether autovacuum is on for each, the dead rows it waits for, and those there are.
SELECT c.relname::pg_catalog.text AS name,
    coalesce((SELECT o.option_value::pg_catalog.bool FROM pg_catalog.pg_options_to_table(c.reloptions) AS o
              WHERE o.option_name = 'autovacuum_enabled'), true) AS autovacuum,
    u.n_live_tup AS live_rows, u.n_dead_tup AS dead_rows, u.last_autovacuum AS vacuumed_at,
    (coalesce((SELECT o.option_value::pg_catalog.float8 FROM pg_catalog.pg_options_to_table(c.reloptions) AS o
               WHERE o.option_name = 'autovacuum_vacuum_threshold'),
              pg_catalog.current_setting('autovacuum_vacuum_threshold')::pg_catalog.float8)
     + greatest(c.reltuples, 0)
     * coalesce((SELECT o.option_value::pg_catalog.float8 FROM pg_catalog.pg_options_to_table(c.reloptions) AS o
                 WHERE o.option_name = 'autovacuum_vacuum_scale_factor'),
                pg_catalog.current_setting('autovacuum_vacuum_scale_factor')::pg_catalog.float8))::pg_catalog.int8 AS threshold
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_stat_user_tables AS u ON u.relid = c.oid
WHERE n.nspname = %(schema)s AND c.relkind = 'r'
ORDER BY 1

-- name: holders
-- Who keeps dead rows from being removed: sessions with an old snapshot, prepared transactions, replication slots. The one
-- that has held the oldest for the most transactions first; since when is known of sessions and prepared ones only.
SELECT h.kind, h.name, h.since, h.transactions FROM (
    SELECT 'session' AS kind, a.pid::pg_catalog.text AS name, a.xact_start AS since,
        pg_catalog.age(coalesce(a.backend_xmin, a.backend_xid)) AS transactions
    FROM pg_catalog.pg_stat_activity AS a
    WHERE a.pid <> pg_catalog.pg_backend_pid() AND coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL
        AND a.backend_type NOT LIKE 'autovacuum%%' AND (a.datname IS NULL OR a.datname = pg_catalog.current_database())
    UNION ALL
    SELECT 'prepared', p.gid, p.prepared, pg_catalog.age(p.transaction) FROM pg_catalog.pg_prepared_xacts AS p
    WHERE p.database = pg_catalog.current_database()
    UNION ALL
    SELECT CASE WHEN s.active THEN 'slot' ELSE 'idle slot' END, s.slot_name::pg_catalog.text, NULL,
        pg_catalog.age(coalesce(s.xmin, s.catalog_xmin))
    FROM pg_catalog.pg_replication_slots AS s WHERE s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL) AS h
ORDER BY h.transactions DESC LIMIT 10

-- name: letters
-- Documents that are overdue, dead letters, and what is said of those most often; no more than a number of each is counted.
SELECT (SELECT pg_catalog.count(*) FROM (
        (SELECT FROM {schema}.document AS f WHERE f.text IS NULL AND f.next_try_at <= t.now LIMIT %(most)s)
        UNION ALL
        (SELECT FROM {schema}.document AS e WHERE e.text IS NOT NULL AND e.next_try_at <= t.now LIMIT %(most)s)
    ) AS due)::pg_catalog.int4 AS due,
    least((SELECT pg_catalog.min(f.next_try_at) FROM {schema}.document AS f
            WHERE f.text IS NULL AND f.next_try_at IS NOT NULL),
        (SELECT pg_catalog.min(e.next_try_at) FROM {schema}.document AS e
            WHERE e.text IS NOT NULL AND e.next_try_at IS NOT NULL)) AS oldest_due,
    (SELECT pg_catalog.count(*) FROM (
        SELECT FROM {schema}.document AS d WHERE d.next_try_at IS NULL AND d.error IS NOT NULL AND d.tries > 0 LIMIT %(most)s) AS l
    )::pg_catalog.int4 AS dead,
    -- By way of an array of keys from the index alone: nobody knows beforehand how few rows have an error.
    ARRAY(SELECT g.reason || ' (' || g.number || ')' FROM (
        SELECT pg_catalog.left(d.error, 100) AS reason, pg_catalog.count(*) AS number
        FROM {schema}.document AS d
        WHERE d.next_try_at IS NULL AND d.error IS NOT NULL AND d.tries > 0 AND d.conversation_id = ANY (ARRAY(
            SELECT l.conversation_id FROM {schema}.document AS l WHERE l.next_try_at IS NULL AND l.error IS NOT NULL AND l.tries > 0
            LIMIT 1000))
        GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 3) AS g ORDER BY g.number DESC, g.reason) AS reasons,
    t.now
FROM (SELECT {schema}.clock() AS now OFFSET 0) AS t

-- name: kept
-- Conversations that ended more than 30 days ago and are not archived, up to a number of them, and the first one's end;
-- and workers that hold live leases.
SELECT (SELECT pg_catalog.count(*) FROM (
        SELECT FROM {schema}.conversation AS v
        WHERE v.ended_at < t.now - interval '30 days' AND v.archived_at IS NULL LIMIT %(most)s) AS o)::pg_catalog.int4 AS old,
    (SELECT pg_catalog.min(v.ended_at) FROM {schema}.conversation AS v
     WHERE v.ended_at IS NOT NULL AND v.archived_at IS NULL) AS oldest_end,
    (SELECT pg_catalog.count(DISTINCT b.lease_owner) FROM {schema}.branch AS b
     WHERE b.status = 'running' AND b.lease_until > t.now)::pg_catalog.int4 AS workers
FROM (SELECT {schema}.clock() AS now OFFSET 0) AS t

-- name: vectors
-- Documents that have a vector, up to a number of them, and how many indexes there are to find them by.
SELECT (SELECT pg_catalog.count(*) FROM (
        SELECT FROM {schema}.document AS d WHERE d.text <> '' AND d.error IS NULL AND d.model IS NOT NULL LIMIT %(most)s) AS v
    )::pg_catalog.int4 AS vectors,
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class AS i
     JOIN pg_catalog.pg_namespace AS n ON n.oid = i.relnamespace
     JOIN pg_catalog.pg_am AS m ON m.oid = i.relam
     WHERE n.nspname = %(schema)s AND m.amname IN ('hnsw', 'ivfflat'))::pg_catalog.int4 AS indexes

-- name: heads
-- Branches from a place on, in order of their keys, each with what is wrong with it.
SELECT b.conversation_id, b.branch, CASE
        WHEN v.conversation_id IS NULL THEN 'no conversation'
        WHEN v.archived_at IS NOT NULL THEN 'archived, and still there'
        WHEN b.turn_index >= 0 AND c.conversation_id IS NULL THEN 'no checkpoint at its head'
        WHEN {schema}.length_of(c.spans) <> (
            SELECT pg_catalog.count(*) FROM {schema}.spans_of(c.spans) AS s
            JOIN {schema}.message AS m ON m.conversation_id = b.conversation_id AND m.branch = s.branch
                AND m.position >= s.start AND m.position < s.stop) THEN 'messages are missing'
        WHEN EXISTS (
            SELECT FROM {schema}.message AS m WHERE m.conversation_id = b.conversation_id AND m.branch = b.branch
                AND m.position >= b.next_position) THEN 'messages beyond its end'
    END AS problem
FROM {schema}.branch AS b
LEFT JOIN {schema}.conversation AS v ON v.conversation_id = b.conversation_id
LEFT JOIN LATERAL (  -- by its key, for each of the few
    SELECT k.conversation_id, k.spans FROM {schema}.checkpoint AS k
    WHERE k.conversation_id = b.conversation_id AND k.turn_index = b.turn_index
        AND k.sub_step = b.sub_step AND k.branch = {schema}.owner_of(b.branch, b.lineage, b.turn_index, b.sub_step)
    OFFSET 0) AS c ON true
WHERE (b.conversation_id, b.branch) > (%(conversation)s::pg_catalog.uuid, %(branch)s::pg_catalog.int4)
ORDER BY b.conversation_id, b.branch LIMIT %(limit)s

-- name: whole
-- Conversations from a place on, in order, each with what is wrong with it as a whole. Counts, because EXISTS would be
-- answered from a hash of the whole other table for each batch.
SELECT v.conversation_id, CASE
        WHEN v.archived_at IS NULL AND 0 = (
            SELECT pg_catalog.count(*) FROM {schema}.branch AS b
            WHERE b.conversation_id = v.conversation_id AND b.branch = v.current_branch)
            THEN 'its current branch is not there'
        WHEN (v.archived_at IS NOT NULL) <> (0 < (
            SELECT pg_catalog.count(*) FROM {schema}.archive AS a WHERE a.conversation_id = v.conversation_id))
            THEN 'archived in one place only'
    END AS problem
FROM {schema}.conversation AS v
WHERE v.conversation_id > %(conversation)s::pg_catalog.uuid
ORDER BY v.conversation_id LIMIT %(limit)s

-- name: spanned
-- Conversations of these that have a checkpoint, of any age, whose messages are not all there.
SELECT DISTINCT g.conversation_id
FROM (
    SELECT c.conversation_id, s.branch, s.start, pg_catalog.max(s.stop) AS stop
    FROM {schema}.checkpoint AS c CROSS JOIN LATERAL {schema}.spans_of(c.spans) AS s
    WHERE c.conversation_id = ANY (%(conversations)s)
    GROUP BY 1, 2, 3) AS g
WHERE g.stop - g.start <> (
    SELECT pg_catalog.count(*) FROM {schema}.message AS m
    WHERE m.conversation_id = g.conversation_id AND m.branch = g.branch AND m.position >= g.start AND m.position < g.stop)
