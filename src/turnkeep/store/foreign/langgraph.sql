-- Threads of LangGraph's Postgres saver. Same form as sql/statements.sql; {schema} is where its tables are.

-- name: threads
-- Threads with their namespaces, after one; the oldest checkpoint's time of each.
SELECT c.thread_id, c.checkpoint_ns, pg_catalog.min(c.checkpoint ->> 'ts')
FROM {schema}.checkpoints AS c
WHERE (c.thread_id, c.checkpoint_ns) > (%(after)s, %(namespace)s)
GROUP BY c.thread_id, c.checkpoint_ns ORDER BY c.thread_id, c.checkpoint_ns LIMIT 500

-- name: newest
-- The newest checkpoint of a thread in a namespace: their ids rise with time.
SELECT c.checkpoint_id, c.checkpoint::pg_catalog.text,
    (SELECT pg_catalog.count(*) FROM {schema}.checkpoints AS o
     WHERE o.thread_id = c.thread_id AND o.checkpoint_ns = c.checkpoint_ns),
    (SELECT pg_catalog.count(*) FROM {schema}.checkpoint_writes AS w
     WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id)
FROM {schema}.checkpoints AS c
WHERE c.thread_id = %(thread)s AND c.checkpoint_ns = %(namespace)s
ORDER BY c.checkpoint_id DESC LIMIT 1

-- name: blob
-- The value of a channel in a version.
SELECT b.type, b.blob FROM {schema}.checkpoint_blobs AS b
WHERE b.thread_id = %(thread)s AND b.checkpoint_ns = %(namespace)s AND b.channel = %(channel)s AND b.version = %(version)s
