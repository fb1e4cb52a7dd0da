-- Every statement the store sends, once. "-- name:" starts one; the line after it says what it is for.

-- name: revision
-- The newest numbered migration, and how many dimensions an embedding has: null where pgvector is not installed.
SELECT pg_catalog.max(m.number), (
    SELECT nullif(a.atttypmod, -1) FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid AND c.relname = 'document'
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = %(schema)s
    WHERE a.attname = 'embedding' AND NOT a.attisdropped)
FROM {schema}.migration AS m

-- name: save
-- One sub-step: messages and a checkpoint, or the first outcome of the same write.
SELECT outcome, branch, turn_index, sub_step, lease_until, waiting
FROM {schema}.save_v1(%(conversation)s, %(branch)s, %(turn)s, %(sub_step)s, %(token)s, %(lease_seconds)s,
    %(write_id)s, %(repeatable)s, %(phase)s, %(agent)s, %(count)s, %(messages)s, %(tool_calls)s, %(tool_results)s, %(answers)s,
    %(state)s, %(key)s, %(digest)s, %(parts)s, %(seen)s, %(embedding)s::pg_catalog.float4[], %(model)s)

-- name: save_turn
-- A whole turn at once: its input and its end, both or none.
SELECT outcome, branch, turn_index, sub_step, lease_until, waiting
FROM {schema}.save_turn_v1(%(conversation)s, %(branch)s, %(turn)s, %(sub_step)s, %(token)s, %(lease_seconds)s,
    %(first_id)s, %(write_id)s, %(agent)s, %(count)s, %(messages)s, %(tool_calls)s, %(tool_results)s, %(answers)s, %(state)s,
    %(parts)s, %(seen)s, %(embedding)s::pg_catalog.float4[], %(model)s)

-- name: head
-- Where a branch stands, for whoever goes on from it without writing.
SELECT b.turn_index, b.sub_step, c.write_id, b.status, b.lease_token, b.lease_until, b.lease_until > {schema}.clock()
FROM {schema}.branch AS b
LEFT JOIN {schema}.checkpoint AS c ON c.conversation_id = b.conversation_id AND c.turn_index = b.turn_index
    AND c.sub_step = b.sub_step AND c.branch = {schema}.owner_of(b.branch, b.lineage, b.turn_index, b.sub_step)
WHERE b.conversation_id = %(conversation)s AND b.branch = %(branch)s

-- name: written
-- Where a write id stands on a branch. The lock lets the answer wait for synchronous standbys: see confirm.
SELECT c.turn_index, c.sub_step, c.phase
FROM {schema}.checkpoint AS c
WHERE c.conversation_id = %(conversation)s AND c.branch = %(branch)s AND c.write_id = %(write_id)s
ORDER BY c.turn_index DESC, c.sub_step DESC LIMIT 1 FOR KEY SHARE OF c

-- name: take
-- The next turn, begun with the oldest request that waits.
SELECT outcome, turn_index, sub_step, lease_until, key, body::pg_catalog.text
FROM {schema}.take_v1(%(conversation)s, %(branch)s, %(turn)s, %(sub_step)s, %(token)s, %(lease_seconds)s, %(write_id)s,
    %(agent)s, %(state)s, %(seen)s)

-- name: post
-- A message accepted under a key, or found there.
SELECT outcome, branch FROM {schema}.post_v1(%(conversation)s, %(branch)s, %(key)s, %(body)s, %(digest)s)

-- name: request
-- What has become of a request: its branch, and the newest checkpoint of its turn.
SELECT r.branch, r.taken_turn, c.sub_step, c.phase, b.status, b.turn_index, b.failure::pg_catalog.text
FROM {schema}.request AS r
JOIN {schema}.branch AS b ON b.conversation_id = r.conversation_id AND b.branch = r.branch
LEFT JOIN LATERAL (
    SELECT t.sub_step, t.phase FROM {schema}.checkpoint AS t
    WHERE t.conversation_id = r.conversation_id AND t.turn_index = r.taken_turn AND t.branch = r.branch
    ORDER BY t.sub_step DESC LIMIT 1
) AS c ON true
WHERE r.conversation_id = %(conversation)s AND r.key = %(key)s

