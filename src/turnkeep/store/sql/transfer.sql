-- A conversation's rows, read and written page by page: what exports, imports and archives ask. Same form as statements.sql.

-- name: conversation_rows
-- What is said of a conversation, in the order of the format.
SELECT coalesce(%(exported_at)s::pg_catalog.timestamptz, {schema}.clock()), v.conversation_id, v.external_id, v.agent_id,
    v.tenant, v.title, v.tags, v.metadata::pg_catalog.text, v.version, v.update_ids, v.parent_conversation_id, v.current_branch, v.next_branch, v.created_at, v.ended_at, v.archived_at,
    CASE WHEN v.ttl IS NOT NULL THEN ARRAY[
        pg_catalog.date_part('year', v.ttl) * 12 + pg_catalog.date_part('month', v.ttl), pg_catalog.date_part('day', v.ttl),
        pg_catalog.round(EXTRACT(hour FROM v.ttl) * 3600000000 + EXTRACT(minute FROM v.ttl) * 60000000
            + EXTRACT(microseconds FROM v.ttl))]::pg_catalog.int8[] END
FROM {schema}.conversation AS v WHERE v.conversation_id = %(conversation)s

-- name: branch_rows
-- Branches after a number. A lease does not travel: what is running waits for another worker, or has nothing to do.
SELECT b.branch, b.name,
    CASE WHEN b.status <> 'running' THEN b.status WHEN w.work THEN 'ready' ELSE 'idle' END,
    b.turn_index, b.sub_step, b.next_position, b.lineage, b.fork_id,
    CASE WHEN b.status = 'running' AND w.work THEN b.updated_at ELSE b.ready_at END,
    b.turn_started_at, b.not_before, b.attempts, b.failure::pg_catalog.text, b.updated_at
FROM {schema}.branch AS b
CROSS JOIN LATERAL (
    SELECT b.status = 'running' AND ({schema}.request_waits(b.conversation_id, b.branch)
        OR {schema}.turn_is_open(b.conversation_id, b.branch, b.lineage, b.turn_index, b.sub_step)) AS work
) AS w
WHERE b.conversation_id = %(conversation)s AND b.branch > %(branch)s
ORDER BY b.branch LIMIT %(rows)s

-- name: message_rows
-- Messages after a place, as many as a page takes, the first one in any case.
SELECT p.branch, p.position, p.body::pg_catalog.text
FROM (
    SELECT m.branch, m.position, m.body,
        pg_catalog.sum(m.size) OVER (ORDER BY m.branch, m.position) - m.size AS before
    FROM (
        SELECT n.branch, n.position, n.body, n.size FROM {schema}.message AS n
        WHERE n.conversation_id = %(conversation)s AND (n.branch, n.position) > (%(branch)s, %(position)s)
        ORDER BY n.branch, n.position LIMIT %(rows)s
    ) AS m
) AS p
WHERE p.before < %(bytes)s
ORDER BY p.branch, p.position

-- name: checkpoint_rows
-- Checkpoints after a place, as many as a page takes.
SELECT p.turn_index, p.sub_step, p.branch, p.id, p.parent_turn_index, p.parent_sub_step, p.parent_branch, p.phase,
    p.agent_id, p.created_at, p.write_id, p.spans, p.tool_calls::pg_catalog.text, p.tool_results::pg_catalog.text, p.answers,
    p.state::pg_catalog.text, p.origin_conversation, p.origin_branch
FROM (
    SELECT c.*, pg_catalog.sum(c.stored) OVER (ORDER BY c.turn_index, c.sub_step, c.branch) - c.stored AS before
    FROM (
        SELECT n.*, coalesce(pg_catalog.pg_column_size(n.tool_calls), 0) + coalesce(pg_catalog.pg_column_size(n.tool_results), 0)
            + coalesce(pg_catalog.pg_column_size(n.state), 0) + pg_catalog.pg_column_size(n.spans) AS stored
        FROM {schema}.checkpoint AS n
        WHERE n.conversation_id = %(conversation)s
            AND (n.turn_index, n.sub_step, n.branch) > (%(turn_index)s, %(sub_step)s, %(branch)s)
        ORDER BY n.turn_index, n.sub_step, n.branch LIMIT %(rows)s
    ) AS c
) AS p
WHERE p.before < %(bytes)s
ORDER BY p.turn_index, p.sub_step, p.branch

