-- What archiving asks beside transfer.sql. Same form as statements.sql.

-- name: archive_close
-- Locks a conversation that is to be archived, or says what stands in the way.
SELECT outcome, branch, lease_owner, lease_until, waiting
FROM {schema}.archive_lock_v1(%(conversation)s, %(ended_seconds)s, %(idle_seconds)s)

-- name: archive_move
-- Puts the payload in the place of the rows it was made of.
SELECT {schema}.archive_move_v1(%(conversation)s, %(format)s, %(digest)s, %(payload)s, %(raw_bytes)s, %(branches)s,
    %(checkpoints)s, %(messages)s, %(requests)s, %(archived_at)s)

-- name: archive_open
-- Locks a conversation that is to be unarchived: whether it is archived.
SELECT v.archived_at IS NOT NULL FROM {schema}.conversation AS v WHERE v.conversation_id = %(conversation)s FOR UPDATE

-- name: archive_payload
-- What is archived of a conversation.
SELECT a.format, a.digest, a.payload, a.raw_bytes, a.branches, a.checkpoints, a.messages, a.requests
FROM {schema}.archive AS a WHERE a.conversation_id = %(conversation)s

-- name: archive_size
-- What an archived conversation comes to.
SELECT pg_catalog.octet_length(a.payload), a.raw_bytes, a.branches, a.checkpoints, a.messages, a.requests, a.archived_at
FROM {schema}.archive AS a WHERE a.conversation_id = %(conversation)s

-- name: archive_take_out
-- Removes what has been put back into the tables.
SELECT {schema}.unarchive_v1(%(conversation)s)

-- name: list_archived
-- Conversations in the archive, the newest first.
SELECT v.conversation_id, v.external_id, v.agent_id, v.tenant, v.title, v.tags, v.created_at, v.ended_at, v.archived_at,
    pg_catalog.octet_length(a.payload), a.raw_bytes, a.branches, a.checkpoints, a.messages, a.requests
FROM {schema}.conversation AS v
JOIN {schema}.archive AS a ON a.conversation_id = v.conversation_id
WHERE v.archived_at IS NOT NULL
    AND (%(agent)s::pg_catalog.text IS NULL OR v.agent_id = %(agent)s)
    AND (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
    AND (%(tags)s::pg_catalog.text[] IS NULL OR v.tags @> %(tags)s::pg_catalog.text[])
    AND (%(metadata)s::pg_catalog.text IS NULL OR v.metadata @> %(metadata)s::pg_catalog.text::pg_catalog.jsonb)
    AND (%(before_time)s::pg_catalog.timestamptz IS NULL
        OR (v.archived_at, v.conversation_id) < (%(before_time)s, %(before_conversation)s::pg_catalog.uuid))
ORDER BY v.archived_at DESC, v.conversation_id DESC
LIMIT %(limit)s

-- name: to_archive
-- Conversations that ended, or whose newest turn began, before a moment, by id, and that nothing is under way in.
SELECT v.conversation_id
FROM {schema}.conversation AS v
WHERE v.archived_at IS NULL AND v.conversation_id > %(after)s
    AND (%(agent)s::pg_catalog.text IS NULL OR v.agent_id = %(agent)s)
    AND (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
    AND (%(ended_seconds)s::pg_catalog.float8 IS NULL
        OR v.ended_at < {schema}.clock() - pg_catalog.make_interval(secs => %(ended_seconds)s))
    AND (%(idle_seconds)s::pg_catalog.float8 IS NULL OR NOT EXISTS (
        SELECT FROM {schema}.branch AS b
        WHERE b.conversation_id = v.conversation_id
            AND (b.status NOT IN ('idle', 'ended')
                OR b.updated_at >= {schema}.clock() - pg_catalog.make_interval(secs => %(idle_seconds)s))))
ORDER BY v.conversation_id LIMIT %(limit)s