-- name: turn_head
-- The newest checkpoint of a turn on the branch that began it.
SELECT c.sub_step, c.phase
FROM {schema}.checkpoint AS c
WHERE c.conversation_id = %(conversation)s AND c.branch = %(branch)s AND c.turn_index = %(turn)s
ORDER BY c.sub_step DESC LIMIT 1

-- name: create
-- A conversation with its branch 0, unless it is there.
SELECT outcome FROM {schema}.create_v2(%(conversation)s, %(external_id)s, %(agent)s, %(tenant)s, %(parent)s, %(title)s,
    %(tags)s, %(metadata)s, %(ttl)s)

-- name: describe
-- What is said of a conversation.
SELECT v.conversation_id, v.external_id, v.agent_id, v.tenant, v.title, v.tags, v.metadata::pg_catalog.text, v.version,
    v.parent_conversation_id, v.current_branch, v.created_at, v.ended_at, v.archived_at, v.ttl
FROM {schema}.conversation AS v WHERE v.conversation_id = %(conversation)s

-- name: update
-- Changes what is said of a conversation.
SELECT outcome, version FROM {schema}.update_v1(%(conversation)s, %(update_id)s, %(version)s, %(names)s, %(title)s,
    %(tags)s, %(metadata)s, %(ttl)s)

-- name: end
-- Ends a conversation.
SELECT outcome, branch, lease_owner, lease_until FROM {schema}.end_v1(%(conversation)s)

-- name: reopen
-- Takes an end back.
SELECT outcome FROM {schema}.reopen_v1(%(conversation)s)

-- name: erase
-- Removes a conversation and its children for good.
SELECT conversations, branches, checkpoints, messages, requests FROM {schema}.erase_v1(%(conversation)s)

-- name: fork
-- A branch at a checkpoint, or the one that the same fork id made.
SELECT outcome, branch
FROM {schema}.fork_v1(%(conversation)s, %(source)s, %(turn)s, %(sub_step)s, %(name)s, %(fork_id)s)

-- name: fork_into
-- A new conversation with a copy of the history up to a checkpoint.
SELECT {schema}.fork_into_v1(%(conversation)s, %(source)s, %(turn)s, %(sub_step)s, %(name)s, %(fork_id)s, %(into)s,
    %(external_id)s, %(tenant)s)

-- name: branches
-- The branches of a conversation, and where each was forked.
SELECT b.conversation_id, b.branch, b.name, b.status, b.turn_index, b.sub_step,
    b.lineage[pg_catalog.cardinality(b.lineage) - 2:] AS parent, b.branch = v.current_branch AS current,
    b.turn_started_at, b.updated_at, b.lease_owner, b.lease_until
FROM {schema}.conversation AS v
JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id
WHERE v.conversation_id = %(conversation)s
ORDER BY b.branch

-- name: branch_named
-- The number of a branch.
SELECT b.branch FROM {schema}.branch AS b WHERE b.conversation_id = %(conversation)s AND b.name = %(name)s

-- name: switch
-- Makes a branch the current one.
SELECT {schema}.switch_v1(%(conversation)s, %(branch)s)

-- name: delete_branch
-- Removes a branch that nothing is built on.
SELECT outcome, builders, lease_owner, lease_until FROM {schema}.delete_branch_v1(%(conversation)s, %(branch)s)

-- name: ready
-- Branches that wait for a worker of these agents, the longest waiting first.
SELECT b.conversation_id, b.branch, v.agent_id, b.attempts, NULL::pg_catalog.text
FROM {schema}.branch AS b
JOIN {schema}.conversation AS v ON v.conversation_id = b.conversation_id
WHERE b.status = 'ready' AND b.ready_at <= (SELECT {schema}.clock()) AND v.agent_id = ANY (%(agents)s)
ORDER BY b.ready_at
LIMIT %(limit)s

-- name: expired
-- Branches whose worker of these agents has lost its lease, and who that was.
SELECT b.conversation_id, b.branch, v.agent_id, b.attempts, coalesce(b.lease_owner, 'a worker without a name')
FROM {schema}.branch AS b
JOIN {schema}.conversation AS v ON v.conversation_id = b.conversation_id
WHERE b.status = 'running' AND b.lease_until <= (SELECT {schema}.clock()) AND v.agent_id = ANY (%(agents)s)
ORDER BY b.lease_until
LIMIT %(limit)s

