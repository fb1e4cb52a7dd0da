-- What removes what is old. Same form as statements.sql.

-- name: prune
-- Old checkpoints of a conversation removed, and with the last of them messages.
SELECT outcome, checkpoints, messages, documents, bytes, held_back, turn_index, sub_step, branch
FROM {schema}.prune_v1(%(conversation)s, %(keep)s, %(older_than)s, %(limit)s, %(turn)s, %(sub_step)s, %(branch)s)

-- name: prune_messages
-- Messages that no checkpoint holds removed.
SELECT messages, bytes, more, branch, position
FROM {schema}.prune_messages_v1(%(conversation)s, %(limit)s, %(branch)s, %(position)s)

-- name: prune_look
-- What pruning would remove of a conversation's checkpoints below a place, and what messages the others hold.
SELECT outcome, checkpoints, bytes, held_back, held, turn_index, sub_step, branch
FROM {schema}.prune_look_v1(%(conversation)s, %(keep)s, %(older_than)s, %(limit)s, %(turn)s, %(sub_step)s, %(branch)s)

-- name: positions
-- How many messages each branch has ever had of its own.
SELECT b.branch, b.next_position FROM {schema}.branch AS b WHERE b.conversation_id = %(conversation)s ORDER BY b.branch

-- name: sizes
-- How many messages there are in ranges of positions, and their bytes.
SELECT pg_catalog.count(*), coalesce(pg_catalog.sum(m.size), 0)::pg_catalog.int8
FROM {schema}.spans_of(%(ranges)s::pg_catalog.int4[]) AS s
JOIN {schema}.message AS m ON m.conversation_id = %(conversation)s AND m.branch = s.branch
    AND m.position >= s.start AND m.position < s.stop

-- name: prunable
-- Conversations that hold checkpoints of that age, by id.
SELECT v.conversation_id
FROM {schema}.conversation AS v
WHERE v.conversation_id > %(after)s AND v.archived_at IS NULL
    AND (%(agent)s::pg_catalog.text IS NULL OR v.agent_id = %(agent)s)
    AND (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
    AND (%(tags)s::pg_catalog.text[] IS NULL OR v.tags @> %(tags)s::pg_catalog.text[])
    AND (%(metadata)s::pg_catalog.text IS NULL OR v.metadata @> %(metadata)s::pg_catalog.text::pg_catalog.jsonb)
    AND EXISTS (
        SELECT FROM {schema}.checkpoint AS c
        WHERE c.conversation_id = v.conversation_id AND c.created_at < (SELECT {schema}.clock()) - %(older_than)s::pg_catalog.interval)
ORDER BY v.conversation_id
LIMIT %(limit)s

-- name: prunable_count
-- How many conversations there are to look at.
SELECT pg_catalog.count(*)
FROM {schema}.conversation AS v
WHERE v.archived_at IS NULL
    AND (%(agent)s::pg_catalog.text IS NULL OR v.agent_id = %(agent)s)
    AND (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
    AND (%(tags)s::pg_catalog.text[] IS NULL OR v.tags @> %(tags)s::pg_catalog.text[])
    AND (%(metadata)s::pg_catalog.text IS NULL OR v.metadata @> %(metadata)s::pg_catalog.text::pg_catalog.jsonb)

-- name: pruned
-- Of a place in a branch's history where no checkpoint is: whether the branch has gone on from it, whether there must have
-- been one, and whether there can have been one.
SELECT %(turn)s >= 0 AND (%(turn)s, %(sub_step)s) < (b.turn_index, b.sub_step),
    %(sub_step)s = 0 OR coalesce(pg_catalog.bool_or(c.sub_step > %(sub_step)s), false),
    coalesce(pg_catalog.bool_and(c.phase <> 'final' OR c.sub_step > %(sub_step)s), true)
FROM {schema}.conversation AS v
JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id
    AND b.branch = coalesce(%(branch)s::pg_catalog.int4, v.current_branch)
LEFT JOIN {schema}.checkpoint AS c ON c.conversation_id = b.conversation_id AND c.turn_index = %(turn)s
    AND c.branch = {schema}.owner_of(b.branch, b.lineage, c.turn_index, c.sub_step)
WHERE v.conversation_id = %(conversation)s
GROUP BY b.turn_index, b.sub_step

-- name: perishable
-- Whether anything at all has a time to live.
SELECT EXISTS (SELECT FROM {schema}.retention) OR EXISTS (SELECT FROM {schema}.conversation AS v WHERE v.ttl IS NOT NULL)

-- name: due
-- Of so many conversations by id those whose own time is over, how many they were, and the last of them.
SELECT coalesce(pg_catalog.array_agg(w.conversation_id) FILTER (WHERE w.due), '{{}}'), pg_catalog.count(*),
    (pg_catalog.array_agg(w.conversation_id ORDER BY w.conversation_id DESC))[1]
FROM (
    SELECT v.conversation_id, (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
        AND CASE WHEN coalesce(v.ttl, r.ttl) IS NOT NULL THEN {schema}.is_over(
            greatest(v.created_at, v.archived_at, v.kept_since, (
                SELECT pg_catalog.max(b.updated_at) FROM {schema}.branch AS b WHERE b.conversation_id = v.conversation_id)),
            coalesce(v.ttl, r.ttl), (SELECT {schema}.clock()))
        ELSE false END AS due
    FROM (
        SELECT o.* FROM {schema}.conversation AS o WHERE o.conversation_id > %(after)s
        ORDER BY o.conversation_id LIMIT %(limit)s
    ) AS v
    LEFT JOIN {schema}.retention AS r ON r.agent_id = v.agent_id
) AS w

-- name: expire
-- Erases a conversation if its time is over.
SELECT outcome, conversations, branches, checkpoints, messages, requests
FROM {schema}.expire_v1(%(conversation)s, %(look)s)

-- name: set_retention
-- How long an agent's conversations are kept.
SELECT {schema}.set_retention_v1(%(agent)s, %(ttl)s)

-- name: retention
-- How long the conversations of each agent are kept.
SELECT r.agent_id, r.ttl FROM {schema}.retention AS r ORDER BY r.agent_id
