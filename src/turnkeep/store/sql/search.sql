-- What `scope` and `which` stand for are the conditions of the file `scope.sql`, on v and d.

-- name: ground
-- What there is to search with: the dimensions of embeddings, the schema and release of pgvector, and whether an index
-- of this name is whole, null where there is none. No row without pgvector.
SELECT a.atttypmod, n.nspname::pg_catalog.text, x.extversion, (
    SELECT i.indisvalid AND i.indisready FROM pg_catalog.pg_index AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
    WHERE i.indrelid = a.attrelid AND c.relname = %(index)s::pg_catalog.text
)
FROM pg_catalog.pg_attribute AS a
JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid AND t.typname = 'vector'
JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
JOIN pg_catalog.pg_extension AS x ON x.extname = 'vector'
WHERE a.attrelid = pg_catalog.to_regclass({document}) AND a.attname = 'embedding' AND NOT a.attisdropped

-- name: words_of_query
-- What a query looks for, as a tsquery's text.
SELECT {schema}.words_wanted(%(query)s::pg_catalog.text)::pg_catalog.text

-- name: newest_with
-- The newest chunks that have certain words, as many as `window` says: a part of `matching_text`, of its own plan, since
-- it depends on how frequent the words are.
SELECT {number} AS term, d.conversation_id, d.branch, d.turn_index, d.chunk, d.created_at
FROM {schema}.document AS d{joined}
WHERE d.tsv OPERATOR(pg_catalog.@@) {words}::pg_catalog.text::pg_catalog.tsquery AND {scope}
ORDER BY d.created_at DESC
LIMIT %(window)s