-- name: request_rows
-- Requests in the order of their arrival, after a number.
SELECT p.key, p.number, p.branch, p.body::pg_catalog.text, p.digest, p.received_at, p.taken_turn
FROM (
    SELECT r.*, pg_catalog.sum(r.stored) OVER (ORDER BY r.number) - r.stored AS before
    FROM (
        SELECT n.*, coalesce(pg_catalog.pg_column_size(n.body), 0) + 100 AS stored FROM {schema}.request AS n
        WHERE n.conversation_id = %(conversation)s AND n.number > %(number)s
        ORDER BY n.number LIMIT %(rows)s
    ) AS r
) AS p
WHERE p.before < %(bytes)s
ORDER BY p.number

-- name: document_rows
-- Documents after a place, with their embeddings as text; those that have no text yet can be made again.
SELECT d.branch, d.turn_index, d.chunk, d.text, d.model, d.created_at, pg_catalog.translate((d.embedding::pg_catalog.float4[])::pg_catalog.text, '{{}}', '[]'),
    d.left_out
FROM {schema}.document AS d
WHERE d.conversation_id = %(conversation)s AND d.text IS NOT NULL
    AND (d.branch, d.turn_index, d.chunk) > (%(branch)s, %(turn_index)s, %(chunk)s)
ORDER BY d.branch, d.turn_index, d.chunk LIMIT %(rows)s

-- name: presence
-- Whether a conversation is there, and archived.
SELECT v.archived_at IS NOT NULL FROM {schema}.conversation AS v WHERE v.conversation_id = %(conversation)s

-- name: put_branches
-- Branches, unless there are any of that number.
INSERT INTO {schema}.branch (conversation_id, branch, name, status, turn_index, sub_step, next_position, lineage, fork_id,
    ready_at, turn_started_at, not_before, attempts, failure, updated_at)
SELECT %(conversation)s, r.branch, r.name, r.status, r.turn_index, r.sub_step, r.next_position, r.lineage, r.fork_id,
    r.ready_at, r.turn_started_at, r.not_before, r.attempts, r.failure::pg_catalog.json, r.updated_at
FROM pg_catalog.json_to_recordset(%(lines)s::pg_catalog.json) AS r (
    branch pg_catalog.int4, name pg_catalog.text, status pg_catalog.text, turn_index pg_catalog.int4,
    sub_step pg_catalog.int4, next_position pg_catalog.int4, lineage pg_catalog.int4[], fork_id pg_catalog.uuid,
    ready_at pg_catalog.timestamptz, turn_started_at pg_catalog.timestamptz, not_before pg_catalog.timestamptz,
    attempts pg_catalog.int4, failure pg_catalog.text, updated_at pg_catalog.timestamptz)
ORDER BY r.branch
ON CONFLICT DO NOTHING
RETURNING branch

-- name: put_conversation
-- A conversation, unless there is one of that id.
INSERT INTO {schema}.conversation (conversation_id, external_id, agent_id, tenant, title, tags, metadata, version, update_ids,
    parent_conversation_id, current_branch, next_branch, created_at, ended_at, kept_since, ttl)
SELECT %(conversation)s, r.external_id, r.agent_id, r.tenant, r.title, r.tags, r.metadata::pg_catalog.jsonb, r.version,
    r.update_ids, r.parent_conversation_id, r.current_branch, r.next_branch, r.created_at, r.ended_at,
    {schema}.clock(),
    pg_catalog.make_interval(months => r.ttl[1]::pg_catalog.int4, days => r.ttl[2]::pg_catalog.int4)
        + r.ttl[3] * pg_catalog.make_interval(secs => 0.000001)
FROM pg_catalog.json_to_recordset(%(lines)s::pg_catalog.json) AS r (
    external_id pg_catalog.text, agent_id pg_catalog.text, tenant pg_catalog.text, title pg_catalog.text,
    tags pg_catalog.text[], metadata pg_catalog.text, version pg_catalog.int4, update_ids pg_catalog.uuid[],
    parent_conversation_id pg_catalog.uuid, current_branch pg_catalog.int4, next_branch pg_catalog.int4,
    created_at pg_catalog.timestamptz, ended_at pg_catalog.timestamptz, ttl pg_catalog.int8[])
ON CONFLICT DO NOTHING
RETURNING 1

-- name: hold_parent
-- Keeps the conversation that another one is part of from being erased beside it, if it is there.
SELECT FROM {schema}.conversation AS v WHERE v.conversation_id = %(parent)s::pg_catalog.uuid FOR KEY SHARE