-- name: busy
-- Whether these agents have anything to do, or in hand.
SELECT EXISTS (
    SELECT FROM {schema}.branch AS b
    JOIN {schema}.conversation AS v ON v.conversation_id = b.conversation_id
    WHERE b.status IN ('ready', 'running') AND v.agent_id = ANY (%(agents)s))

-- name: claim
-- A lease where none is live.
SELECT outcome, lease_until, lease_owner
FROM {schema}.claim_v1(%(conversation)s, %(branch)s, %(owner)s, %(token)s, %(lease_seconds)s, %(waiting)s)

-- name: renew
-- A lease's new end.
SELECT {schema}.renew_v1(%(conversation)s, %(branch)s, %(token)s, %(lease_seconds)s)

-- name: release
-- Hands a lease back.
SELECT {schema}.release_v1(%(conversation)s, %(branch)s, %(token)s, %(delay)s, %(stopped)s, %(failure)s)

-- name: resume
-- Gives a branch that is stopped to the workers.
SELECT outcome, branch, lease_owner, lease_until FROM {schema}.resume_v1(%(conversation)s, %(branch)s)

-- name: lock
-- Waits for whoever writes to a branch.
SELECT b.turn_index FROM {schema}.branch AS b
WHERE b.conversation_id = %(conversation)s AND b.branch = %(branch)s FOR UPDATE

-- name: transaction_id
-- The id of the transaction under way, which is given one.
SELECT pg_catalog.pg_current_xact_id()::pg_catalog.text

-- name: tidy_session
-- Undoes what a caller's transaction has left behind in a session, its prepared statements aside.
CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; SELECT pg_catalog.pg_advisory_unlock_all();
DISCARD SEQUENCES; DISCARD TEMP

-- name: transaction_status
-- What has become of a transaction.
SELECT pg_catalog.pg_xact_status(%(transaction)s::pg_catalog.text::pg_catalog.xid8)

-- name: restore
-- Checkpoints whole, as parts: 0 the head, 1 state, 2 tool calls, 3 tool results, 4 calls and answers of an open turn,
-- 5 the messages in order. -2 stands for null in what is asked for: array_nulls = off would take NULL for a number.
WITH wanted AS (
    SELECT w.item, v.conversation_id, v.external_id, v.agent_id AS conversation_agent, v.current_branch, b.branch,
        b.name, b.lineage, b.status, b.failure, b.lease_owner, b.lease_until, coalesce(w.turn, b.turn_index) AS turn_index,
        coalesce(w.sub_step, b.sub_step) AS sub_step,
        w.turn IS NOT NULL AND (w.turn, w.sub_step) <> (b.turn_index, b.sub_step) AS earlier
    FROM (
        SELECT a.item, a.conversation_id, nullif(a.branch, -2) AS branch, nullif(a.turn, -2) AS turn,
            nullif(a.sub_step, -2) AS sub_step
        FROM ROWS FROM (
            pg_catalog.unnest(%(conversations)s::pg_catalog.uuid[]), pg_catalog.unnest(%(branches)s::pg_catalog.int4[]),
            pg_catalog.unnest(%(turns)s::pg_catalog.int4[]), pg_catalog.unnest(%(sub_steps)s::pg_catalog.int4[])
        ) WITH ORDINALITY AS a (conversation_id, branch, turn, sub_step, item)
    ) AS w
    JOIN {schema}.conversation AS v ON v.conversation_id = w.conversation_id
    JOIN {schema}.branch AS b ON b.conversation_id = w.conversation_id
        AND b.branch = coalesce(w.branch, v.current_branch)
), head AS MATERIALIZED (
    SELECT w.*, c.branch AS head_branch, c.phase, c.agent_id, c.created_at, c.write_id, c.spans, c.tool_calls,
        c.tool_results, c.state, c.parent_turn_index, c.parent_sub_step, c.parent_branch
    FROM wanted AS w
    LEFT JOIN {schema}.checkpoint AS c ON c.conversation_id = w.conversation_id AND c.turn_index = w.turn_index
        AND c.sub_step = w.sub_step
        AND c.branch = {schema}.owner_of(w.branch, w.lineage, w.turn_index, w.sub_step)
)
SELECT h.item::pg_catalog.int4, 0 AS part, 0 AS ord, 0 AS position, pg_catalog.json_build_object(
    'conversation_id', h.conversation_id, 'external_id', h.external_id, 'conversation_agent', h.conversation_agent,
    'current_branch', h.current_branch, 'branch', h.branch, 'name', h.name, 'status', h.status, 'failure', h.failure,
    'lease_owner', h.lease_owner, 'lease_until', h.lease_until, 'turn_index', h.turn_index,
    'sub_step', h.sub_step, 'head_branch', h.head_branch, 'phase', h.phase, 'agent_id', h.agent_id,
    'earlier', h.earlier, 'created_at', h.created_at, 'write_id', h.write_id, 'spans', h.spans,
    'parent', ARRAY[h.parent_turn_index, h.parent_sub_step, h.parent_branch])::pg_catalog.text AS content