-- name: matching_text
-- Turns that have the words, with their best chunk: first those that have all of them in one, which is term 0. A word
-- counts as in the chunk that has most of it, and the more, the fewer chunks have it (as in BM25), by what the planner
-- knows of its frequency where more have it than were looked at. Also whether looking further would find more.
WITH found AS MATERIALIZED (
    {found}
), common AS MATERIALIZED (
    SELECT e.lexeme, e.share * c.reltuples AS chunks
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_stats AS s ON s.schemaname = %(schema)s AND s.tablename = c.relname AND s.attname = 'tsv'
    CROSS JOIN LATERAL ROWS FROM (
        pg_catalog.unnest(s.most_common_elems::pg_catalog.text::pg_catalog.text[]),
        pg_catalog.unnest(s.most_common_elem_freqs)
    ) AS e (lexeme, share)
    WHERE c.oid = pg_catalog.to_regclass({document}) AND e.lexeme = ANY (%(lexemes)s::pg_catalog.text[])
), frequency AS MATERIALIZED (
    SELECT t.term, t.words::pg_catalog.text::pg_catalog.tsquery AS words,
        CASE WHEN f.chunks < %(window)s THEN f.chunks ELSE greatest(f.chunks, (
            SELECT pg_catalog.max(o.chunks) FROM common AS o WHERE o.lexeme = t.lexeme)) END AS chunks
    FROM ROWS FROM (
        pg_catalog.unnest(%(terms)s::pg_catalog.text[]), pg_catalog.unnest(%(lexemes)s::pg_catalog.text[])
    ) WITH ORDINALITY AS t (words, lexeme, term)
    CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS chunks FROM found AS f WHERE f.term = t.term) AS f
), candidate AS MATERIALIZED (
    SELECT f.conversation_id, f.branch, f.turn_index, f.chunk, f.created_at,
        pg_catalog.bool_or(f.term = 0) AS whole, pg_catalog.array_agg(f.term) AS terms
    FROM found AS f GROUP BY f.conversation_id, f.branch, f.turn_index, f.chunk, f.created_at
), weight AS MATERIALIZED (
    SELECT q.words, q.term, pg_catalog.ln(1 + (greatest(n.chunks, q.most) - q.chunks + 0.5) / (q.chunks + 0.5)) AS weight
    FROM (
        SELECT q.*, pg_catalog.max(q.chunks) OVER () AS most FROM frequency AS q
    ) AS q
    CROSS JOIN (SELECT pg_catalog.count(*) AS chunks FROM candidate) AS n
), likely AS MATERIALIZED (
    SELECT c.*
    FROM candidate AS c
    CROSS JOIN LATERAL (SELECT pg_catalog.sum(w.weight) AS sum FROM weight AS w WHERE w.term = ANY (c.terms)) AS w
    ORDER BY c.whole DESC, w.sum DESC NULLS LAST, c.created_at DESC
    LIMIT %(likely)s
), part AS MATERIALIZED (
    SELECT l.conversation_id, l.branch, l.turn_index, l.chunk, l.created_at, l.whole, w.term,
        w.weight * pg_catalog.ts_rank(d.tsv, w.words, 1) AS score
    FROM likely AS l
    JOIN {schema}.document AS d ON d.conversation_id = l.conversation_id AND d.branch = l.branch
        AND d.turn_index = l.turn_index AND d.chunk = l.chunk
    LEFT JOIN weight AS w ON true
), chunk AS (
    SELECT DISTINCT ON (c.conversation_id, c.branch, c.turn_index) c.*
    FROM (
        SELECT p.conversation_id, p.branch, p.turn_index, p.chunk, p.created_at, p.whole, pg_catalog.sum(p.score) AS score
        FROM part AS p GROUP BY p.conversation_id, p.branch, p.turn_index, p.chunk, p.created_at, p.whole
    ) AS c
    ORDER BY c.conversation_id, c.branch, c.turn_index, c.whole DESC, c.score DESC, c.chunk
), turn AS (
    SELECT t.conversation_id, t.branch, t.turn_index, pg_catalog.sum(t.score) AS score
    FROM (
        SELECT p.conversation_id, p.branch, p.turn_index, p.term, pg_catalog.max(p.score) AS score
        FROM part AS p GROUP BY p.conversation_id, p.branch, p.turn_index, p.term
    ) AS t
    GROUP BY t.conversation_id, t.branch, t.turn_index
), ranked AS (
    SELECT c.conversation_id, c.branch, c.turn_index, c.chunk, c.created_at, c.whole,
        coalesce(t.score, 0)::pg_catalog.float8 AS score
    FROM chunk AS c
    JOIN turn AS t ON t.conversation_id = c.conversation_id AND t.branch = c.branch AND t.turn_index = c.turn_index
)
SELECT r.conversation_id, r.branch, r.turn_index, r.chunk, r.score,
    (SELECT pg_catalog.count(*) FROM candidate) > %(likely)s
        OR EXISTS (SELECT FROM found AS f GROUP BY f.term HAVING pg_catalog.count(*) >= %(window)s)
FROM ranked AS r
ORDER BY r.whole DESC, r.score DESC, r.created_at DESC, r.conversation_id, r.branch, r.turn_index
LIMIT %(limit)s

-- name: matching_count
-- How many chunks have a vector that counts, up to a bound.
SELECT pg_catalog.count(*) FROM (
    SELECT FROM {schema}.document AS d
    JOIN {schema}.conversation AS v ON v.conversation_id = d.conversation_id
    WHERE d.model = {model} AND d.embedding IS NOT NULL AND {scope}
    LIMIT %(most)s
) AS m

-- name: settings_of_index
-- For this transaction: how widely an index is searched, and, where pgvector can, that it is searched on until there are
-- enough rows: their number is the bound, neither what was visited nor the memory for that.
SELECT pg_catalog.set_config('hnsw.ef_search', %(width)s, true),
    CASE WHEN %(iterates)s THEN pg_catalog.set_config('hnsw.iterative_scan', 'strict_order', true) END,
    CASE WHEN %(iterates)s THEN pg_catalog.set_config('hnsw.max_scan_tuples', '1000000', true) END,
    CASE WHEN %(iterates)s THEN pg_catalog.set_config('hnsw.scan_mem_multiplier', '1000', true) END

