-- Repeatable: run whenever its text changes. The hot path of writing lives here, because behind a pooler
-- a client can prepare nothing, and because any language can then write safely.

-- Makes the answer to a retry as durable as a first one. What the retry finds may have been committed here and not yet
-- be with a synchronous standby, where its commit was cut short; a commit that writes nothing would not wait for it. A
-- lock on the branch is written.
CREATE OR REPLACE FUNCTION {schema}.confirm(p_conversation uuid, p_branch int) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation AND b.branch = p_branch FOR UPDATE;
END $$;

-- The outcome of a write that has been made before: under the same key, or with the same id on this branch.
-- Null where there is none. A write id that comes with other content is 'write_id_reused'.
CREATE OR REPLACE FUNCTION {schema}.earlier_outcome(
    p_conversation uuid, p_branch int, p_write_id uuid, p_phase text, p_count int, p_messages json,
    p_tool_calls json, p_tool_results json, p_answers int[], p_key text, p_digest bytea, p_parts int[],
    OUT outcome text, OUT branch int, OUT turn_index int, OUT sub_step int
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_key IS NOT NULL THEN
        SELECT CASE
            WHEN r.digest <> p_digest THEN 'key_reused'
            WHEN r.taken_turn IS NOT NULL OR r.branch <> p_branch THEN 'taken'
        END, r.branch, r.taken_turn
        INTO earlier_outcome.outcome, earlier_outcome.branch, earlier_outcome.turn_index
        FROM {schema}.request AS r WHERE r.conversation_id = p_conversation AND r.key = p_key;
        IF outcome IS NOT NULL THEN
            PERFORM {schema}.confirm(p_conversation, earlier_outcome.branch);
            RETURN;
        END IF;
    END IF;
    SELECT CASE
            WHEN c.phase = p_phase
                AND {schema}.same_value(c.tool_calls, p_tool_calls)
                AND {schema}.same_value(c.tool_results, p_tool_results)
                AND (p_phase <> 'started' OR c.answers IS NOT DISTINCT FROM p_answers)
                AND {schema}.has_written(c, p_count, p_messages, p_parts)
            THEN 'repeated'
            ELSE 'write_id_reused'
        END, c.branch, c.turn_index, c.sub_step
    INTO earlier_outcome.outcome, earlier_outcome.branch, earlier_outcome.turn_index, earlier_outcome.sub_step
    FROM {schema}.checkpoint AS c
    WHERE c.conversation_id = p_conversation AND c.branch = p_branch AND c.write_id = p_write_id
    ORDER BY c.turn_index DESC, c.sub_step DESC LIMIT 1;
    IF FOUND THEN
        PERFORM {schema}.confirm(p_conversation, p_branch);
    END IF;
END $$;

-- Whether two values are the same, type-strictly: keys in any order, 1 is not 1.0. What can't be shown is compared as text.
CREATE OR REPLACE FUNCTION {schema}.same_value(p_one json, p_other json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_one jsonb := {schema}.shown(p_one);
BEGIN
    RETURN p_one::text IS NOT DISTINCT FROM p_other::text
        OR coalesce(v_one::text = {schema}.shown(p_other)::text, false)
            AND v_one::text NOT LIKE '%"turnkeep_unrepresentable"%';
END $$;

-- Whether a checkpoint is what these messages make of its parent's list. What is kept of a list that was too scattered
-- for spans is taken for the same; where the parent has been pruned, so is what the list has of it.
CREATE OR REPLACE FUNCTION {schema}.has_written(
    p_checkpoint {schema}.checkpoint, p_count int, p_messages json, p_parts int[]
) RETURNS boolean LANGUAGE plpgsql STABLE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_spans int[] := p_checkpoint.spans;
    v_parent int[];
    v_parts int[] := p_parts;
    v_new int[] := '{{}}';
    v_added int[];
    v_index int := 0;
    v_most int := 0;
    v_pruned boolean;
BEGIN
    SELECT c.spans INTO v_parent FROM {schema}.checkpoint AS c
    WHERE c.conversation_id = p_checkpoint.conversation_id AND c.branch = p_checkpoint.parent_branch
        AND c.turn_index = p_checkpoint.parent_turn_index AND c.sub_step = p_checkpoint.parent_sub_step;
    v_pruned := NOT FOUND AND p_checkpoint.parent_branch IS NOT NULL;
    IF v_parts IS NULL THEN
        v_index := CASE
            WHEN v_pruned THEN greatest({schema}.length_of(v_spans) - p_count, 0)
            ELSE {schema}.length_of(v_parent)
        END;
        v_parts := CASE WHEN v_index > 0 THEN ARRAY[0, v_index] ELSE '{{}}' END
            || CASE WHEN p_count > 0 THEN ARRAY[-1, p_count] ELSE '{{}}' END;
        v_index := 0;
    END IF;
    -- Where the new ones stand in the list.
    FOR i IN 1..pg_catalog.cardinality(v_parts) BY 2 LOOP
        IF v_parts[i] = -1 THEN
            v_new := v_new || ARRAY[v_index, v_index + v_parts[i + 1]];
            v_index := v_index + v_parts[i + 1];
        ELSE
            v_index := v_index + v_parts[i + 1] - v_parts[i];
            v_most := greatest(v_most, v_parts[i + 1]);
        END IF;
    END LOOP;
    IF v_index <> {schema}.length_of(v_spans) OR v_most > {schema}.length_of(v_parent) AND NOT v_pruned THEN
        RETURN false;
    END IF;
    v_added := {schema}.parts_of(v_spans, v_new);
    IF NOT v_pruned THEN
        v_parent := {schema}.parts_of(v_parent, v_parts, p_checkpoint.branch, coalesce(v_added[2], 0), p_count);
        IF v_spans <> v_parent AND pg_catalog.cardinality(v_parent) <= 768 THEN
            RETURN false;
        END IF;
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM (
            SELECT row_number() OVER (ORDER BY s.ord, m.position) AS ord, m.body
            FROM {schema}.spans_of(v_added) AS s
            JOIN {schema}.message AS m ON m.conversation_id = p_checkpoint.conversation_id AND m.branch = s.branch
                AND m.position >= s.start AND m.position < s.stop
        ) AS w
        FULL JOIN json_array_elements(
            CASE json_typeof(p_messages) WHEN 'array' THEN p_messages WHEN 'object' THEN json_build_array(p_messages) END
        ) WITH ORDINALITY AS e (value, ord) ON e.ord = w.ord
        WHERE NOT {schema}.same_value(w.body, e.value));
END $$;

-- Why a write was refused; or the outcome of the same write, if it has been made a moment ago.
CREATE OR REPLACE FUNCTION {schema}.save_refusal(
    p_conversation uuid, p_branch int, p_token bigint, p_write_id uuid, p_phase text, p_count int, p_messages json,
    p_tool_calls json, p_tool_results json, p_answers int[], p_key text, p_digest bytea, p_parts int[],
    OUT outcome text, OUT branch int, OUT turn_index int, OUT sub_step int, OUT lease_until timestamptz
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
BEGIN
    SELECT e.outcome, e.branch, e.turn_index, e.sub_step
    INTO save_refusal.outcome, save_refusal.branch, save_refusal.turn_index, save_refusal.sub_step
    FROM {schema}.earlier_outcome(p_conversation, p_branch, p_write_id, p_phase, p_count, p_messages,
                                  p_tool_calls, p_tool_results, p_answers, p_key, p_digest, p_parts) AS e;
    IF outcome IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT b.branch, b.turn_index, b.sub_step, b.lease_until, CASE
        WHEN p_token <> 0 AND (b.lease_token <> p_token OR b.lease_until <= v_now) THEN 'lease_lost'
        WHEN p_token = 0 AND b.lease_until > v_now THEN 'lease_held'
        WHEN b.status = 'ended' THEN 'ended'
        ELSE 'conflict'
    END
    INTO save_refusal.branch, save_refusal.turn_index, save_refusal.sub_step, save_refusal.lease_until, outcome
    FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation AND b.branch = p_branch;
    IF NOT FOUND THEN
        PERFORM {schema}.refuse_archived(p_conversation);
        outcome := 'not_found';
    ELSIF outcome = 'ended' THEN
        RAISE EXCEPTION 'conversation % has ended', p_conversation USING ERRCODE = 'TK003';
    END IF;
END $$;

-- Whether a request waits on a branch.
CREATE OR REPLACE FUNCTION {schema}.request_waits(p_conversation uuid, p_branch int) RETURNS boolean
LANGUAGE sql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.request AS r
        WHERE r.conversation_id = p_conversation AND r.branch = p_branch AND r.taken_turn IS NULL)
$$;

-- Whether the turn at a head goes on.
CREATE OR REPLACE FUNCTION {schema}.turn_is_open(
    p_conversation uuid, p_branch int, p_lineage int[], p_turn int, p_sub_step int
) RETURNS boolean LANGUAGE sql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.checkpoint AS c
        WHERE c.conversation_id = p_conversation AND c.turn_index = p_turn AND c.sub_step = p_sub_step
            AND c.branch = {schema}.owner_of(p_branch, p_lineage, p_turn, p_sub_step) AND c.phase <> 'final')
