-- Repeatable: run whenever its text changes. What people read with plain SQL, in ordinary types.
-- {vector} is the type of an embedding: pgvector's where it is installed, real[] elsewhere.

-- A state for reading: an object also says its sub-step.
CREATE OR REPLACE FUNCTION {schema}.shown_state(p_state json, p_sub_step int) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_state jsonb := coalesce({schema}.shown(p_state), '{{}}');
BEGIN
    IF pg_catalog.jsonb_typeof(v_state) = 'object' THEN
        RETURN v_state || pg_catalog.jsonb_build_object('sub_step', p_sub_step);
    END IF;
    RETURN v_state;
END $$;

-- A json value whose every string can be read with ->>. Where text can't hold a character (NUL, a lone surrogate) its
-- escape stays, as a backslash and what follows. Null for what is too large to look through.
CREATE OR REPLACE FUNCTION {schema}.readable(p_value json) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_text text := p_value;
BEGIN
    IF strpos(v_text, '\u') = 0 THEN
        RETURN p_value;
    ELSIF octet_length(v_text) > 67108864 THEN
        RETURN NULL;
    END IF;
    v_text := replace(v_text, '\\', '\u005c');  -- the same character; every backslash left begins an escape
    RETURN regexp_replace(v_text,
        '\\(u0000|u[dD][89abAB][0-9a-fA-F]{{2}}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{{2}}\\)u[dD][c-fC-F])',
        '\\\\\1', 'g');
END $$;

-- What a message says of its role, also where jsonb can't hold the message.
CREATE OR REPLACE FUNCTION {schema}.role_of(p_body json) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN {schema}.readable(p_body) ->> 'role';
END $$;

-- The id that a tool call and its result share, found where the store finds it: the first of these that is a string.
CREATE OR REPLACE FUNCTION {schema}.call_id_of(p_call json) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_call json := {schema}.readable(p_call);
    v_key text;
BEGIN
    FOREACH v_key IN ARRAY ARRAY['tool_call_id', 'tool_use_id', 'call_id', 'id'] LOOP
        IF json_typeof(v_call -> v_key) = 'string' THEN
            RETURN v_call ->> v_key;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- The name of the tool that a call wants, in our shape or in OpenAI's.
CREATE OR REPLACE FUNCTION {schema}.call_name_of(p_call json) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_call json := {schema}.readable(p_call);
    v_holder json;
BEGIN
    FOREACH v_holder IN ARRAY ARRAY[v_call, v_call -> 'function'] LOOP
        IF json_typeof(v_holder -> 'name') = 'string' AND v_holder ->> 'name' <> '' THEN
            RETURN v_holder ->> 'name';
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Every checkpoint of every branch.
CREATE OR REPLACE VIEW {schema}.all_checkpoints AS
SELECT c.id, c.conversation_id, c.turn_index, c.agent_id,
    (SELECT p.id FROM {schema}.checkpoint AS p
     WHERE p.conversation_id = c.conversation_id AND p.turn_index = c.parent_turn_index
         AND p.sub_step = c.parent_sub_step AND p.branch = c.parent_branch) AS parent_turn_id,
    c.created_at,
    {schema}.messages_of(c.conversation_id, c.spans) AS messages,
    {schema}.shown(c.tool_calls) AS tool_calls,
    {schema}.shown(c.tool_results) AS tool_results,
    {schema}.shown_state(c.state, c.sub_step) AS state,
    (SELECT d.embedding FROM {schema}.document AS d
     WHERE d.conversation_id = c.conversation_id AND d.branch = c.branch AND d.turn_index = c.turn_index
         AND d.chunk = 0 AND c.phase = 'final') AS embedding,
    c.branch, c.sub_step, c.phase,
    -- The parent's place: a walk along it goes by the primary key.
    c.parent_turn_index, c.parent_sub_step, c.parent_branch
FROM {schema}.checkpoint AS c;

-- The reference view: each sub-step in the history of a conversation's current branch.
CREATE OR REPLACE VIEW {schema}.agent_checkpoints AS
SELECT a.*
FROM {schema}.all_checkpoints AS a
-- LEFT, so that the planner comes to the conversation by way of the checkpoint. A walk along the parents would else
-- begin with the conversation, and read all of its checkpoints at each step.
LEFT JOIN (
    {schema}.conversation AS v
    JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id AND b.branch = v.current_branch
) ON v.conversation_id = a.conversation_id
-- CASE, since the planner takes an equation with a function for rare, and would then read and sort everything.
WHERE CASE
    WHEN b.lineage = '{{}}' THEN a.branch = b.branch
    ELSE a.branch = {schema}.owner_of(b.branch, b.lineage, a.turn_index, a.sub_step)