-- name: nearest_indexed
-- The turns, or with `whole` the conversations, nearest to a vector, by the model's index: those that are within the
-- scope of as many of the nearest chunks as `rows` says, and whether the index gave so many. The conditions come after
-- the index, so that what comes back is as near as the index knows, or too little.
WITH near AS MATERIALIZED (
    SELECT d.conversation_id, d.branch, d.turn_index, d.chunk, d.created_at, {distance} AS distance
    FROM {schema}.document AS d
    WHERE d.model = {model}
    ORDER BY {distance}
    LIMIT %(rows)s
)
SELECT o.conversation_id, o.branch, o.turn_index, o.chunk, o.distance,
    (SELECT pg_catalog.count(*) FROM near) = %(rows)s
FROM (
    SELECT DISTINCT ON (d.conversation_id, CASE WHEN %(whole)s THEN 0 ELSE d.branch END,
            CASE WHEN %(whole)s THEN 0 ELSE d.turn_index END)
        d.conversation_id, d.branch, d.turn_index, d.chunk, d.distance
    FROM near AS d
    JOIN {schema}.conversation AS v ON v.conversation_id = d.conversation_id
    WHERE {scope}
    ORDER BY d.conversation_id, CASE WHEN %(whole)s THEN 0 ELSE d.branch END,
        CASE WHEN %(whole)s THEN 0 ELSE d.turn_index END, d.distance
) AS o
ORDER BY o.distance, o.conversation_id, o.branch, o.turn_index
LIMIT %(limit)s

-- name: nearest_exact
-- The turns, or with `whole` the conversations, nearest to a vector, by their nearest chunk: each one is looked at.
SELECT o.conversation_id, o.branch, o.turn_index, o.chunk, o.distance
FROM (
    SELECT DISTINCT ON (d.conversation_id, CASE WHEN %(whole)s THEN 0 ELSE d.branch END,
            CASE WHEN %(whole)s THEN 0 ELSE d.turn_index END)
        d.conversation_id, d.branch, d.turn_index, d.chunk, {distance} AS distance
    FROM {schema}.document AS d
    JOIN {schema}.conversation AS v ON v.conversation_id = d.conversation_id
    WHERE d.model = {model} AND d.embedding IS NOT NULL AND {scope}
    ORDER BY d.conversation_id, CASE WHEN %(whole)s THEN 0 ELSE d.branch END,
        CASE WHEN %(whole)s THEN 0 ELSE d.turn_index END, {distance}
) AS o
WHERE o.distance <> 'NaN'
ORDER BY o.distance, o.conversation_id, o.branch, o.turn_index
LIMIT %(limit)s

-- name: middle_of
-- The mean of a conversation's vectors of a model, as text; null where it has none.
SELECT {vector_schema}.avg(d.embedding)::pg_catalog.text FROM {schema}.document AS d
WHERE d.conversation_id = %(conversation)s AND d.model = {model} AND d.embedding IS NOT NULL

-- name: hits
-- What people want to know of chunks that were found, in the order they are asked for.
SELECT w.item::pg_catalog.int4, v.conversation_id, v.external_id, v.title, v.agent_id, d.branch, d.turn_index, d.chunk, d.text,
    d.created_at, v.archived_at, v.current_branch
FROM ROWS FROM (
    pg_catalog.unnest(%(conversations)s::pg_catalog.uuid[]), pg_catalog.unnest(%(branches)s::pg_catalog.int4[]),
    pg_catalog.unnest(%(turns)s::pg_catalog.int4[]), pg_catalog.unnest(%(chunks)s::pg_catalog.int4[])
) WITH ORDINALITY AS w (conversation_id, branch, turn_index, chunk, item)
JOIN {schema}.conversation AS v ON v.conversation_id = w.conversation_id
JOIN {schema}.document AS d ON d.conversation_id = w.conversation_id AND d.branch = w.branch
    AND d.turn_index = w.turn_index AND d.chunk = w.chunk
ORDER BY w.item

