-- Repeatable: run whenever its text changes. What people read with plain SQL, in ordinary types.
-- {vector} is the type of an embedding: pgvector's where it is installed, real[] elsewhere.

-- A json value for reading. What jsonb can't represent never makes a query fail: the exact text stays in its table.
-- Nor does it make a driver fail: jsonb spells 1e5000 out, and Python refuses integers of more than 4,300 digits.
CREATE OR REPLACE FUNCTION {schema}.shown(p_value json) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    v_value jsonb;
BEGIN
    IF pg_catalog.octet_length(p_value::text) > 16777216 THEN
        RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable',
            pg_catalog.format('%s bytes of JSON: too large to show', pg_catalog.octet_length(p_value::text)));
    END IF;
    v_value := p_value::jsonb;
    IF p_value::text ~ '[0-9][eE][+]?[0-9]{{4}}|[0-9]{{255}}' AND pg_catalog.jsonb_path_exists(
        v_value, '$.** ? (@.type() == "number" && (@ >= 1e4300 || @ <= -1e4300))')
    THEN
        RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable', 'a number of more than 4300 digits');
    END IF;
    RETURN v_value;
EXCEPTION WHEN OTHERS THEN
    RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable', SQLERRM);
END $$;

-- The messages that spans stand for, as one array.
CREATE OR REPLACE FUNCTION {schema}.messages_of(p_conversation uuid, p_spans int[]) RETURNS jsonb
LANGUAGE plpgsql STABLE STRICT SET enable_seqscan = off AS $$
DECLARE
    v_bytes bigint;
BEGIN
    SELECT pg_catalog.sum(m.size) INTO v_bytes
    FROM {schema}.spans_of(p_spans) AS s
    JOIN {schema}.message AS m ON m.conversation_id = p_conversation AND m.branch = s.branch
        AND m.position >= s.start AND m.position < s.stop;
    IF v_bytes > 67108864 THEN
        RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable',
            pg_catalog.format('%s bytes of messages: too large to show', v_bytes));
    END IF;
    RETURN (
        SELECT coalesce(pg_catalog.jsonb_agg({schema}.shown(m.body) ORDER BY s.ord, m.position), '[]')
        FROM {schema}.spans_of(p_spans) AS s
        JOIN {schema}.message AS m ON m.conversation_id = p_conversation AND m.branch = s.branch
            AND m.position >= s.start AND m.position < s.stop
    );
EXCEPTION WHEN program_limit_exceeded THEN
    RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable', SQLERRM);
END $$;

-- A state for reading: an object also says its sub-step.
CREATE OR REPLACE FUNCTION {schema}.shown_state(p_state json, p_sub_step int) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_state jsonb := coalesce({schema}.shown(p_state), '{{}}');
BEGIN
    IF pg_catalog.jsonb_typeof(v_state) = 'object' THEN
        RETURN v_state || pg_catalog.jsonb_build_object('sub_step', p_sub_step);
    END IF;
    RETURN v_state;
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
    c.branch, c.sub_step, c.phase
FROM {schema}.checkpoint AS c;

-- The reference view: each sub-step in the history of a conversation's current branch.
CREATE OR REPLACE VIEW {schema}.agent_checkpoints AS
SELECT a.*
FROM {schema}.all_checkpoints AS a
JOIN {schema}.conversation AS v ON v.conversation_id = a.conversation_id
JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id AND b.branch = v.current_branch
WHERE a.branch = {schema}.owner_of(b.branch, b.lineage, a.turn_index, a.sub_step);