-- name: metadata_text
-- Metadata as they will be read again.
SELECT %(metadata)s::pg_catalog.jsonb::pg_catalog.text

-- name: missing
-- How many of these conversations are not there.
SELECT pg_catalog.count(*) FROM pg_catalog.unnest(%(conversations)s::pg_catalog.uuid[]) AS u (conversation_id)
WHERE NOT EXISTS (SELECT FROM {schema}.conversation AS v WHERE v.conversation_id = u.conversation_id)

-- name: put_messages
-- Messages.
INSERT INTO {schema}.message (conversation_id, branch, position, body, size)
SELECT %(conversation)s, r.branch, r.position, r.body::pg_catalog.json, pg_catalog.octet_length(r.body)
FROM pg_catalog.json_to_recordset(%(lines)s::pg_catalog.json) AS r (
    branch pg_catalog.int4, position pg_catalog.int4, body pg_catalog.text)

-- name: put_checkpoints
-- Checkpoints, with numbers of this database's own.
INSERT INTO {schema}.checkpoint (conversation_id, turn_index, sub_step, branch, parent_turn_index, parent_sub_step,
    parent_branch, phase, agent_id, created_at, write_id, spans, tool_calls, tool_results, answers, state,
    origin_conversation, origin_branch)
SELECT %(conversation)s, r.turn_index, r.sub_step, r.branch, r.parent_turn_index, r.parent_sub_step, r.parent_branch,
    r.phase, r.agent_id, r.created_at, r.write_id, r.spans, r.tool_calls::pg_catalog.json, r.tool_results::pg_catalog.json,
    r.answers, r.state::pg_catalog.json, r.origin_conversation, r.origin_branch
FROM pg_catalog.json_to_recordset(%(lines)s::pg_catalog.json) AS r (
    turn_index pg_catalog.int4, sub_step pg_catalog.int4, branch pg_catalog.int4, parent_turn_index pg_catalog.int4,
    parent_sub_step pg_catalog.int4, parent_branch pg_catalog.int4, phase pg_catalog.text, agent_id pg_catalog.text,
    created_at pg_catalog.timestamptz, write_id pg_catalog.uuid, spans pg_catalog.int4[], tool_calls pg_catalog.text,
    tool_results pg_catalog.text, answers pg_catalog.int4[], state pg_catalog.text, origin_conversation pg_catalog.uuid,
    origin_branch pg_catalog.int4)

-- name: put_checkpoints_back
-- Checkpoints, with the numbers they had in this database.
INSERT INTO {schema}.checkpoint (conversation_id, turn_index, sub_step, branch, id, parent_turn_index, parent_sub_step,
    parent_branch, phase, agent_id, created_at, write_id, spans, tool_calls, tool_results, answers, state,
    origin_conversation, origin_branch)
OVERRIDING SYSTEM VALUE
SELECT %(conversation)s, r.turn_index, r.sub_step, r.branch, r.id, r.parent_turn_index, r.parent_sub_step, r.parent_branch,
    r.phase, r.agent_id, r.created_at, r.write_id, r.spans, r.tool_calls::pg_catalog.json, r.tool_results::pg_catalog.json,
    r.answers, r.state::pg_catalog.json, r.origin_conversation, r.origin_branch
FROM pg_catalog.json_to_recordset(%(lines)s::pg_catalog.json) AS r (
    turn_index pg_catalog.int4, sub_step pg_catalog.int4, branch pg_catalog.int4, id pg_catalog.int8,
    parent_turn_index pg_catalog.int4, parent_sub_step pg_catalog.int4, parent_branch pg_catalog.int4,
    phase pg_catalog.text, agent_id pg_catalog.text, created_at pg_catalog.timestamptz, write_id pg_catalog.uuid,
    spans pg_catalog.int4[], tool_calls pg_catalog.text, tool_results pg_catalog.text, answers pg_catalog.int4[],
    state pg_catalog.text, origin_conversation pg_catalog.uuid, origin_branch pg_catalog.int4)

-- name: put_requests
-- Requests in their order, with numbers of this database's own.
INSERT INTO {schema}.request (conversation_id, key, branch, body, digest, received_at, taken_turn)
SELECT %(conversation)s, r.key, r.branch, r.body::pg_catalog.json, pg_catalog.decode(r.digest, 'hex'), r.received_at,
    r.taken_turn
FROM pg_catalog.json_to_recordset(%(lines)s::pg_catalog.json) AS r (
    key pg_catalog.text, number pg_catalog.int8, branch pg_catalog.int4, body pg_catalog.text, digest pg_catalog.text,
    received_at pg_catalog.timestamptz, taken_turn pg_catalog.int4)
