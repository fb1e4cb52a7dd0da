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
-- CASE, since the planner takes an equation with a function for rare, and would then read and sort everything.
WHERE CASE
    WHEN b.lineage = '{{}}' THEN a.branch = b.branch
    ELSE a.branch = {schema}.owner_of(b.branch, b.lineage, a.turn_index, a.sub_step)
END;