FROM head AS h
UNION ALL
SELECT h.item::pg_catalog.int4, 1, 0, 0, h.state::pg_catalog.text FROM head AS h WHERE h.state IS NOT NULL
UNION ALL
SELECT h.item::pg_catalog.int4, 2, 0, 0, h.tool_calls::pg_catalog.text FROM head AS h WHERE h.tool_calls IS NOT NULL
UNION ALL
SELECT h.item::pg_catalog.int4, 3, 0, 0, h.tool_results::pg_catalog.text FROM head AS h WHERE h.tool_results IS NOT NULL
UNION ALL
SELECT h.item::pg_catalog.int4, 4, c.sub_step, c.branch,
    pg_catalog.concat(CASE c.phase WHEN 'started' THEN '+' END, c.answers, ' ', c.origin_conversation, ' ', c.origin_branch,
        E'\n', c.tool_calls)
FROM head AS h
JOIN {schema}.checkpoint AS c ON c.conversation_id = h.conversation_id AND c.turn_index = h.turn_index
    AND c.sub_step <= h.sub_step
    AND c.branch = {schema}.owner_of(h.branch, h.lineage, c.turn_index, c.sub_step)
WHERE h.phase <> 'final' AND (c.tool_calls IS NOT NULL OR c.answers IS NOT NULL)
UNION ALL
SELECT h.item::pg_catalog.int4, 5, s.ord, m.position, m.body::pg_catalog.text
FROM head AS h
CROSS JOIN LATERAL {schema}.spans_of(h.spans) AS s
JOIN {schema}.message AS m ON m.conversation_id = h.conversation_id AND m.branch = s.branch
    AND m.position >= s.start AND m.position < s.stop
ORDER BY 1, 2, 3, 4

-- name: interrupted
-- Branches in the middle of a turn that no live lease holds, by key.
SELECT v.conversation_id, v.external_id, v.agent_id, v.created_at, b.branch, b.name, b.status, b.turn_index, b.sub_step,
    b.turn_started_at, b.updated_at, b.lease_owner, b.lease_until, v.tenant, v.title, v.tags, v.ended_at
FROM {schema}.branch AS b
JOIN {schema}.conversation AS v ON v.conversation_id = b.conversation_id
JOIN {schema}.checkpoint AS c ON c.conversation_id = b.conversation_id AND c.turn_index = b.turn_index
    AND c.sub_step = b.sub_step AND c.branch = {schema}.owner_of(b.branch, b.lineage, b.turn_index, b.sub_step)