ORDER BY r.number

-- name: put_requests_back
-- Requests, with the numbers they had in this database.
INSERT INTO {schema}.request (conversation_id, key, number, branch, body, digest, received_at, taken_turn)
OVERRIDING SYSTEM VALUE
SELECT %(conversation)s, r.key, r.number, r.branch, r.body::pg_catalog.json, pg_catalog.decode(r.digest, 'hex'),
    r.received_at, r.taken_turn
FROM pg_catalog.json_to_recordset(%(lines)s::pg_catalog.json) AS r (
    key pg_catalog.text, number pg_catalog.int8, branch pg_catalog.int4, body pg_catalog.text, digest pg_catalog.text,
    received_at pg_catalog.timestamptz, taken_turn pg_catalog.int4)

-- name: put_documents
-- Documents. What has another number of dimensions than the column is left out, and made again.
INSERT INTO {schema}.document (conversation_id, branch, turn_index, chunk, text, tsv, model, created_at, embedding,
    left_out, next_try_at)
SELECT %(conversation)s, r.branch, r.turn_index, r.chunk, r.text, {schema}.words_of(r.text),
    CASE WHEN d.typmod IN (-1, pg_catalog.cardinality(e.embedding)) THEN r.model END, r.created_at,
    CASE WHEN d.typmod IN (-1, pg_catalog.cardinality(e.embedding)) THEN e.embedding END, r.left_out, NULL
FROM (
    SELECT a.atttypmod AS typmod FROM pg_catalog.pg_type AS t
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = t.typrelid AND a.attname = 'embedding'
    WHERE t.oid = pg_catalog.pg_typeof(NULL::{schema}.document)
) AS d
CROSS JOIN pg_catalog.json_to_recordset(%(lines)s::pg_catalog.json) AS r (
    branch pg_catalog.int4, turn_index pg_catalog.int4, chunk pg_catalog.int4, text pg_catalog.text, model pg_catalog.text,
    created_at pg_catalog.timestamptz, embedding pg_catalog.text, left_out pg_catalog.int8)
CROSS JOIN LATERAL (
    SELECT pg_catalog.translate(r.embedding, '[]', '{{}}')::pg_catalog.float4[] AS embedding OFFSET 0
) AS e

-- name: put_pointers
-- For each turn that has ended and has no document, a row to be filled.
INSERT INTO {schema}.document (conversation_id, branch, turn_index, next_try_at)
SELECT c.conversation_id, c.branch, c.turn_index, {schema}.clock()
FROM {schema}.checkpoint AS c
WHERE c.conversation_id = %(conversation)s AND c.phase = 'final'
ON CONFLICT DO NOTHING

-- name: transfer_moment
-- What time it is.
SELECT {schema}.clock()

-- name: matching
-- Conversations that fit, by id, after one.
SELECT v.conversation_id FROM {schema}.conversation AS v
WHERE v.conversation_id > %(after)s
    AND (%(agent)s::pg_catalog.text IS NULL OR v.agent_id = %(agent)s)
    AND (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
    AND (%(tags)s::pg_catalog.text[] IS NULL OR v.tags @> %(tags)s::pg_catalog.text[])
    AND (%(metadata)s::pg_catalog.text IS NULL OR v.metadata @> %(metadata)s::pg_catalog.text::pg_catalog.jsonb)
ORDER BY v.conversation_id LIMIT %(limit)s

-- name: count_matching
-- How many fit.
SELECT pg_catalog.count(*) FROM {schema}.conversation AS v
WHERE (%(agent)s::pg_catalog.text IS NULL OR v.agent_id = %(agent)s)
    AND (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
    AND (%(tags)s::pg_catalog.text[] IS NULL OR v.tags @> %(tags)s::pg_catalog.text[])
    AND (%(metadata)s::pg_catalog.text IS NULL OR v.metadata @> %(metadata)s::pg_catalog.text::pg_catalog.jsonb)

-- name: family
-- A conversation and its children, at any depth.
WITH RECURSIVE family AS (
    SELECT v.conversation_id FROM {schema}.conversation AS v WHERE v.conversation_id = %(conversation)s
    UNION
    SELECT v.conversation_id
    FROM family AS f
    JOIN {schema}.conversation AS v ON v.parent_conversation_id = f.conversation_id
)
SELECT f.conversation_id FROM family AS f