$$;

-- Writes the list of a checkpoint of this transaction's own once more, in one piece: it had more than 256 spans.
CREATE OR REPLACE FUNCTION {schema}.gather_spans(p_conversation uuid, p_branch int, p_turn int, p_sub_step int)
RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_spans int[];
    v_count int;
    v_stop int;
BEGIN
    SELECT c.spans, {schema}.length_of(c.spans) INTO v_spans, v_count FROM {schema}.checkpoint AS c
    WHERE c.conversation_id = p_conversation AND c.branch = p_branch AND c.turn_index = p_turn AND c.sub_step = p_sub_step;
    UPDATE {schema}.branch AS b SET next_position = b.next_position + v_count
    WHERE b.conversation_id = p_conversation AND b.branch = p_branch
    RETURNING b.next_position INTO v_stop;
    INSERT INTO {schema}.message (conversation_id, branch, position, body, size)
    SELECT p_conversation, p_branch, v_stop - v_count - 1 + pg_catalog.row_number() OVER (ORDER BY s.ord, m.position),
        m.body, m.size
    FROM {schema}.spans_of(v_spans) AS s
    JOIN {schema}.message AS m ON m.conversation_id = p_conversation AND m.branch = s.branch
        AND m.position >= s.start AND m.position < s.stop;
    UPDATE {schema}.checkpoint AS c SET spans = ARRAY[p_branch, v_stop - v_count, v_stop]
    WHERE c.conversation_id = p_conversation AND c.branch = p_branch AND c.turn_index = p_turn AND c.sub_step = p_sub_step;
