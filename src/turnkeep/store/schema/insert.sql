-- Repeatable: run whenever its text changes. INSERT INTO agent_checkpoints, so that any language can write with plain SQL.
-- Each row goes through save_v1, under a lock on its branch's row: what was looked at is what is written upon.

-- The branch a row is for, locked. A conversation that is new is made.
CREATE OR REPLACE FUNCTION {schema}.insert_branch(p_conversation uuid, p_branch int, p_agent text)
RETURNS {schema}.branch LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_branch {schema}.branch;
BEGIN
    IF char_length(p_agent) > 255 THEN
        RAISE EXCEPTION 'agent_id: % characters; at most 255 are allowed', char_length(p_agent)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It is a name to look conversations up by.';
    END IF;
    PERFORM FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation;
    IF NOT FOUND THEN
        PERFORM {schema}.create_v1(p_conversation, p_conversation::text, p_agent);
    END IF;
    SELECT b.* INTO v_branch FROM {schema}.branch AS b
    WHERE b.conversation_id = p_conversation AND b.branch = coalesce(p_branch, (
        SELECT v.current_branch FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation))
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM {schema}.refuse_archived(p_conversation);
    END IF;
    IF v_branch.branch IS NULL AND p_branch IS NULL THEN
        RAISE EXCEPTION 'conversation % has been erased meanwhile', p_conversation
            USING ERRCODE = 'no_data_found', HINT = 'The same row again begins another one of that id.';
    ELSIF v_branch.branch IS NULL THEN
        RAISE EXCEPTION 'conversation % has no branch %', p_conversation, p_branch
            USING ERRCODE = 'no_data_found', HINT = 'Leave branch out for the current one; a fork makes a new one.';
    END IF;
    RETURN v_branch;
END $$;

-- Refuses a write to a branch that somebody runs, or whose conversation has ended.
CREATE OR REPLACE FUNCTION {schema}.insert_permitted(p_branch {schema}.branch) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM {schema}.conversation AS v
    WHERE v.conversation_id = p_branch.conversation_id AND v.ended_at IS NULL AND v.archived_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'conversation % has ended', p_branch.conversation_id
            USING ERRCODE = 'TK003', HINT = 'It takes no more turns: begin another one, or reopen it.';
    END IF;
    IF p_branch.lease_until > {schema}.clock() THEN
        RAISE EXCEPTION 'conversation %, branch %: % runs it, by a lease until %', p_branch.conversation_id,
                p_branch.branch, p_branch.lease_owner, p_branch.lease_until
            USING ERRCODE = 'lock_not_available', HINT = 'Wait until it is handed back, or post a request instead.';
    END IF;
END $$;