END;

-- The messages at the head of every branch, by index from 0, in no order. body_text is the exact text.
CREATE OR REPLACE VIEW {schema}.all_messages AS
SELECT b.conversation_id, b.branch, (s.before + m.position - s.start)::int AS index,
    {schema}.role_of(m.body) AS role,
    {schema}.shown(m.body) AS body,
    m.body::text AS body_text
FROM {schema}.branch AS b
JOIN {schema}.checkpoint AS h ON h.conversation_id = b.conversation_id AND h.turn_index = b.turn_index
    AND h.sub_step = b.sub_step AND h.branch = {schema}.owner_of(b.branch, b.lineage, b.turn_index, b.sub_step)
CROSS JOIN LATERAL (
    SELECT s.branch, s.start, s.stop,
        sum(s.stop - s.start) OVER (ORDER BY s.ord) - (s.stop - s.start) AS before
    FROM {schema}.spans_of(h.spans) AS s
) AS s
JOIN {schema}.message AS m ON m.conversation_id = b.conversation_id AND m.branch = s.branch
    AND m.position >= s.start AND m.position < s.stop;

-- The messages of a conversation in order: those at the head of its current branch.
CREATE OR REPLACE VIEW {schema}.agent_messages AS
SELECT a.*
FROM {schema}.all_messages AS a
JOIN {schema}.conversation AS v ON v.conversation_id = a.conversation_id AND v.current_branch = a.branch
ORDER BY a.conversation_id, a.index;

-- The tool calls that have no result yet, of every branch whose turn is open. turn_index, sub_step and index name a call
-- on its branch. It is uncertain on a branch, or in a conversation, forked after it was issued: whether it ran is for the
-- one that issued it to know.
CREATE OR REPLACE VIEW {schema}.pending_calls AS
SELECT b.conversation_id, b.branch, b.turn_index, p.sub_step, p.index,
    {schema}.call_id_of(p.call) AS call_id,
    {schema}.call_name_of(p.call) AS name,
    {schema}.shown(p.call) AS call,
    p.attempts,
    p.uncertain, p.issued_conversation, p.issued_branch, p.issued_at, p.agent_id,
    b.status, b.lease_owner, b.lease_until
FROM {schema}.branch AS b
CROSS JOIN LATERAL (  -- each branch's head by its key: to join all of both would read every checkpoint there is
    SELECT FROM {schema}.checkpoint AS c
    WHERE c.conversation_id = b.conversation_id AND c.turn_index = b.turn_index AND c.sub_step = b.sub_step
        AND c.branch = {schema}.owner_of(b.branch, b.lineage, b.turn_index, b.sub_step) AND c.phase <> 'final'
    OFFSET 0
) AS h
CROSS JOIN LATERAL (
    WITH step AS MATERIALIZED (
        SELECT c.sub_step, c.branch, c.created_at, c.agent_id, c.phase, c.tool_calls, c.answers, c.origin_conversation,
            c.origin_branch
        FROM {schema}.checkpoint AS c
        WHERE c.conversation_id = b.conversation_id AND c.turn_index = b.turn_index AND c.sub_step <= b.sub_step
            AND c.branch = {schema}.owner_of(b.branch, b.lineage, c.turn_index, c.sub_step)
            AND (c.tool_calls IS NOT NULL OR c.answers IS NOT NULL)
    ), mark AS MATERIALIZED (
        SELECT s.answers[i + 1] AS sub_step, s.answers[i + 2] AS index,
            count(*) FILTER (WHERE s.phase = 'started') AS attempts, bool_or(s.phase <> 'started') AS answered
        FROM step AS s
        CROSS JOIN generate_series(1, cardinality(s.answers), 3) AS i
        GROUP BY s.answers[i + 1], s.answers[i + 2]
    )
    SELECT s.sub_step, (e.ord - 1)::int AS index, e.value AS call, coalesce(m.attempts, 0)::int AS attempts,
        s.origin_conversation IS NOT NULL OR s.branch <> b.branch AS uncertain,
        coalesce(s.origin_conversation, b.conversation_id) AS issued_conversation,
        coalesce(s.origin_branch, s.branch) AS issued_branch, s.created_at AS issued_at, s.agent_id
    FROM step AS s
    CROSS JOIN json_array_elements(s.tool_calls) WITH ORDINALITY AS e (value, ord)
    LEFT JOIN mark AS m ON m.sub_step = s.sub_step AND m.index = e.ord - 1
    WHERE NOT coalesce(m.answered, false)
) AS p;