WHERE b.status IN ('open', 'running', 'ready')
    AND (b.lease_until IS NULL OR b.lease_until <= {schema}.clock())
    AND c.phase <> 'final'
    AND (%(agent)s::pg_catalog.text IS NULL OR v.agent_id = %(agent)s)
    AND (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
    AND (b.conversation_id, b.branch) > (%(after_conversation)s, %(after_branch)s)
ORDER BY b.conversation_id, b.branch
LIMIT %(limit)s

-- name: list
-- Conversations by their current branch's newest turn, among as many of the newest branches as `window` says.
SELECT v.conversation_id, v.external_id, v.agent_id, v.created_at, b.branch, b.name, b.status, b.turn_index, b.sub_step,
    b.turn_started_at, b.updated_at, b.lease_owner, b.lease_until, v.tenant, v.title, v.tags, v.ended_at
FROM (
    SELECT n.* FROM {schema}.branch AS n
    WHERE (%(statuses)s::pg_catalog.text[] IS NULL OR n.status = ANY (%(statuses)s::pg_catalog.text[]))
        AND (%(before_time)s::pg_catalog.timestamptz IS NULL
            OR (n.turn_started_at, n.conversation_id) < (%(before_time)s, %(before_conversation)s::pg_catalog.uuid))
    ORDER BY n.turn_started_at DESC, n.conversation_id DESC
    LIMIT %(window)s
) AS b
JOIN {schema}.conversation AS v ON v.conversation_id = b.conversation_id AND v.current_branch = b.branch
WHERE (%(agent)s::pg_catalog.text IS NULL OR v.agent_id = %(agent)s)
    AND (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
    AND (%(parent)s::pg_catalog.uuid IS NULL OR v.parent_conversation_id = %(parent)s)
    AND (%(tags)s::pg_catalog.text[] IS NULL OR v.tags @> %(tags)s::pg_catalog.text[])
    AND (%(metadata)s::pg_catalog.text IS NULL OR v.metadata @> %(metadata)s::pg_catalog.text::pg_catalog.jsonb)
ORDER BY b.turn_started_at DESC, b.conversation_id DESC
LIMIT %(limit)s

-- name: list_matching
-- The same for what few conversations have: those that match are found first, and then put in order.
WITH v AS MATERIALIZED (
    SELECT m.* FROM {schema}.conversation AS m
    WHERE (%(agent)s::pg_catalog.text IS NULL OR m.agent_id = %(agent)s)
        AND (%(tenant)s::pg_catalog.text IS NULL OR m.tenant = %(tenant)s)
        AND (%(parent)s::pg_catalog.uuid IS NULL OR m.parent_conversation_id = %(parent)s)
        AND (%(tags)s::pg_catalog.text[] IS NULL OR m.tags @> %(tags)s::pg_catalog.text[])
        AND (%(metadata)s::pg_catalog.text IS NULL OR m.metadata @> %(metadata)s::pg_catalog.text::pg_catalog.jsonb)
)
SELECT v.conversation_id, v.external_id, v.agent_id, v.created_at, b.branch, b.name, b.status, b.turn_index, b.sub_step,
    b.turn_started_at, b.updated_at, b.lease_owner, b.lease_until, v.tenant, v.title, v.tags, v.ended_at
FROM v
JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id AND b.branch = v.current_branch
WHERE (%(statuses)s::pg_catalog.text[] IS NULL OR b.status = ANY (%(statuses)s::pg_catalog.text[]))
    AND (%(before_time)s::pg_catalog.timestamptz IS NULL
        OR (b.turn_started_at, b.conversation_id) < (%(before_time)s, %(before_conversation)s::pg_catalog.uuid))
ORDER BY b.turn_started_at DESC, b.conversation_id DESC
LIMIT %(limit)s

-- name: find
-- Up to two conversations in a range of ids: a prefix is one, an id alone too.
SELECT v.conversation_id FROM {schema}.conversation AS v
WHERE v.conversation_id BETWEEN %(low)s AND %(high)s AND (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
ORDER BY v.conversation_id LIMIT 2

-- name: history
-- A branch's checkpoints, newest first, without their content.
SELECT c.branch, c.turn_index, c.sub_step, c.phase, c.agent_id, c.created_at, c.write_id,
    coalesce((SELECT pg_catalog.sum(s.stop - s.start) FROM {schema}.spans_of(c.spans) AS s), 0)::pg_catalog.int4 AS messages,
    CASE pg_catalog.json_typeof(c.tool_calls) WHEN 'array' THEN pg_catalog.json_array_length(c.tool_calls) ELSE 0 END,
    CASE pg_catalog.json_typeof(c.tool_results) WHEN 'array' THEN pg_catalog.json_array_length(c.tool_results) ELSE 0 END
FROM {schema}.conversation AS v
JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id
    AND b.branch = coalesce(%(branch)s, v.current_branch)
JOIN {schema}.checkpoint AS c ON c.conversation_id = b.conversation_id
    AND CASE
        WHEN b.lineage = '{{}}' THEN c.branch = b.branch
        ELSE c.branch = {schema}.owner_of(b.branch, b.lineage, c.turn_index, c.sub_step)
    END
WHERE v.conversation_id = %(conversation)s
    AND (%(before_turn)s::pg_catalog.int4 IS NULL OR (c.turn_index, c.sub_step) < (%(before_turn)s, %(before_sub_step)s))
ORDER BY c.turn_index DESC, c.sub_step DESC
LIMIT %(limit)s
