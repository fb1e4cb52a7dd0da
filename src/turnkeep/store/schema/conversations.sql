-- Repeatable: run whenever its text changes. Conversations made, described, ended and erased; branches forked and deleted.
-- Lock order, here as everywhere: branch rows, then the rest, then conversation.

-- A conversation and its branch 0: 'created', 'there', or 'no_parent'.
CREATE OR REPLACE FUNCTION {schema}.create_v2(
    p_conversation uuid, p_external_id text, p_agent text, p_tenant text DEFAULT NULL, p_parent uuid DEFAULT NULL,
    p_title text DEFAULT NULL, p_tags text[] DEFAULT '{{}}', p_metadata jsonb DEFAULT '{{}}', p_ttl interval DEFAULT NULL,
    OUT outcome text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
BEGIN
    IF p_parent IS NOT NULL THEN  -- held until this commits: an erasure of the parent then finds its child
        PERFORM FROM {schema}.conversation AS v WHERE v.conversation_id = p_parent FOR KEY SHARE;
        IF NOT FOUND THEN
            outcome := 'no_parent';
            RETURN;
        END IF;
    END IF;
    INSERT INTO {schema}.branch (conversation_id, branch, name, turn_started_at, updated_at)
    VALUES (p_conversation, 0, 'main', v_now, v_now)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN  -- somebody has just made both: an erasure may take both away before the next statement
        outcome := 'there';
        RETURN;
    END IF;
    INSERT INTO {schema}.conversation (conversation_id, external_id, agent_id, created_at, tenant,
                                       parent_conversation_id, title, tags, metadata, ttl)
    VALUES (p_conversation, p_external_id, p_agent, v_now, p_tenant, p_parent, p_title, p_tags, p_metadata, p_ttl)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN  -- its branches are in the archive, or have just been put back from there
        PERFORM {schema}.refuse_archived(p_conversation);
        RAISE EXCEPTION 'the conversation has just been unarchived' USING ERRCODE = 'serialization_failure';
    END IF;
    outcome := 'created';
END $$;

-- What release 0.1 calls. Goes with the release after the next.
CREATE OR REPLACE FUNCTION {schema}.create_v1(p_conversation uuid, p_external_id text, p_agent text)
RETURNS boolean LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT {schema}.create_v2(p_conversation, p_external_id, p_agent) = 'created'
$$;

-- Changes what is said of a conversation: those of title, tags, metadata and ttl that p_names names. Metadata are merged
-- key by key; a null removes one. A p_version that is not the conversation's own is a 'conflict'. The same p_update_id changes
-- nothing more.
CREATE OR REPLACE FUNCTION {schema}.update_v1(
    p_conversation uuid, p_update_id uuid, p_version int, p_names text[], p_title text, p_tags text[], p_metadata jsonb,
    p_ttl interval DEFAULT NULL, OUT outcome text, OUT version int
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_conversation {schema}.conversation;
    v_metadata jsonb;
BEGIN
    SELECT v.* INTO v_conversation FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation
    FOR NO KEY UPDATE;
    version := v_conversation.version;
    IF v_conversation.archived_at IS NOT NULL THEN
        PERFORM {schema}.refuse_archived(p_conversation);
    END IF;
    outcome := CASE
        WHEN version IS NULL THEN 'not_found'
        WHEN p_update_id = ANY (v_conversation.update_ids) THEN 'repeated'
        WHEN version <> p_version THEN 'conflict'
        ELSE 'updated'
    END;
    v_metadata := (v_conversation.metadata || p_metadata) - ARRAY(
        SELECT e.key FROM jsonb_each(p_metadata) AS e WHERE e.value = 'null');
    IF outcome = 'updated' AND 'metadata' = ANY (p_names) AND octet_length(v_metadata::text) > 131072 THEN
        outcome := 'too_large';
    END IF;
    IF outcome = 'updated' THEN
        UPDATE {schema}.conversation AS v SET
            title = CASE WHEN 'title' = ANY (p_names) THEN p_title ELSE v.title END,
            tags = CASE WHEN 'tags' = ANY (p_names) THEN p_tags ELSE v.tags END,
            metadata = CASE WHEN 'metadata' = ANY (p_names) THEN v_metadata ELSE v.metadata END,
            ttl = CASE WHEN 'ttl' = ANY (p_names) THEN p_ttl ELSE v.ttl END,
            version = v.version + 1, update_ids = (p_update_id || v.update_ids)[:16]
        WHERE v.conversation_id = p_conversation
        RETURNING v.version INTO update_v1.version;
    END IF;
END $$;

-- Ends a conversation: its branches take no writes and no requests until it is reopened, and keep what they have.
-- 'lease_held' while somebody runs one of them. One that waits for a worker keeps its ready_at, by which reopen_v1
-- knows it.
CREATE OR REPLACE FUNCTION {schema}.end_v1(
    p_conversation uuid, OUT outcome text, OUT branch int, OUT lease_owner text, OUT lease_until timestamptz
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
    v_locked int := -1;
    v_rows int;
BEGIN
    LOOP  -- until no fork can have added one
        PERFORM FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation ORDER BY b.branch FOR NO KEY UPDATE;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        EXIT WHEN v_rows = v_locked;
        v_locked := v_rows;
    END LOOP;
    IF v_locked = 0 THEN  -- also where one is just being made: its branch would be left out
        PERFORM {schema}.refuse_archived(p_conversation);
        outcome := 'not_found';
        RETURN;
    END IF;
    SELECT 'lease_held', b.branch, b.lease_owner, b.lease_until
    INTO end_v1.outcome, end_v1.branch, end_v1.lease_owner, end_v1.lease_until
    FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation AND b.lease_until > v_now
    ORDER BY b.branch LIMIT 1;
    IF FOUND THEN
        RETURN;
    END IF;
    UPDATE {schema}.branch AS b SET status = 'ended', attempts = 0,
        ready_at = CASE b.status WHEN 'running' THEN v_now ELSE b.ready_at END,
        lease_owner = NULL, lease_token = 0, lease_until = NULL,
        updated_at = greatest(v_now, b.updated_at + interval '1 microsecond')
    WHERE b.conversation_id = p_conversation AND b.status <> 'ended';
    UPDATE {schema}.conversation AS v SET ended_at = coalesce(v.ended_at, v_now)
    WHERE v.conversation_id = p_conversation;
    outcome := 'ended';
END $$;

-- Takes an end back: each branch is as it was before. One whose worker had died waits for another. A fork that
-- nobody has gone on with is idle, though its turn is open.
CREATE OR REPLACE FUNCTION {schema}.reopen_v1(p_conversation uuid, OUT outcome text)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
BEGIN
    PERFORM FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation ORDER BY b.branch FOR NO KEY UPDATE;
    UPDATE {schema}.branch AS b SET
        status = s.status, ready_at = CASE s.status WHEN 'ready' THEN coalesce(b.ready_at, v_now) END,
        updated_at = greatest(v_now, b.updated_at + interval '1 microsecond')
    FROM {schema}.branch AS o
    CROSS JOIN LATERAL (SELECT CASE
        WHEN o.failure IS NOT NULL THEN CASE o.failure ->> 'type' WHEN 'waiting' THEN 'waiting' ELSE 'failed' END
        WHEN {schema}.turn_is_open(o.conversation_id, o.branch, o.lineage, o.turn_index, o.sub_step) THEN CASE
            WHEN o.ready_at IS NOT NULL THEN 'ready'
            WHEN EXISTS (
                SELECT FROM {schema}.checkpoint AS c
                WHERE c.conversation_id = o.conversation_id AND c.branch = o.branch
                    AND c.turn_index = o.turn_index AND c.sub_step = o.sub_step AND c.origin_conversation IS NULL)
                THEN 'open'
            ELSE 'idle'
        END
        WHEN {schema}.request_waits(o.conversation_id, o.branch) THEN 'ready'
        ELSE 'idle'
    END AS status) AS s
    WHERE b.conversation_id = p_conversation AND b.status = 'ended'
        AND o.conversation_id = b.conversation_id AND o.branch = b.branch;
    UPDATE {schema}.conversation AS v SET ended_at = NULL
    WHERE v.conversation_id = p_conversation AND v.archived_at IS NULL;
    outcome := CASE WHEN FOUND THEN 'reopened' ELSE 'not_found' END;
    PERFORM {schema}.refuse_archived(p_conversation);
END $$;

-- What waits for others must see what they have done: no other isolation level shows that.
CREATE OR REPLACE FUNCTION {schema}.must_see_others() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this transaction is %, and would not see what others have just written',
                current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END $$;

-- Removes a conversation and its children for good (G12), and counts what there was. A writer that is at it is waited for,
-- and one that comes later finds nothing: so branch rows go first. What a fork or a new child adds meanwhile is found by
-- looking again.
CREATE OR REPLACE FUNCTION {schema}.erase_v1(
    p_conversation uuid,
    OUT conversations bigint, OUT branches bigint, OUT checkpoints bigint, OUT messages bigint, OUT requests bigint
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_ids uuid[] := ARRAY[p_conversation];
    v_rows bigint;
    v_found bigint;
BEGIN
    conversations := 0;
    branches := 0;
    checkpoints := 0;
    messages := 0;
    requests := 0;
    PERFORM {schema}.must_see_others();
    WHILE v_ids <> '{{}}' LOOP
        v_found := 0;
        LOOP
            PERFORM FROM {schema}.branch AS b WHERE b.conversation_id = ANY (v_ids)
            ORDER BY b.conversation_id, b.branch FOR UPDATE;
            DELETE FROM {schema}.branch AS b WHERE b.conversation_id = ANY (v_ids);
            GET DIAGNOSTICS v_rows = ROW_COUNT;
            EXIT WHEN v_rows = 0;
            branches := branches + v_rows;
            v_found := v_found + v_rows;
        END LOOP;
        DELETE FROM {schema}.message AS m WHERE m.conversation_id = ANY (v_ids);
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        messages := messages + v_rows;
        DELETE FROM {schema}.checkpoint AS c WHERE c.conversation_id = ANY (v_ids);
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        checkpoints := checkpoints + v_rows;
        DELETE FROM {schema}.request AS r WHERE r.conversation_id = ANY (v_ids);
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        requests := requests + v_rows;
        DELETE FROM {schema}.document AS d WHERE d.conversation_id = ANY (v_ids);
        -- Counted here, removed with its conversation: an unarchiving holds that row, and takes the archive's after it.
        SELECT erase_v1.branches + coalesce(sum(a.branches), 0), erase_v1.checkpoints + coalesce(sum(a.checkpoints), 0),
            erase_v1.messages + coalesce(sum(a.messages), 0), erase_v1.requests + coalesce(sum(a.requests), 0)
        INTO erase_v1.branches, erase_v1.checkpoints, erase_v1.messages, erase_v1.requests
        FROM {schema}.archive AS a WHERE a.conversation_id = ANY (v_ids);
        DELETE FROM {schema}.conversation AS v WHERE v.conversation_id = ANY (v_ids);
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        conversations := conversations + v_rows;
        -- One that was made meanwhile may have come between: its branches, before the conversation was found.
        CONTINUE WHEN v_rows + v_found > 0;
        v_ids := ARRAY(
            SELECT v.conversation_id FROM {schema}.conversation AS v WHERE v.parent_conversation_id = ANY (v_ids)
            ORDER BY v.conversation_id);
    END LOOP;
    IF conversations = 0 THEN  -- perhaps a retry: its answer waits for synchronous standbys too, as confirm lets others
        PERFORM pg_catalog.pg_logical_emit_message(true, 'turnkeep', 'erased before');
    END IF;
END $$;

-- The lineage of a branch that starts at (p_turn, p_sub_step) in the history of a branch with this lineage.
CREATE OR REPLACE FUNCTION {schema}.lineage_at(p_branch int, p_lineage int[], p_turn int, p_sub_step int)
RETURNS int[] LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_owner int := {schema}.owner_of(p_branch, p_lineage, p_turn, p_sub_step);
    v_kept int[] := '{{}}';
BEGIN
    FOR i IN 1..pg_catalog.cardinality(p_lineage) BY 3 LOOP
        EXIT WHEN p_lineage[i] = v_owner;
        v_kept := v_kept || p_lineage[i:i + 2];
    END LOOP;
    RETURN v_kept || ARRAY[v_owner, p_turn, p_sub_step];
END $$;

-- A new branch that starts at a checkpoint in the history of p_source (null: the current branch; a null p_turn: its
-- head). The same p_fork_id gives the same branch.
CREATE OR REPLACE FUNCTION {schema}.fork_v1(
    p_conversation uuid, p_source int, p_turn int, p_sub_step int, p_name text, p_fork_id uuid,
    OUT outcome text, OUT branch int
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
    v_source {schema}.branch;
BEGIN
    p_source := coalesce(p_source, (
        SELECT v.current_branch FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation));
    SELECT b.* INTO v_source FROM {schema}.branch AS b
    WHERE b.conversation_id = p_conversation AND b.branch = p_source FOR UPDATE;
    p_sub_step := CASE WHEN p_turn IS NULL THEN v_source.sub_step ELSE p_sub_step END;
    p_turn := coalesce(p_turn, v_source.turn_index);
    IF v_source.branch IS NULL THEN
        PERFORM {schema}.refuse_archived(p_conversation);
        outcome := 'not_found';
        RETURN;
    END IF;
    PERFORM FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation FOR NO KEY UPDATE;
    SELECT b.branch INTO fork_v1.branch FROM {schema}.branch AS b
    WHERE b.conversation_id = p_conversation AND b.fork_id = p_fork_id;
    IF FOUND THEN
        outcome := 'repeated';
        RETURN;
    END IF;
    IF v_source.status = 'ended' THEN
        RAISE EXCEPTION 'conversation % has ended', p_conversation USING ERRCODE = 'TK003';
    END IF;
    outcome := CASE
        WHEN NOT EXISTS (
            SELECT FROM {schema}.checkpoint AS c
            WHERE c.conversation_id = p_conversation AND c.turn_index = p_turn AND c.sub_step = p_sub_step
                AND c.branch = {schema}.owner_of(p_source, v_source.lineage, p_turn, p_sub_step))
            THEN 'no_checkpoint'
        WHEN EXISTS (
            SELECT FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation AND b.name = p_name)
            THEN 'name_taken'
        ELSE 'forked'
    END;
    IF outcome <> 'forked' THEN
        RETURN;
    END IF;
    UPDATE {schema}.conversation AS v SET next_branch = v.next_branch + 1
    WHERE v.conversation_id = p_conversation
    RETURNING v.next_branch - 1 INTO fork_v1.branch;
    INSERT INTO {schema}.branch (conversation_id, branch, name, turn_index, sub_step, lineage, fork_id,
                                 turn_started_at, updated_at)
    VALUES (p_conversation, fork_v1.branch, p_name, p_turn, p_sub_step,
            {schema}.lineage_at(p_source, v_source.lineage, p_turn, p_sub_step), p_fork_id, v_now,
            greatest(v_now, v_source.updated_at + interval '1 microsecond'));
END $$;

-- A new conversation whose branch 0 is the history of p_source up to a checkpoint, copied. Its checkpoints keep their
-- places and say where they come from. 'exists' where there is another conversation of that id. The source's writers
-- are not held up; an erasure is.
CREATE OR REPLACE FUNCTION {schema}.fork_into_v1(
    p_conversation uuid, p_source int, p_turn int, p_sub_step int, p_name text, p_fork_id uuid,
    p_into uuid, p_external_id text, p_tenant text, OUT outcome text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
    v_source {schema}.branch;
    v_lineage int[];
    v_map int[];  -- (branch, first position, its new position) triples
    v_stop int := 0;
    v_part record;
BEGIN
    PERFORM FROM {schema}.branch AS b
    WHERE b.conversation_id = p_into AND b.branch = 0 AND b.fork_id = p_fork_id FOR UPDATE;
    IF FOUND THEN  -- whatever has become of the source
        outcome := 'repeated';
        RETURN;
    END IF;
    SELECT b.* INTO v_source FROM {schema}.branch AS b
    WHERE b.conversation_id = p_conversation AND b.branch = coalesce(p_source, (
        SELECT v.current_branch FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation))
    FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM {schema}.refuse_archived(p_conversation);
        outcome := 'not_found';
        RETURN;
    END IF;
    p_sub_step := CASE WHEN p_turn IS NULL THEN v_source.sub_step ELSE p_sub_step END;
    p_turn := coalesce(p_turn, v_source.turn_index);
    v_lineage := {schema}.lineage_at(v_source.branch, v_source.lineage, p_turn, p_sub_step);
    PERFORM FROM {schema}.checkpoint AS c
    WHERE c.conversation_id = p_conversation AND c.turn_index = p_turn AND c.sub_step = p_sub_step
        AND c.branch = v_lineage[pg_catalog.cardinality(v_lineage) - 2];
    IF NOT FOUND THEN
        outcome := 'no_checkpoint';
        RETURN;
    END IF;
    INSERT INTO {schema}.branch (conversation_id, branch, name, turn_index, sub_step, fork_id, turn_started_at, updated_at)
    VALUES (p_into, 0, coalesce(p_name, 'main'), p_turn, p_sub_step, p_fork_id, v_now,
            greatest(v_now, v_source.updated_at + interval '1 microsecond'))
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT CASE WHEN b.fork_id = p_fork_id THEN 'repeated' ELSE 'exists' END INTO outcome
        FROM {schema}.branch AS b WHERE b.conversation_id = p_into AND b.branch = 0;
        outcome := coalesce(outcome, 'exists');
        RETURN;
    END IF;

    -- On each branch of the lineage all that its checkpoints here have written, in one piece, one after the other.
    FOR v_part IN
        SELECT s.branch, pg_catalog.min(s.start) AS start, pg_catalog.max(s.stop) AS stop
        FROM {schema}.checkpoint AS c
        CROSS JOIN LATERAL {schema}.spans_of(c.spans) AS s
        WHERE c.conversation_id = p_conversation AND (c.turn_index, c.sub_step) <= (p_turn, p_sub_step)
            AND c.branch = {schema}.owner_of(-1, v_lineage, c.turn_index, c.sub_step)
        GROUP BY s.branch
        ORDER BY s.branch  -- an ancestor has the lower number
    LOOP
        v_map := v_map || ARRAY[v_part.branch, v_part.start, v_stop];
        INSERT INTO {schema}.message (conversation_id, branch, position, body, size)
        SELECT p_into, 0, v_stop + m.position - v_part.start, m.body, m.size
        FROM {schema}.message AS m
        WHERE m.conversation_id = p_conversation AND m.branch = v_part.branch
            AND m.position >= v_part.start AND m.position < v_part.stop;
        v_stop := v_stop + v_part.stop - v_part.start;
    END LOOP;
    UPDATE {schema}.branch AS b SET next_position = v_stop WHERE b.conversation_id = p_into AND b.branch = 0;

    INSERT INTO {schema}.checkpoint (
        conversation_id, turn_index, sub_step, branch, parent_turn_index, parent_sub_step, parent_branch,
        phase, agent_id, created_at, write_id, spans, tool_calls, tool_results, answers, state,
        origin_conversation, origin_branch)
    SELECT p_into, c.turn_index, c.sub_step, 0, c.parent_turn_index, c.parent_sub_step,
        CASE WHEN c.parent_branch IS NOT NULL THEN 0 END,
        c.phase, c.agent_id, c.created_at, c.write_id, {schema}.moved_spans(c.spans, v_map),
        c.tool_calls, c.tool_results, c.answers, c.state,
        coalesce(c.origin_conversation, c.conversation_id), coalesce(c.origin_branch, c.branch)
    FROM {schema}.checkpoint AS c
    WHERE c.conversation_id = p_conversation AND (c.turn_index, c.sub_step) <= (p_turn, p_sub_step)
        AND c.branch = {schema}.owner_of(-1, v_lineage, c.turn_index, c.sub_step)
    ORDER BY c.turn_index, c.sub_step;
    INSERT INTO {schema}.conversation (conversation_id, external_id, agent_id, created_at, tenant, title, tags, metadata)
    SELECT p_into, p_external_id, v.agent_id, v_now, p_tenant, v.title, v.tags, v.metadata
    FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation;
    INSERT INTO {schema}.document (conversation_id, branch, turn_index, next_try_at)
    SELECT p_into, 0, c.turn_index, v_now FROM {schema}.checkpoint AS c
    WHERE c.conversation_id = p_into AND c.phase = 'final';
    outcome := 'forked';
END $$;

-- Spans over messages that have been moved to branch 0: p_map says what position the first one of each branch has now.
CREATE OR REPLACE FUNCTION {schema}.moved_spans(p_spans int[], p_map int[]) RETURNS int[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_spans int[] := '{{}}';
    v_move int;
BEGIN
    FOR i IN 1..pg_catalog.cardinality(p_spans) BY 3 LOOP
        FOR j IN 1..pg_catalog.cardinality(p_map) BY 3 LOOP
            v_move := p_map[j + 2] - p_map[j + 1];
            EXIT WHEN p_map[j] = p_spans[i];
        END LOOP;
        v_spans := {schema}.with_span(v_spans, 0, p_spans[i + 1] + v_move, p_spans[i + 2] + v_move);
    END LOOP;
    RETURN v_spans;
END $$;

-- Makes a branch the current one. Null where there is none of that number.
CREATE OR REPLACE FUNCTION {schema}.switch_v1(p_conversation uuid, p_branch int) RETURNS int
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation AND b.branch = p_branch FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM {schema}.refuse_archived(p_conversation);
        RETURN NULL;
    END IF;
    UPDATE {schema}.conversation AS v SET current_branch = p_branch
    WHERE v.conversation_id = p_conversation AND v.current_branch <> p_branch;
    RETURN p_branch;
END $$;

-- Removes a branch with all it has of its own. Not the current one, not one that somebody runs or that a request waits
-- on, and not one whose checkpoints others go on from: those are `builders`. 'gone' where it has been removed before.
CREATE OR REPLACE FUNCTION {schema}.delete_branch_v1(
    p_conversation uuid, p_branch int,
    OUT outcome text, OUT builders int[], OUT lease_owner text, OUT lease_until timestamptz
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
BEGIN
    PERFORM {schema}.must_see_others();
    PERFORM FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation ORDER BY b.branch FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM {schema}.refuse_archived(p_conversation);
    END IF;
    SELECT b.lease_owner, b.lease_until, ARRAY(
            SELECT o.branch FROM {schema}.branch AS o
            WHERE o.conversation_id = p_conversation AND o.branch <> p_branch AND p_branch = ANY (
                SELECT o.lineage[i] FROM pg_catalog.generate_series(1, pg_catalog.cardinality(o.lineage), 3) AS i)
            ORDER BY o.branch),
        CASE
            WHEN v.current_branch = p_branch THEN 'current'
            WHEN b.lease_until > v_now THEN 'lease_held'
            WHEN {schema}.request_waits(p_conversation, p_branch) THEN 'request_waits'
            WHEN b.branch IS NULL AND p_branch < v.next_branch THEN 'gone'
            WHEN b.branch IS NULL THEN 'not_found'
            ELSE 'deleted'
        END
    INTO delete_branch_v1.lease_owner, delete_branch_v1.lease_until, builders, outcome
    FROM {schema}.conversation AS v
    LEFT JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id AND b.branch = p_branch
    WHERE v.conversation_id = p_conversation;
    IF outcome = 'deleted' AND builders <> '{{}}' THEN
        outcome := 'built_on';
    END IF;
    IF outcome IS DISTINCT FROM 'deleted' THEN
        outcome := coalesce(outcome, 'not_found');
        RETURN;
    END IF;
    DELETE FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation AND b.branch = p_branch;
    DELETE FROM {schema}.message AS m WHERE m.conversation_id = p_conversation AND m.branch = p_branch;
    DELETE FROM {schema}.checkpoint AS c WHERE c.conversation_id = p_conversation AND c.branch = p_branch;
    DELETE FROM {schema}.request AS r WHERE r.conversation_id = p_conversation AND r.branch = p_branch;
    DELETE FROM {schema}.document AS d WHERE d.conversation_id = p_conversation AND d.branch = p_branch;
END $$;