END $$;

-- One save: a checkpoint and its messages, durable when the call returns.
-- (p_turn, p_sub_step) is the head the caller has seen. A p_phase of 'input' opens the next turn, under p_key if
-- there is one; 'final' ends the turn. p_messages is an array of p_count messages, or the only one itself.
-- 'started' writes down that the calls of p_answers are about to run. A null p_state means unchanged. p_repeatable says
-- that the caller may have sent p_write_id before. Nothing is written unless outcome is 'saved'. waiting says, at a turn's
-- end, whether a request waits for the next one. p_parts makes another list than the parent's with the new messages at
-- its end: see parts_of. p_seen is the write id of the head the caller has seen, if it knows: after a failover that has
-- lost writes, another checkpoint can stand in the same place. p_embedding is of a turn that ends, by p_model. What runs at
-- every save is kept short: each expression costs.
CREATE OR REPLACE FUNCTION {schema}.save_v1(
    p_conversation uuid, p_branch int, p_turn int, p_sub_step int, p_token bigint, p_lease_seconds float8,
    p_write_id uuid, p_repeatable boolean, p_phase text, p_agent text, p_count int, p_messages json,
    p_tool_calls json DEFAULT NULL, p_tool_results json DEFAULT NULL, p_answers int[] DEFAULT NULL,
    p_state json DEFAULT NULL, p_key text DEFAULT NULL, p_digest bytea DEFAULT NULL, p_parts int[] DEFAULT NULL,
    p_seen uuid DEFAULT NULL, p_embedding real[] DEFAULT NULL, p_model text DEFAULT NULL,
    OUT outcome text, OUT branch int, OUT turn_index int, OUT sub_step int, OUT lease_until timestamptz,
    OUT waiting boolean
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
    v_start int;
    v_lineage int[];
    v_created timestamptz;
    v_rows int;
BEGIN
    IF p_count < 0 OR json_typeof(p_tool_calls) <> 'array' OR json_typeof(p_tool_results) <> 'array'
        OR cardinality(p_answers) % 3 <> 0
    THEN
        RAISE EXCEPTION 'p_count is not negative, calls and results are arrays, answers triples'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF p_repeatable OR p_key IS NOT NULL THEN
        SELECT e.outcome, e.branch, e.turn_index, e.sub_step
        INTO save_v1.outcome, save_v1.branch, save_v1.turn_index, save_v1.sub_step
        FROM {schema}.earlier_outcome(p_conversation, p_branch, p_write_id, p_phase, p_count, p_messages,
                                      p_tool_calls, p_tool_results, p_answers, p_key, p_digest, p_parts) AS e;
        IF outcome IS NOT NULL THEN
            RETURN;
        END IF;
    END IF;

    UPDATE {schema}.branch AS b SET
        turn_index = CASE WHEN p_phase = 'input' THEN p_turn + 1 ELSE p_turn END,
        sub_step = CASE WHEN p_phase = 'input' THEN 0 ELSE p_sub_step + 1 END,
        next_position = b.next_position + p_count,
        status = CASE WHEN p_token <> 0 THEN 'running' WHEN p_phase = 'final' THEN 'idle' ELSE 'open' END,
        ready_at = NULL,
        attempts = CASE WHEN p_phase = 'started' THEN b.attempts ELSE 0 END,
        failure = NULL,
        turn_started_at = CASE WHEN p_phase = 'input' THEN v_now ELSE b.turn_started_at END,
        lease_owner = CASE WHEN p_token <> 0 THEN b.lease_owner END,  -- an expired lease is over for good
        lease_token = p_token,
        lease_until = CASE WHEN p_token <> 0 THEN v_now + make_interval(secs => p_lease_seconds) END,
        updated_at = greatest(v_now, b.updated_at + interval '1 microsecond')
    WHERE b.conversation_id = p_conversation AND b.branch = p_branch
        AND b.turn_index = p_turn AND b.sub_step = p_sub_step
        AND CASE
            WHEN p_token = 0 THEN (b.lease_until IS NULL OR b.lease_until <= v_now) AND b.status <> 'ended'
            ELSE b.lease_token = p_token AND b.lease_until > v_now
        END
    RETURNING 'saved', b.branch, b.turn_index, b.sub_step, b.lease_until,
        b.next_position - p_count, b.lineage, b.updated_at
    INTO save_v1.outcome, save_v1.branch, save_v1.turn_index, save_v1.sub_step, save_v1.lease_until,
        v_start, v_lineage, v_created;
    IF NOT FOUND THEN
        SELECT r.outcome, r.branch, r.turn_index, r.sub_step, r.lease_until
        INTO save_v1.outcome, save_v1.branch, save_v1.turn_index, save_v1.sub_step, save_v1.lease_until
        FROM {schema}.save_refusal(p_conversation, p_branch, p_token, p_write_id, p_phase, p_count, p_messages,
                                   p_tool_calls, p_tool_results, p_answers, p_key, p_digest, p_parts) AS r;
        RETURN;
    END IF;

    IF p_count = 1 AND pg_catalog.json_typeof(p_messages) <> 'array' THEN
        INSERT INTO {schema}.message (conversation_id, branch, position, body, size)
        VALUES (p_conversation, p_branch, v_start, p_messages, pg_catalog.octet_length(p_messages::text));
    ELSIF p_count > 0 OR p_messages IS NOT NULL THEN
        INSERT INTO {schema}.message (conversation_id, branch, position, body, size)
        SELECT p_conversation, p_branch, v_start + e.ord::int - 1, e.value,
            pg_catalog.octet_length(e.value::text)
        FROM pg_catalog.json_array_elements(p_messages) WITH ORDINALITY AS e (value, ord);
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        IF v_rows <> p_count THEN
            RAISE EXCEPTION 'p_count is %, but p_messages holds %', p_count, v_rows
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;

    -- The parent decides whether a turn is open; its spans go on with the new messages.
    INSERT INTO {schema}.checkpoint (
        conversation_id, turn_index, sub_step, branch, parent_turn_index, parent_sub_step, parent_branch,
        phase, agent_id, created_at, write_id, spans, tool_calls, tool_results, answers, state)
    SELECT p_conversation, save_v1.turn_index, save_v1.sub_step, p_branch, p.turn_index, p.sub_step, p.branch,
        p_phase, p_agent, v_created, p_write_id,
        CASE
            WHEN p_parts IS NOT NULL THEN {schema}.parts_of(p.spans, p_parts, p_branch, v_start, p_count)
            WHEN p_count = 0 THEN coalesce(p.spans, '{{}}')
            WHEN p.spans[pg_catalog.cardinality(p.spans) - 2] = p_branch
                AND p.spans[pg_catalog.cardinality(p.spans)] = v_start
                THEN p.spans[:pg_catalog.cardinality(p.spans) - 1] || (v_start + p_count)
            ELSE coalesce(p.spans, '{{}}') || ARRAY[p_branch, v_start, v_start + p_count]
        END,
        p_tool_calls, p_tool_results, p_answers, coalesce(p_state, p.state)
    FROM (SELECT) AS one
    LEFT JOIN {schema}.checkpoint AS p ON p.conversation_id = p_conversation
        AND p.turn_index = p_turn AND p.sub_step = p_sub_step
        AND p.branch = CASE
            WHEN v_lineage = '{{}}' THEN p_branch
            ELSE {schema}.owner_of(p_branch, v_lineage, p_turn, p_sub_step)
        END
    WHERE (coalesce(p.phase, 'final') = 'final') = (p_phase = 'input') AND (p.phase IS NULL) = (p_turn < 0)
        AND (p.write_id = p_seen OR p_seen IS NULL)
    RETURNING pg_catalog.cardinality(checkpoint.spans) INTO v_rows;
    IF NOT FOUND THEN
        PERFORM FROM {schema}.checkpoint AS c
        WHERE c.conversation_id = p_conversation AND c.turn_index = p_turn AND c.sub_step = p_sub_step
            AND c.write_id = p_seen;
        IF NOT FOUND AND p_seen IS NOT NULL THEN
            RAISE EXCEPTION 'conversation %, branch %: another checkpoint stands at %.% now',
                p_conversation, p_branch, p_turn, p_sub_step USING ERRCODE = 'TK004';
        END IF;
        RAISE EXCEPTION '%', CASE WHEN p_phase = 'input' THEN 'a turn is open' ELSE 'no turn is open' END
            USING ERRCODE = CASE WHEN p_phase = 'input' THEN 'TK001' ELSE 'TK002' END;
    END IF;

    IF v_rows > 768 THEN
        PERFORM {schema}.gather_spans(p_conversation, p_branch, save_v1.turn_index, save_v1.sub_step);
    END IF;

    IF p_key IS NOT NULL THEN
        INSERT INTO {schema}.request (conversation_id, key, branch, digest, received_at, taken_turn)
        VALUES (p_conversation, p_key, p_branch, p_digest, v_now, save_v1.turn_index)
        ON CONFLICT (conversation_id, key) DO UPDATE SET taken_turn = excluded.taken_turn
        WHERE request.taken_turn IS NULL AND request.branch = excluded.branch AND request.digest = excluded.digest;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the key was taken meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
    ELSIF p_phase = 'final' THEN
        IF p_embedding IS NULL THEN  -- apart, since the column is away until `migrate` where pgvector was dropped
            INSERT INTO {schema}.document (conversation_id, branch, turn_index, next_try_at)
            VALUES (p_conversation, p_branch, p_turn, v_now)
            ON CONFLICT DO NOTHING;
        ELSE
            INSERT INTO {schema}.document (conversation_id, branch, turn_index, next_try_at, embedding, model)
            VALUES (p_conversation, p_branch, p_turn, v_now, {schema}.as_column(p_embedding)::{vector}, p_model)
            ON CONFLICT DO NOTHING;
        END IF;
        waiting := {schema}.request_waits(p_conversation, p_branch);
        IF waiting AND p_token = 0 THEN
            UPDATE {schema}.branch AS b SET status = 'ready', ready_at = v_now
            WHERE b.conversation_id = p_conversation AND b.branch = p_branch;
        END IF;
    END IF;
END $$;

-- A whole turn at once, in two checkpoints: 'input' with the messages, the calls and the state, under p_first_id; then
-- 'final' with the results. Both or none: outcomes are save_v1's, of the second.
CREATE OR REPLACE FUNCTION {schema}.save_turn_v1(
    p_conversation uuid, p_branch int, p_turn int, p_sub_step int, p_token bigint, p_lease_seconds float8,
    p_first_id uuid, p_write_id uuid, p_agent text, p_count int, p_messages json, p_tool_calls json,
    p_tool_results json, p_answers int[], p_state json, p_parts int[], p_seen uuid,
    p_embedding real[] DEFAULT NULL, p_model text DEFAULT NULL,
    OUT outcome text, OUT branch int, OUT turn_index int, OUT sub_step int, OUT lease_until timestamptz,
    OUT waiting boolean
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_saved record;
BEGIN
    SELECT s.* INTO v_saved FROM {schema}.save_v1(
        p_conversation, p_branch, p_turn, p_sub_step, p_token, p_lease_seconds, p_first_id, false, 'input', p_agent,
        p_count, p_messages, p_tool_calls, NULL, NULL, p_state, NULL, NULL, p_parts, p_seen) AS s;
    IF v_saved.outcome IN ('saved', 'repeated') THEN
        SELECT s.* INTO v_saved FROM {schema}.save_v1(
            p_conversation, p_branch, v_saved.turn_index, v_saved.sub_step, p_token, p_lease_seconds, p_write_id, false,
            'final', p_agent, 0, NULL, NULL, p_tool_results, p_answers, NULL, NULL, NULL, NULL, p_first_id, p_embedding,
            p_model) AS s;
    END IF;
    outcome := v_saved.outcome;
    branch := v_saved.branch;
    turn_index := v_saved.turn_index;
    sub_step := v_saved.sub_step;
    lease_until := v_saved.lease_until;
    waiting := v_saved.waiting;
END $$;

-- Begins the next turn with the oldest request that waits on the branch. 'none' where there is none, and nothing is
-- written; the other outcomes are save_v1's. The same p_write_id gives the same turn again. p_seen is save_v1's.
CREATE OR REPLACE FUNCTION {schema}.take_v1(
    p_conversation uuid, p_branch int, p_turn int, p_sub_step int, p_token bigint, p_lease_seconds float8,
    p_write_id uuid, p_agent text, p_state json, p_seen uuid DEFAULT NULL,
    OUT outcome text, OUT turn_index int, OUT sub_step int, OUT lease_until timestamptz, OUT key text, OUT body json
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_request {schema}.request;
BEGIN
    SELECT 'repeated', c.turn_index, c.sub_step, r.key, r.body
    INTO take_v1.outcome, take_v1.turn_index, take_v1.sub_step, take_v1.key, take_v1.body
    FROM {schema}.checkpoint AS c
    JOIN {schema}.request AS r ON r.conversation_id = c.conversation_id AND r.branch = c.branch
        AND r.taken_turn = c.turn_index
    WHERE c.conversation_id = p_conversation AND c.turn_index = p_turn + 1 AND c.sub_step = 0 AND c.branch = p_branch
        AND c.write_id = p_write_id;
    IF FOUND THEN
        PERFORM {schema}.confirm(p_conversation, p_branch);
        RETURN;
    END IF;
    SELECT r.* INTO v_request FROM {schema}.request AS r
    WHERE r.conversation_id = p_conversation AND r.branch = p_branch AND r.taken_turn IS NULL
    ORDER BY r.number LIMIT 1;
    IF NOT FOUND THEN
        PERFORM {schema}.refuse_archived(p_conversation);
        outcome := 'none';
        RETURN;
    END IF;
    key := v_request.key;
    body := v_request.body;
    SELECT s.outcome, s.turn_index, s.sub_step, s.lease_until
    INTO take_v1.outcome, take_v1.turn_index, take_v1.sub_step, take_v1.lease_until
    FROM {schema}.save_v1(
        p_conversation, p_branch, p_turn, p_sub_step, p_token, p_lease_seconds, p_write_id, false, 'input', p_agent,
        CASE json_typeof(body) WHEN 'array' THEN json_array_length(body) ELSE 1 END, body,
        NULL, NULL, NULL, p_state, key, v_request.digest, NULL, p_seen) AS s;
END $$;

-- Accepts a message under a key: it waits for a turn of its own. p_branch null: the current branch. The branch row
-- first, then the request: the other order would lose the wake-up against a turn's end.
CREATE OR REPLACE FUNCTION {schema}.post_v1(
    p_conversation uuid, p_branch int, p_key text, p_body json, p_digest bytea, OUT outcome text, OUT branch int
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
BEGIN
    IF p_key IS NULL OR p_body IS NULL OR p_digest IS NULL OR json_typeof(p_body) NOT IN ('object', 'array') THEN
        RAISE EXCEPTION 'a request has a key, a digest, and one message or an array of them'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT CASE WHEN r.digest = p_digest THEN 'repeated' ELSE 'key_reused' END, r.branch
    INTO post_v1.outcome, post_v1.branch
    FROM {schema}.request AS r WHERE r.conversation_id = p_conversation AND r.key = p_key;
    IF FOUND THEN
        PERFORM {schema}.confirm(p_conversation, post_v1.branch);
        RETURN;
    END IF;
    SELECT coalesce(p_branch, v.current_branch) INTO post_v1.branch
    FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation;
    UPDATE {schema}.branch AS b SET
        status = CASE b.status WHEN 'idle' THEN 'ready' ELSE b.status END,
        ready_at = CASE b.status WHEN 'idle' THEN v_now ELSE b.ready_at END,
        updated_at = greatest(v_now, b.updated_at + interval '1 microsecond')
    WHERE b.conversation_id = p_conversation AND b.branch = post_v1.branch;
    IF NOT FOUND THEN
        PERFORM {schema}.refuse_archived(p_conversation);
        outcome := 'not_found';
        RETURN;
    END IF;
    PERFORM FROM {schema}.conversation AS v
    WHERE v.conversation_id = p_conversation AND v.ended_at IS NULL AND v.archived_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'conversation % has ended', p_conversation USING ERRCODE = 'TK003';
    END IF;
    INSERT INTO {schema}.request (conversation_id, key, branch, body, digest, received_at)
    VALUES (p_conversation, p_key, post_v1.branch, p_body, p_digest, v_now)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the key was posted meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
    outcome := 'posted';
END $$;