-- name: not_indexed
-- Turns that a search can't find yet: without text, the newest first, or archived without one; without a vector of the
-- model; given up. Of each so many are looked at, whatever the conditions but that of one conversation.
SELECT
    (SELECT pg_catalog.count(DISTINCT (d.conversation_id, d.branch, d.turn_index)) FROM (
        (SELECT p.conversation_id, p.branch, p.turn_index FROM {schema}.document AS p
        WHERE p.text IS NULL AND p.next_try_at IS NOT NULL
            AND (%(conversation)s::pg_catalog.uuid IS NULL OR p.conversation_id = %(conversation)s)
        ORDER BY p.next_try_at DESC
        LIMIT %(most)s)
        UNION ALL
        (SELECT p.conversation_id, p.branch, p.turn_index FROM {schema}.document AS p
        WHERE p.text IS NULL AND p.next_try_at IS NULL AND p.error IS NULL
            AND (%(conversation)s::pg_catalog.uuid IS NULL OR p.conversation_id = %(conversation)s)
        LIMIT %(most)s)
    ) AS d JOIN {schema}.conversation AS v ON v.conversation_id = d.conversation_id WHERE {which}),
    (SELECT pg_catalog.count(DISTINCT (d.conversation_id, d.branch, d.turn_index)) FROM (
        (SELECT p.conversation_id, p.branch, p.turn_index FROM {schema}.document AS p
        WHERE p.text IS NOT NULL AND p.next_try_at IS NOT NULL AND %(model)s::pg_catalog.text IS NOT NULL
            AND (%(conversation)s::pg_catalog.uuid IS NULL OR p.conversation_id = %(conversation)s)
        LIMIT %(most)s)
        UNION ALL
        (SELECT p.conversation_id, p.branch, p.turn_index FROM {schema}.document AS p
        WHERE p.text <> '' AND p.error IS NULL AND p.model IS NULL AND %(model)s::pg_catalog.text IS NOT NULL
            AND (%(conversation)s::pg_catalog.uuid IS NULL OR p.conversation_id = %(conversation)s)
        LIMIT %(most)s)
        UNION ALL
        (SELECT p.conversation_id, p.branch, p.turn_index FROM {schema}.document AS p
        WHERE p.text <> '' AND p.error IS NULL AND p.model < %(model)s::pg_catalog.text
            AND (%(conversation)s::pg_catalog.uuid IS NULL OR p.conversation_id = %(conversation)s)
        LIMIT %(most)s)
        UNION ALL
        (SELECT p.conversation_id, p.branch, p.turn_index FROM {schema}.document AS p
        WHERE p.text <> '' AND p.error IS NULL AND p.model > %(model)s::pg_catalog.text
            AND (%(conversation)s::pg_catalog.uuid IS NULL OR p.conversation_id = %(conversation)s)
        LIMIT %(most)s)
    ) AS d JOIN {schema}.conversation AS v ON v.conversation_id = d.conversation_id WHERE {which}),
    (SELECT pg_catalog.count(DISTINCT (d.conversation_id, d.branch, d.turn_index)) FROM (
        SELECT p.conversation_id, p.branch, p.turn_index FROM {schema}.document AS p
        WHERE p.next_try_at IS NULL AND p.error IS NOT NULL AND p.tries > 0
            AND (%(conversation)s::pg_catalog.uuid IS NULL OR p.conversation_id = %(conversation)s)
        LIMIT %(most)s
    ) AS d JOIN {schema}.conversation AS v ON v.conversation_id = d.conversation_id WHERE {which})

-- name: more_unfilled
-- Whether so many turns have no text that not all of them are looked at.
SELECT pg_catalog.count(*) >= %(most)s FROM (
    SELECT FROM {schema}.document AS p
    WHERE p.text IS NULL AND (p.next_try_at IS NOT NULL OR p.error IS NULL)
        AND (%(conversation)s::pg_catalog.uuid IS NULL OR p.conversation_id = %(conversation)s)
    LIMIT %(most)s
) AS u