-- Which pending calls of a branch, or of the row itself, the row's results settle, as save_v1 takes it; and the names
-- of the calls that then have no result yet. A row that is 'started' says that all of them are about to run.
CREATE OR REPLACE FUNCTION {schema}.insert_answers(
    p_branch {schema}.branch, p_turn int, p_sub_step int, p_phase text, p_calls json, p_results json,
    OUT answers int[], OUT waiting text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_steps int[];
    v_indices int[];
    v_ids text[];
    v_names text[];
    v_result record;
    v_found int;
BEGIN
    SELECT array_agg(w.sub_step ORDER BY w.sub_step, w.index), array_agg(w.index ORDER BY w.sub_step, w.index),
        array_agg(w.call_id ORDER BY w.sub_step, w.index),
        array_agg(format('%s (%s) of turn %s.%s', coalesce(w.name, 'call'), coalesce(w.call_id, 'no id'), p_turn, w.sub_step)
                  ORDER BY w.sub_step, w.index)
    INTO v_steps, v_indices, v_ids, v_names
    FROM (
        SELECT p.sub_step, p.index, p.call_id, p.name FROM {schema}.pending_calls AS p
        WHERE p.conversation_id = p_branch.conversation_id AND p.branch = p_branch.branch AND p.turn_index = p_turn
        UNION ALL
        SELECT p_sub_step, e.ord::int - 1, {schema}.call_id_of(e.value), {schema}.call_name_of(e.value)
        FROM json_array_elements(p_calls) WITH ORDINALITY AS e (value, ord)) AS w;
    FOR v_result IN
        SELECT e.ord - 1 AS index, {schema}.call_id_of(e.value) AS call_id
        FROM json_array_elements(p_results) WITH ORDINALITY AS e (value, ord)
    LOOP
        v_found := CASE  -- providers reuse ids: the first call with it; without an id, the only call there is
            WHEN v_result.call_id IS NOT NULL THEN array_position(v_ids, v_result.call_id)
            WHEN cardinality(v_steps) = 1 THEN 1
        END;
        IF v_found IS NULL THEN
            RAISE EXCEPTION 'tool_results[%] answers no pending call (pending: %)', v_result.index,
                    coalesce(array_to_string(nullif(v_names, '{{}}'), ', '), 'none')
                USING ERRCODE = 'invalid_parameter_value',
                    HINT = 'Give it the id of its call, as tool_call_id, tool_use_id, call_id or id.';
        END IF;
        answers := answers || ARRAY[p_turn, v_steps[v_found], v_indices[v_found]];
        v_steps := v_steps[:v_found - 1] || v_steps[v_found + 1:];
        v_indices := v_indices[:v_found - 1] || v_indices[v_found + 1:];
        v_ids := v_ids[:v_found - 1] || v_ids[v_found + 1:];
        v_names := v_names[:v_found - 1] || v_names[v_found + 1:];
    END LOOP;
    waiting := array_to_string(nullif(v_names, '{{}}'), ', ');
    IF p_phase = 'started' THEN
        SELECT array_agg(n ORDER BY w.i, k) INTO answers
        FROM unnest(v_steps, v_indices) WITH ORDINALITY AS w (sub_step, index, i)
        CROSS JOIN unnest(ARRAY[p_turn, w.sub_step, w.index]) WITH ORDINALITY AS one (n, k);
    END IF;
END $$;

-- The checkpoint at a place in a branch's history; its newest in a turn where p_sub_step is null.
CREATE OR REPLACE FUNCTION {schema}.checkpoint_at(p_branch {schema}.branch, p_turn int, p_sub_step int)
RETURNS {schema}.checkpoint LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_checkpoint {schema}.checkpoint;
BEGIN
    SELECT c.* INTO v_checkpoint FROM {schema}.checkpoint AS c
    WHERE c.conversation_id = p_branch.conversation_id AND c.turn_index = p_turn
        AND c.sub_step = coalesce(p_sub_step, c.sub_step)
        AND (c.turn_index, c.sub_step) <= (p_branch.turn_index, p_branch.sub_step)
        AND c.branch = {schema}.owner_of(p_branch.branch, p_branch.lineage, c.turn_index, c.sub_step)
    ORDER BY c.sub_step DESC LIMIT 1;
    RETURN v_checkpoint;
END $$;

-- The checkpoint that a checkpoint extends.
CREATE OR REPLACE FUNCTION {schema}.parent_of(p_checkpoint {schema}.checkpoint) RETURNS {schema}.checkpoint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_parent {schema}.checkpoint;
BEGIN
    SELECT p.* INTO v_parent FROM {schema}.checkpoint AS p
    WHERE p.conversation_id = p_checkpoint.conversation_id AND p.turn_index = p_checkpoint.parent_turn_index
        AND p.sub_step = p_checkpoint.parent_sub_step AND p.branch = p_checkpoint.parent_branch;
    RETURN v_parent;
END $$;

-- Whether the checkpoint that a checkpoint extends has been pruned.
CREATE OR REPLACE FUNCTION {schema}.lost_parent(p_checkpoint {schema}.checkpoint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN p_checkpoint.parent_branch IS NOT NULL AND ({schema}.parent_of(p_checkpoint)).id IS NULL;
END $$;

-- Whether a checkpoint does nothing but end its turn: what a row adds for its writer, who need not know of it.
CREATE OR REPLACE FUNCTION {schema}.only_ends(p_checkpoint {schema}.checkpoint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_parent {schema}.checkpoint := {schema}.parent_of(p_checkpoint);
BEGIN
    RETURN p_checkpoint.phase = 'final' AND p_checkpoint.spans = v_parent.spans
        AND p_checkpoint.tool_calls IS NULL AND p_checkpoint.tool_results IS NULL
        AND p_checkpoint.state::text IS NOT DISTINCT FROM v_parent.state::text;
END $$;

-- What a row that extends a checkpoint may have as its parent_turn_id.
CREATE OR REPLACE FUNCTION {schema}.ids_of(p_checkpoint {schema}.checkpoint) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF {schema}.only_ends(p_checkpoint) THEN
        RETURN ARRAY[p_checkpoint.id, ({schema}.parent_of(p_checkpoint)).id];
    END IF;
    RETURN ARRAY[p_checkpoint.id];
END $$;

-- Whether a row says what a checkpoint holds. A null p_messages or p_state stands for the parent's; for anything, where the
-- parent has been pruned.
CREATE OR REPLACE FUNCTION {schema}.insert_same(
    p_stored {schema}.checkpoint, p_phase text, p_messages jsonb, p_calls jsonb, p_results jsonb, p_state jsonb
) RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_parent {schema}.checkpoint := {schema}.parent_of(p_stored);
BEGIN
    RETURN p_stored.phase = p_phase
        AND {schema}.is_shown(nullif(p_calls, '[]'), p_stored.tool_calls)
        AND {schema}.is_shown(nullif(p_results, '[]'), p_stored.tool_results)
        AND CASE
            WHEN p_state IS NULL AND {schema}.lost_parent(p_stored) THEN true
            WHEN p_state IS NULL THEN p_stored.state::text IS NOT DISTINCT FROM v_parent.state::text
            ELSE p_state::text = p_stored.state::text OR {schema}.shown_state(p_state::text::json, p_stored.sub_step)
                = {schema}.shown_state(p_stored.state, p_stored.sub_step)
        END
        AND CASE
            WHEN p_messages IS NULL AND {schema}.lost_parent(p_stored) THEN true
            WHEN p_messages IS NULL THEN p_stored.spans = coalesce(v_parent.spans, '{{}}')
            ELSE (SELECT m.count = 0 AND m.parts IS NULL
                  FROM {schema}.insert_messages(p_stored.conversation_id, p_stored.spans, p_messages) AS m)
        END;
END $$;

-- The phase of a row's checkpoint. p_final: the row ends its turn.
CREATE OR REPLACE FUNCTION {schema}.insert_phase(p_phase text, p_opens boolean, p_final boolean, p_calls jsonb, p_results jsonb)
RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE
        WHEN p_opens THEN 'input'
        WHEN p_final THEN 'final'
        WHEN p_phase IS NOT NULL THEN p_phase
        WHEN p_calls NOT IN ('[]', 'null') THEN 'tool_calls'
        WHEN p_results NOT IN ('[]', 'null') THEN 'tool_results'
        ELSE 'step'
    END;
END $$;

-- The checkpoint that a row has made before; null where there is none. Without a sub-step, it is the turn's newest.
CREATE OR REPLACE FUNCTION {schema}.insert_repeated(
    p_branch {schema}.branch, p_turn int, p_sub_step int, p_phase text, p_final boolean, p_messages jsonb,
    p_calls jsonb, p_results jsonb, p_state jsonb
) RETURNS {schema}.checkpoint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_stored {schema}.checkpoint := {schema}.checkpoint_at(p_branch, p_turn, p_sub_step);
    v_next {schema}.checkpoint := {schema}.checkpoint_at(p_branch, p_turn, v_stored.sub_step + 1);
    v_phase text := {schema}.insert_phase(p_phase, v_stored.sub_step = 0, p_final, p_calls, p_results);
BEGIN
    IF {schema}.insert_same(v_stored, v_phase, p_messages, p_calls, p_results, p_state) THEN
        IF NOT p_final OR v_phase = 'final' THEN
            RETURN v_stored;
        ELSIF {schema}.only_ends(v_next) THEN  -- it has opened the turn and ended it
            RETURN v_next;
        END IF;
    ELSIF p_sub_step IS NULL AND {schema}.only_ends(v_stored) THEN
        RETURN {schema}.insert_repeated(p_branch, p_turn, v_stored.sub_step - 1, p_phase, p_final, p_messages,
                                        p_calls, p_results, p_state);
    END IF;
    RETURN NULL;
END $$;

-- One checkpoint at a branch's head. Gives the branch as it stands then.
CREATE OR REPLACE FUNCTION {schema}.insert_write(
    p_branch {schema}.branch, p_phase text, p_agent text, p_messages jsonb, p_calls jsonb, p_results jsonb, p_state jsonb
) RETURNS {schema}.branch LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_turn int := p_branch.turn_index + (p_phase = 'input')::int;
    v_sub_step int := CASE p_phase WHEN 'input' THEN 0 ELSE p_branch.sub_step + 1 END;
    v_calls json := {schema}.insert_list(p_calls, 'tool_calls');
    v_results json := {schema}.insert_list(p_results, 'tool_results');
    v_new record;
    v_pending record;
    v_outcome text;
BEGIN
    SELECT m.* INTO v_new FROM {schema}.insert_messages(p_branch.conversation_id, (
        {schema}.checkpoint_at(p_branch, p_branch.turn_index, p_branch.sub_step)).spans, p_messages) AS m;
    PERFORM {schema}.insert_no_stand_in(p_state, 'state');
    PERFORM {schema}.insert_no_stand_in(e.value::jsonb, 'a new message') FROM json_array_elements(v_new.added) AS e;
    PERFORM {schema}.insert_no_stand_in(e.value::jsonb, 'a tool call') FROM json_array_elements(v_calls) AS e;
    PERFORM {schema}.insert_no_stand_in(e.value::jsonb, 'a tool result') FROM json_array_elements(v_results) AS e;
    SELECT a.* INTO v_pending FROM {schema}.insert_answers(p_branch, v_turn, v_sub_step, p_phase, v_calls, v_results) AS a;
    IF p_phase = 'final' AND v_pending.waiting IS NOT NULL THEN
        RAISE EXCEPTION 'turn % can''t end while tool calls have no result: %', v_turn, v_pending.waiting
            USING ERRCODE = 'TK001',
                HINT = 'Insert a result for each of them first; where the outcome is unknown, one that says so.';
    ELSIF p_phase = 'started' AND (v_pending.answers IS NULL OR v_new.count > 0 OR v_new.parts IS NOT NULL
                                   OR v_calls IS NOT NULL OR v_results IS NOT NULL) THEN
        RAISE EXCEPTION 'a row of phase started only says that the pending calls are about to run (pending: %)',
                coalesce(v_pending.waiting, 'none')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Put messages, calls and results into another row.';
    END IF;
    SELECT s.outcome INTO v_outcome FROM {schema}.save_v1(
        p_branch.conversation_id, p_branch.branch, p_branch.turn_index, p_branch.sub_step, 0, 0, gen_random_uuid(), false,
        p_phase, p_agent, v_new.count, v_new.added, v_calls, v_results, v_pending.answers,
        {schema}.insert_value(p_state, 'state'), p_parts => v_new.parts) AS s;
    IF v_outcome <> 'saved' THEN
        RAISE EXCEPTION 'conversation %, branch %: %', p_branch.conversation_id, p_branch.branch, v_outcome
            USING ERRCODE = 'TK004', HINT = 'Read the newest row again and decide again.';
    END IF;
    SELECT b.* INTO p_branch FROM {schema}.branch AS b
    WHERE b.conversation_id = p_branch.conversation_id AND b.branch = p_branch.branch;
    RETURN p_branch;
END $$;

-- Ends the turn at a branch's head, for a writer who has begun the next one.
CREATE OR REPLACE FUNCTION {schema}.insert_end(p_branch {schema}.branch, p_agent text) RETURNS {schema}.branch
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_branch.turn_index < 0
        OR ({schema}.checkpoint_at(p_branch, p_branch.turn_index, p_branch.sub_step)).phase = 'final'
    THEN
        RETURN p_branch;
    END IF;
    RETURN {schema}.insert_write(p_branch, 'final', p_agent, NULL, NULL, NULL, NULL);
END $$;

-- Refuses a row that no checkpoint can be made of, whatever is there.
CREATE OR REPLACE FUNCTION {schema}.insert_wellformed(
    p_conversation uuid, p_turn int, p_id bigint, p_phase text, p_embedded boolean
) RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_conversation IS NULL OR p_turn IS NULL THEN
        RAISE EXCEPTION 'conversation_id and turn_index are needed' USING ERRCODE = 'not_null_violation',
            HINT = 'Turns are counted from 0; a turn_index one above the newest row''s opens a turn.';
    ELSIF p_id IS NOT NULL THEN
        RAISE EXCEPTION 'id is given by the database' USING ERRCODE = 'generated_always',
            HINT = 'Leave it out; RETURNING id tells it.';
    ELSIF p_phase NOT IN ('input', 'tool_calls', 'tool_results', 'step', 'started', 'final') THEN
        RAISE EXCEPTION 'phase % is none', p_phase USING ERRCODE = 'invalid_parameter_value',
            HINT = 'It is input, tool_calls, tool_results, step, started or final; NULL lets the row decide.';
    ELSIF p_embedded AND p_phase <> 'final' THEN
        RAISE EXCEPTION 'an embedding stands in the row that ends its turn, not in one of phase %', p_phase
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave phase out, or give the embedding with the final row.';
    END IF;
END $$;

-- Refuses a row that is not the next one after a branch's head.
CREATE OR REPLACE FUNCTION {schema}.insert_next(p_branch {schema}.branch, p_turn int, p_sub_step int, p_phase text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_opens boolean := p_turn = p_branch.turn_index + 1;
    v_head {schema}.checkpoint := {schema}.checkpoint_at(p_branch, p_branch.turn_index, p_branch.sub_step);
BEGIN
    IF NOT v_opens AND p_turn <> p_branch.turn_index OR p_turn < 0
        OR p_sub_step <> (CASE WHEN v_opens THEN 0 ELSE p_branch.sub_step + 1 END)
    THEN
        RAISE EXCEPTION 'conversation %, branch %: no row can be put at %: the head is %', p_branch.conversation_id,
                p_branch.branch, concat_ws('.', p_turn, p_sub_step), CASE
                    WHEN v_head.id IS NULL THEN 'nowhere yet, and the first turn is 0'
                    ELSE format('%s.%s', v_head.turn_index, v_head.sub_step)
                END
            USING ERRCODE = 'TK004',
                HINT = 'The place is taken by other content, or its turn has not come: read the newest row, and decide again.';
    ELSIF NOT v_opens AND v_head.phase = 'final' THEN
        RAISE EXCEPTION 'conversation %, branch %: turn % has ended', p_branch.conversation_id, p_branch.branch, p_turn
            USING ERRCODE = 'TK002', HINT = format('A row with turn_index %s opens the next one.', p_turn + 1);
    ELSIF v_opens <> (p_phase = 'input') AND p_phase <> 'final' THEN
        RAISE EXCEPTION 'a row of phase % can''t be put at turn %', p_phase, p_turn
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A turn''s first row, and no other one, is of phase input.';
    END IF;
END $$;

-- Refuses a row that says it extends another checkpoint than it does.
CREATE OR REPLACE FUNCTION {schema}.insert_extends(p_parent bigint, p_extended bigint[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_parent <> ALL (p_extended) OR p_parent IS NOT NULL AND p_extended[1] IS NULL THEN
        RAISE EXCEPTION 'parent_turn_id is %, but this row extends %', p_parent, coalesce(p_extended[1]::text, 'nothing')
            USING ERRCODE = 'TK004', HINT = 'Leave it out, or read the newest row again and decide again.';
    END IF;
END $$;

-- The sub-step that a row's state names, if it does.
CREATE OR REPLACE FUNCTION {schema}.insert_sub_step(p_state jsonb) RETURNS int
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(p_state -> 'sub_step') <> 'number' OR (p_state ->> 'sub_step')::numeric % 1 <> 0
        OR abs((p_state ->> 'sub_step')::numeric) > 2147483647
    THEN
        RETURN NULL;
    END IF;
    RETURN (p_state ->> 'sub_step')::numeric;
END $$;

-- Keeps an embedding with the turn that a row has ended, or compares it with the one that is there, unless a worker has
-- put another one in its place. Of which model it is nobody knows: it is compared with no other.
CREATE OR REPLACE FUNCTION {schema}.insert_embedding(p_stored {schema}.checkpoint, p_embedding text, p_repeated boolean)
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_embedding IS NULL THEN
        RETURN;
    END IF;
    UPDATE {schema}.document AS d SET
        embedding = CASE WHEN p_repeated THEN d.embedding ELSE p_embedding::{vector} END,
        model = CASE WHEN p_repeated THEN d.model ELSE 'unknown' END
    WHERE d.conversation_id = p_stored.conversation_id AND d.branch = p_stored.branch
        AND d.turn_index = p_stored.turn_index AND d.chunk = 0
        AND (NOT p_repeated OR d.model <> 'unknown'
            OR d.embedding::text = p_embedding);  -- the type's own = is in a schema we don't look into
    IF NOT FOUND THEN
        RAISE EXCEPTION 'turn % has ended with another embedding, or none', p_stored.turn_index
            USING ERRCODE = 'TK004', HINT = 'Leave the embedding out to find the row as it is.';
    END IF;
END $$;

-- One row: its checkpoint is made, or was there, or the row is refused and nothing of it is kept.
CREATE OR REPLACE FUNCTION {schema}.insert_checkpoint() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_branch {schema}.branch;
    v_stored {schema}.checkpoint;
    v_repeated boolean;
    v_final boolean := coalesce(
        NEW.phase = 'final', NEW.embedding IS NOT NULL OR NEW.state #> '{{flags,is_final}}' = 'true', false);
    v_sub_step int := coalesce(NEW.sub_step, {schema}.insert_sub_step(NEW.state));
BEGIN
    PERFORM {schema}.insert_wellformed(NEW.conversation_id, NEW.turn_index, NEW.id, NEW.phase, NEW.embedding IS NOT NULL);
    v_branch := {schema}.insert_branch(NEW.conversation_id, NEW.branch, NEW.agent_id);
    v_stored := {schema}.insert_repeated(v_branch, NEW.turn_index, v_sub_step, NEW.phase, v_final,
                                         NEW.messages, NEW.tool_calls, NEW.tool_results, NEW.state);
    v_repeated := v_stored.id IS NOT NULL;
    IF v_repeated THEN
        IF NOT {schema}.lost_parent(v_stored) THEN
            PERFORM {schema}.insert_extends(NEW.parent_turn_id, {schema}.ids_of({schema}.parent_of(v_stored)) || CASE
                WHEN {schema}.only_ends(v_stored) THEN {schema}.ids_of({schema}.parent_of({schema}.parent_of(v_stored))) END);
        END IF;
    ELSE
        PERFORM {schema}.insert_permitted(v_branch);
        PERFORM {schema}.insert_next(v_branch, NEW.turn_index, v_sub_step, NEW.phase);
        PERFORM {schema}.insert_extends(NEW.parent_turn_id, {schema}.ids_of(
            {schema}.checkpoint_at(v_branch, v_branch.turn_index, v_branch.sub_step)));
        NEW.agent_id := coalesce(NEW.agent_id, (
            SELECT v.agent_id FROM {schema}.conversation AS v WHERE v.conversation_id = NEW.conversation_id));
        IF NEW.turn_index = v_branch.turn_index THEN
            v_branch := {schema}.insert_write(
                v_branch, {schema}.insert_phase(NEW.phase, false, v_final, NEW.tool_calls, NEW.tool_results), NEW.agent_id,
                NEW.messages, NEW.tool_calls, NEW.tool_results, NEW.state);
        ELSE
            v_branch := {schema}.insert_end(v_branch, NEW.agent_id);
            v_branch := {schema}.insert_write(v_branch, 'input', NEW.agent_id, NEW.messages, NEW.tool_calls,
                                              NEW.tool_results, NEW.state);
            IF v_final THEN
                v_branch := {schema}.insert_end(v_branch, NEW.agent_id);
            END IF;
        END IF;
        v_stored := {schema}.checkpoint_at(v_branch, v_branch.turn_index, v_branch.sub_step);
    END IF;
    PERFORM {schema}.insert_embedding(v_stored, NEW.embedding::text, v_repeated);
    SELECT a.id, a.agent_id, a.parent_turn_id, a.created_at, coalesce(NEW.messages, a.messages), a.tool_calls, a.tool_results,
        a.state, a.embedding, a.branch, a.sub_step, a.phase, a.parent_turn_index, a.parent_sub_step, a.parent_branch
    INTO NEW.id, NEW.agent_id, NEW.parent_turn_id, NEW.created_at, NEW.messages, NEW.tool_calls, NEW.tool_results,
        NEW.state, NEW.embedding, NEW.branch, NEW.sub_step, NEW.phase, NEW.parent_turn_index, NEW.parent_sub_step, NEW.parent_branch
    FROM {schema}.all_checkpoints AS a
    WHERE a.conversation_id = v_stored.conversation_id AND a.turn_index = v_stored.turn_index
        AND a.sub_step = v_stored.sub_step AND a.branch = v_stored.branch;
    RETURN NEW;
END $$;

-- Checkpoints never change (G2).
CREATE OR REPLACE FUNCTION {schema}.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% of %: checkpoints never change', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'feature_not_supported',
            HINT = 'Insert another row into agent_checkpoints, or fork the conversation where it was right.';
END $$;

CREATE OR REPLACE TRIGGER refuse_change BEFORE INSERT OR UPDATE OR DELETE ON {schema}.all_checkpoints
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_change();
CREATE OR REPLACE TRIGGER refuse_row INSTEAD OF INSERT OR UPDATE OR DELETE ON {schema}.all_checkpoints
FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_change();
CREATE OR REPLACE TRIGGER insert_checkpoint INSTEAD OF INSERT ON {schema}.agent_checkpoints
FOR EACH ROW EXECUTE FUNCTION {schema}.insert_checkpoint();
CREATE OR REPLACE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON {schema}.agent_checkpoints
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_change();
CREATE OR REPLACE TRIGGER refuse_row INSTEAD OF UPDATE OR DELETE ON {schema}.agent_checkpoints
FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_change();
