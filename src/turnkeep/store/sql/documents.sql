-- Documents as work: what the worker of the search asks and tells. Same form as statements.sql.

-- name: claim_fill
-- Turns whose text is to be filled, claimed. Those whose claim has run out, or the others.
WITH due AS MATERIALIZED (
    SELECT d.conversation_id, d.branch, d.turn_index, d.chunk FROM {schema}.document AS d
    WHERE d.text IS NULL AND d.next_try_at <= (SELECT {schema}.clock()) AND (d.claim IS NOT NULL) = %(lapsed)s::pg_catalog.bool
    ORDER BY d.next_try_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.document AS d SET claim = %(claim)s, tries = d.tries + %(lapsed)s::pg_catalog.bool::pg_catalog.int4,
    next_try_at = (SELECT {schema}.clock()) + pg_catalog.make_interval(secs => %(seconds)s)
FROM due
WHERE d.conversation_id = due.conversation_id AND d.branch = due.branch AND d.turn_index = due.turn_index
    AND d.chunk = due.chunk
RETURNING d.conversation_id, d.branch, d.turn_index, d.chunk, d.tries, NULL::pg_catalog.text, d.model

-- name: claim_fill_of
-- The same of one conversation, whatever has become of earlier claims; with `over`, whether due or not.
WITH due AS MATERIALIZED (
    SELECT d.conversation_id, d.branch, d.turn_index, d.chunk FROM {schema}.document AS d
    WHERE d.conversation_id = %(conversation)s AND d.text IS NULL
        AND (d.next_try_at <= (SELECT {schema}.clock()) OR %(over)s::pg_catalog.bool AND d.next_try_at IS NOT NULL)
    ORDER BY d.branch, d.turn_index LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.document AS d SET claim = %(claim)s, tries = d.tries + (d.claim IS NOT NULL)::pg_catalog.int4,
    next_try_at = (SELECT {schema}.clock()) + pg_catalog.make_interval(secs => %(seconds)s)
FROM due
WHERE d.conversation_id = due.conversation_id AND d.branch = due.branch AND d.turn_index = due.turn_index
    AND d.chunk = due.chunk
RETURNING d.conversation_id, d.branch, d.turn_index, d.chunk, d.tries, NULL::pg_catalog.text, d.model

-- name: claim_embed
-- Chunks that are to be given an embedding, claimed. Those whose claim has run out, or the others.
WITH due AS MATERIALIZED (
    SELECT d.conversation_id, d.branch, d.turn_index, d.chunk FROM {schema}.document AS d
    WHERE d.text IS NOT NULL AND d.next_try_at <= (SELECT {schema}.clock()) AND (d.claim IS NOT NULL) = %(lapsed)s::pg_catalog.bool
    ORDER BY d.next_try_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.document AS d SET claim = %(claim)s, tries = d.tries + %(lapsed)s::pg_catalog.bool::pg_catalog.int4,
    next_try_at = (SELECT {schema}.clock()) + pg_catalog.make_interval(secs => %(seconds)s)
FROM due
WHERE d.conversation_id = due.conversation_id AND d.branch = due.branch AND d.turn_index = due.turn_index
    AND d.chunk = due.chunk
RETURNING d.conversation_id, d.branch, d.turn_index, d.chunk, d.tries, d.text, d.model

-- name: turn
-- When a turn ended, and the messages it has added, in order: those that its last checkpoint holds and the one before its
-- first does not. What was there and has only been written once more, as a list in many pieces is, is none of them.
-- Bodies come up to so many bytes together.
WITH final AS MATERIALIZED (
    SELECT c.created_at, c.spans FROM {schema}.checkpoint AS c
    WHERE c.conversation_id = %(conversation)s AND c.turn_index = %(turn)s AND c.branch = %(branch)s AND c.phase = 'final'
    ORDER BY c.sub_step DESC LIMIT 1
), base AS MATERIALIZED (
    SELECT c.spans FROM {schema}.branch AS b
    JOIN {schema}.checkpoint AS c ON c.conversation_id = b.conversation_id AND c.turn_index < %(turn)s
        AND c.branch = {schema}.owner_of(b.branch, b.lineage, c.turn_index, c.sub_step)
    WHERE b.conversation_id = %(conversation)s AND b.branch = %(branch)s
    ORDER BY c.turn_index DESC, c.sub_step DESC LIMIT 1
), before AS MATERIALIZED (
    SELECT s.branch, s.start, s.stop FROM base CROSS JOIN LATERAL {schema}.spans_of(base.spans) AS s
), after AS MATERIALIZED (
    SELECT s.ord, s.branch, s.start, s.stop FROM final CROSS JOIN LATERAL {schema}.spans_of(final.spans) AS s
), added AS MATERIALIZED (
    SELECT a.ord, a.branch, p.position
    FROM after AS a CROSS JOIN LATERAL pg_catalog.generate_series(a.start, a.stop - 1) AS p (position)
    WHERE NOT EXISTS (
        SELECT FROM before AS o WHERE o.branch = a.branch AND p.position >= o.start AND p.position < o.stop)
), dropped AS MATERIALIZED (
    SELECT o.branch, p.position
    FROM before AS o CROSS JOIN LATERAL pg_catalog.generate_series(o.start, o.stop - 1) AS p (position)
    WHERE NOT EXISTS (
        SELECT FROM after AS a WHERE a.branch = o.branch AND p.position >= a.start AND p.position < a.stop)
), gone AS MATERIALIZED (
    SELECT w.digest, pg_catalog.row_number() OVER (PARTITION BY w.digest) AS number
    FROM (
        SELECT pg_catalog.sha256(pg_catalog.convert_to(m.body::pg_catalog.text, 'UTF8')) AS digest
        FROM dropped AS d
        JOIN {schema}.message AS m ON m.conversation_id = %(conversation)s AND m.branch = d.branch AND m.position = d.position
    ) AS w
), come AS MATERIALIZED (
    SELECT w.*, pg_catalog.row_number() OVER (PARTITION BY w.digest ORDER BY w.ord, w.position) AS number
    FROM (
        SELECT a.ord, a.branch, a.position, m.size,
            CASE WHEN EXISTS (SELECT FROM gone) THEN
                pg_catalog.sha256(pg_catalog.convert_to(m.body::pg_catalog.text, 'UTF8'))
            END AS digest
        FROM added AS a
        LEFT JOIN {schema}.message AS m
            ON m.conversation_id = %(conversation)s AND m.branch = a.branch AND m.position = a.position
    ) AS w
), listed AS MATERIALIZED (
    SELECT c.ord, c.branch, c.position, c.size,
        pg_catalog.sum(c.size) OVER (ORDER BY c.ord, c.position) <= %(most)s AS wanted
    FROM come AS c
    WHERE NOT EXISTS (SELECT FROM gone AS g WHERE g.digest = c.digest AND g.number = c.number)
)
SELECT f.created_at, l.branch, l.position, l.size, m.body::pg_catalog.text
FROM final AS f
LEFT JOIN listed AS l ON true
LEFT JOIN {schema}.message AS m
    ON m.conversation_id = %(conversation)s AND m.branch = l.branch AND m.position = l.position AND l.wanted
ORDER BY l.ord, l.position

-- name: body
-- The text of one message.
SELECT m.body::pg_catalog.text FROM {schema}.message AS m
WHERE m.conversation_id = %(conversation)s AND m.branch = %(branch)s AND m.position = %(position)s

-- name: fill
-- A turn's text, kept.
SELECT outcome FROM {schema}.fill_v1(%(conversation)s, %(branch)s, %(turn)s, %(claim)s, %(chunks)s, %(left_out)s,
    %(created)s, %(model)s)

-- name: embedded
-- Embeddings, kept.
SELECT {schema}.embedded_v1(%(claim)s, %(conversations)s, %(branches)s, %(turns)s, %(chunks)s,
    %(vectors)s::pg_catalog.float4[], %(model)s)

-- name: put_off
-- What was claimed and not done: tried again after so many seconds, or never where it has been tried often enough. A null
-- error says that it was not its fault: nothing is counted.
UPDATE {schema}.document AS d SET claim = NULL,
    tries = d.tries + (p.error IS NOT NULL)::pg_catalog.int4, error = coalesce(p.error, d.error),
    next_try_at = CASE WHEN p.error IS NULL OR d.tries + 1 < %(most)s::pg_catalog.int4
        THEN (SELECT {schema}.clock()) + pg_catalog.make_interval(secs => p.seconds) END
FROM ROWS FROM (
    pg_catalog.unnest(%(conversations)s::pg_catalog.uuid[]), pg_catalog.unnest(%(branches)s::pg_catalog.int4[]),
    pg_catalog.unnest(%(turns)s::pg_catalog.int4[]), pg_catalog.unnest(%(chunks)s::pg_catalog.int4[]),
    pg_catalog.unnest(%(errors)s::pg_catalog.text[]), pg_catalog.unnest(%(seconds)s::pg_catalog.float8[])
) AS p (conversation_id, branch, turn_index, chunk, error, seconds)
WHERE d.conversation_id = p.conversation_id AND d.branch = p.branch AND d.turn_index = p.turn_index AND d.chunk = p.chunk
    AND d.claim = %(claim)s
RETURNING d.next_try_at IS NULL

-- name: settle
-- What was claimed and has nothing left to be done.
UPDATE {schema}.document AS d SET claim = NULL, next_try_at = NULL, tries = 0
FROM ROWS FROM (
    pg_catalog.unnest(%(conversations)s::pg_catalog.uuid[]), pg_catalog.unnest(%(branches)s::pg_catalog.int4[]),
    pg_catalog.unnest(%(turns)s::pg_catalog.int4[]), pg_catalog.unnest(%(chunks)s::pg_catalog.int4[])
) AS p (conversation_id, branch, turn_index, chunk)
WHERE d.conversation_id = p.conversation_id AND d.branch = p.branch AND d.turn_index = p.turn_index AND d.chunk = p.chunk
    AND d.claim = %(claim)s
RETURNING true

-- name: requeue
-- Chunks whose embedding is not of the model wanted and for which nothing is to be done: now there is.
WITH stale AS MATERIALIZED (
    SELECT d.conversation_id, d.branch, d.turn_index, d.chunk FROM {schema}.document AS d
    WHERE d.text <> '' AND d.error IS NULL AND d.next_try_at IS NULL
        AND (d.model IS NULL OR d.model < %(model)s OR d.model > %(model)s)
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.document AS d SET next_try_at = (SELECT {schema}.clock()), tries = 0
FROM stale
WHERE d.conversation_id = stale.conversation_id AND d.branch = stale.branch AND d.turn_index = stale.turn_index
    AND d.chunk = stale.chunk
RETURNING true

-- name: retry_dead
-- Dead letters, some at a time, as if they had never been tried. Of errors there are no statistics, since they may quote a
-- text: that each of these has been tried tells the planner how few they are, as in their index.
WITH dead AS MATERIALIZED (
    SELECT d.conversation_id, d.branch, d.turn_index, d.chunk FROM {schema}.document AS d
    WHERE d.next_try_at IS NULL AND d.error IS NOT NULL AND d.tries > 0
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.document AS d SET next_try_at = (SELECT {schema}.clock()), tries = 0, error = NULL, claim = NULL
FROM dead
WHERE d.conversation_id = dead.conversation_id AND d.branch = dead.branch AND d.turn_index = dead.turn_index
    AND d.chunk = dead.chunk
RETURNING true

-- name: lag_fill
-- Turns whose text is to be filled, and since when the oldest of them is due.
SELECT pg_catalog.count(*), pg_catalog.min(d.next_try_at) FILTER (WHERE d.next_try_at <= (SELECT {schema}.clock()))
FROM {schema}.document AS d WHERE d.text IS NULL AND d.next_try_at IS NOT NULL

-- name: lag_archived
-- Turns that were archived without their text: it can't be filled until they are back.
SELECT pg_catalog.count(*) FROM {schema}.document AS d
WHERE d.text IS NULL AND d.next_try_at IS NULL AND d.error IS NULL

-- name: unfilled
-- How many turns wait for their text, of a conversation or of all.
SELECT pg_catalog.count(*) FROM {schema}.document AS d
WHERE d.text IS NULL AND d.next_try_at IS NOT NULL
    AND (%(conversation)s::pg_catalog.uuid IS NULL OR d.conversation_id = %(conversation)s)

-- name: lag_embed
-- Chunks whose embedding is to be made, and since when the oldest of them is due: those that wait for one, and, where a
-- model is named, those that have one of another or none.
SELECT pg_catalog.count(*), pg_catalog.min(d.next_try_at) FILTER (WHERE d.next_try_at <= (SELECT {schema}.clock()))
FROM {schema}.document AS d
WHERE d.text <> '' AND (d.next_try_at IS NOT NULL
    OR d.error IS NULL AND (d.model < %(model)s::pg_catalog.text OR d.model > %(model)s::pg_catalog.text
        OR d.model IS NULL AND %(model)s::pg_catalog.text IS NOT NULL))

-- name: lag_dead
-- Dead letters: those without a text, those without an embedding.
SELECT pg_catalog.count(*) FILTER (WHERE d.text IS NULL), pg_catalog.count(*) FILTER (WHERE d.text IS NOT NULL)
FROM {schema}.document AS d WHERE d.next_try_at IS NULL AND d.error IS NOT NULL AND d.tries > 0

-- name: dead
-- Some dead letters, and why.
SELECT d.conversation_id, d.branch, d.turn_index, d.chunk, d.tries, d.error
FROM {schema}.document AS d WHERE d.next_try_at IS NULL AND d.error IS NOT NULL AND d.tries > 0
LIMIT %(limit)s