-- name: claim_within
-- Turns within the scope whose text is to be filled, claimed: the newest of them, of as many as `most` says.
WITH near AS MATERIALIZED (
    SELECT p.conversation_id, p.branch, p.turn_index, p.chunk, p.next_try_at FROM {schema}.document AS p
    WHERE p.text IS NULL AND p.next_try_at <= (SELECT {schema}.clock())
        AND (%(conversation)s::pg_catalog.uuid IS NULL OR p.conversation_id = %(conversation)s)
    ORDER BY p.next_try_at DESC LIMIT %(most)s
), wanted AS MATERIALIZED (
    SELECT d.conversation_id, d.branch, d.turn_index, d.chunk FROM near AS d
    JOIN {schema}.conversation AS v ON v.conversation_id = d.conversation_id
    WHERE {which}
    ORDER BY d.next_try_at DESC LIMIT %(limit)s
), due AS MATERIALIZED (
    SELECT d.conversation_id, d.branch, d.turn_index, d.chunk FROM wanted AS w
    JOIN {schema}.document AS d ON d.conversation_id = w.conversation_id AND d.branch = w.branch
        AND d.turn_index = w.turn_index AND d.chunk = w.chunk
    WHERE d.text IS NULL AND d.next_try_at <= (SELECT {schema}.clock())
    FOR UPDATE OF d SKIP LOCKED
)
UPDATE {schema}.document AS d SET claim = %(claim)s, tries = d.tries + (d.claim IS NOT NULL)::pg_catalog.int4,
    next_try_at = (SELECT {schema}.clock()) + pg_catalog.make_interval(secs => %(seconds)s)
FROM due
WHERE d.conversation_id = due.conversation_id AND d.branch = due.branch AND d.turn_index = due.turn_index
    AND d.chunk = due.chunk
RETURNING d.conversation_id, d.branch, d.turn_index, d.chunk, d.tries, NULL::pg_catalog.text, d.model

-- name: read_only
-- Whether nothing can be written here: a standby, or a server that is set so.
SELECT pg_catalog.current_setting('transaction_read_only') = 'on'

-- name: search_moment
-- The time so long ago.
SELECT {schema}.clock() - %(ago)s::pg_catalog.interval

-- name: line_of_branch
-- The branches whose turns a branch has, each with the last turn that it has of it. A turn that was forked in its
-- middle is the branch's own. What a fork stands on is never pruned.
SELECT b.branch, 2147483647 FROM {schema}.branch AS b
WHERE b.conversation_id = %(conversation)s AND b.branch = %(branch)s
UNION ALL
SELECT b.lineage[i], b.lineage[i + 1] - CASE c.phase WHEN 'final' THEN 0 ELSE 1 END
FROM {schema}.branch AS b
CROSS JOIN LATERAL pg_catalog.generate_series(1, pg_catalog.cardinality(b.lineage), 3) AS i
LEFT JOIN {schema}.checkpoint AS c ON c.conversation_id = b.conversation_id AND c.branch = b.lineage[i]
    AND c.turn_index = b.lineage[i + 1] AND c.sub_step = b.lineage[i + 2]
WHERE b.conversation_id = %(conversation)s AND b.branch = %(branch)s

-- name: lock_indexes
-- Keeps others of ours from making indexes, until the end of the transaction; whether that is ours to do.
SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended({lock}, 0))

-- name: create_index
-- The index over a model's vectors, beside the writers.
CREATE INDEX CONCURRENTLY IF NOT EXISTS {index} ON {schema}.document USING hnsw ({embedding} {operators})
WHERE model = {model}

-- name: drop_index
-- Such an index no more.
DROP INDEX CONCURRENTLY IF EXISTS {schema}.{index}

-- name: index_work
-- Whether somebody makes an index on the documents at this moment, or vacuums them.
SELECT pg_catalog.count(*) > 0 FROM pg_catalog.pg_locks AS l
JOIN pg_catalog.pg_database AS b ON b.oid = l.database AND b.datname = pg_catalog.current_database()
WHERE l.relation = pg_catalog.to_regclass({document}) AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted

-- name: models
-- The models that have vectors.
SELECT DISTINCT d.model FROM {schema}.document AS d WHERE d.model IS NOT NULL

-- name: vector_indexes
-- The indexes over vectors, by the beginning of their names.
SELECT c.relname::pg_catalog.text FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = pg_catalog.to_regclass({document}) AND pg_catalog.starts_with(c.relname, %(prefix)s)
ORDER BY 1
