-- Repeatable: run whenever its text changes. Old checkpoints removed, then the messages that no checkpoint holds any more.
-- Each call is short: it looks at a bounded number of rows, waits for nobody longer than a second, and can be the last
-- one: what is left then is whole.

-- Locks a conversation's branches as lock_branches does; null where somebody held one for too long.
CREATE OR REPLACE FUNCTION {schema}.hold_branches(p_conversation uuid) RETURNS int
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET lock_timeout = '1s' SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN {schema}.lock_branches(p_conversation);
EXCEPTION WHEN lock_not_available THEN
    RETURN NULL;
END $$;

-- The checkpoints below a place, newest first, and what becomes of each: whole turns, at least p_limit checkpoints where
-- there are as many. `kept`: a branch's head, a place where a branch was forked, what an open turn or its pending calls
-- are read from, what is as young as p_before or comes right before that, the end of a turn that a request has begun, and
-- in 'last-per-turn' the end of every turn. `wanted`: a document's text is still to be taken from it.
CREATE OR REPLACE FUNCTION {schema}.prune_judged(
    p_conversation uuid, p_keep text, p_before timestamptz, p_turn int, p_sub_step int, p_branch int, p_limit int
) RETURNS TABLE (
    turn_index int, sub_step int, branch int, phase text, bytes bigint, kept boolean, wanted boolean
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off AS $$  -- what is joined here is never as small as the planner takes it for
DECLARE
    v_low int;
    v_high int;
BEGIN
    SELECT min(w.turn_index), max(w.turn_index) INTO v_low, v_high
    FROM (
        SELECT c.turn_index FROM {schema}.checkpoint AS c
        WHERE c.conversation_id = p_conversation AND (c.turn_index, c.sub_step, c.branch) < (p_turn, p_sub_step, p_branch)
        ORDER BY c.turn_index DESC, c.sub_step DESC, c.branch DESC LIMIT p_limit
    ) AS w;
    RETURN QUERY
    WITH step AS MATERIALIZED (
        SELECT c.turn_index, c.sub_step, c.branch, c.phase, c.created_at,
            (coalesce(pg_column_size(c.state), 0) + coalesce(pg_column_size(c.tool_calls), 0)
             + coalesce(pg_column_size(c.tool_results), 0) + pg_column_size(c.spans))::bigint AS bytes
        FROM {schema}.checkpoint AS c
        WHERE c.conversation_id = p_conversation AND c.turn_index BETWEEN v_low - 1 AND v_high + 1
    ), last AS MATERIALIZED (
        SELECT s.turn_index, s.branch, max(s.sub_step) AS sub_step, max(s.created_at) AS newest
        FROM step AS s GROUP BY s.turn_index, s.branch
    ), mark AS MATERIALIZED (
        SELECT {schema}.owner_of(b.branch, b.lineage, b.turn_index, b.sub_step) AS branch, b.turn_index, b.sub_step
        FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation
        UNION
        SELECT b.lineage[i], b.lineage[i + 1], b.lineage[i + 2]
        FROM {schema}.branch AS b, generate_series(1, cardinality(b.lineage), 3) AS i
        WHERE b.conversation_id = p_conversation
    ), open AS MATERIALIZED (  -- up to where the calls of a turn are read from its checkpoints
        SELECT m.turn_index, m.branch, max(m.sub_step) AS upto
        FROM mark AS m
        JOIN step AS s ON s.turn_index = m.turn_index AND s.sub_step = m.sub_step AND s.branch = m.branch
        WHERE s.phase <> 'final'
        GROUP BY m.turn_index, m.branch
    ), unread AS MATERIALIZED (
        SELECT d.branch, d.turn_index FROM {schema}.document AS d
        WHERE d.conversation_id = p_conversation AND d.text IS NULL AND d.next_try_at IS NOT NULL
    )
    SELECT s.turn_index, s.sub_step, s.branch, s.phase, s.bytes,
        coalesce(l.newest >= p_before, false)
            OR m.branch IS NOT NULL
            OR coalesce(o.upto >= s.sub_step, false)
            OR s.sub_step = l.sub_step AND (
                p_keep = 'last-per-turn'
                OR coalesce(n.newest >= p_before, false)
                OR (s.branch, s.turn_index) IN (
                    SELECT r.branch, r.taken_turn FROM {schema}.request AS r
                    WHERE r.conversation_id = p_conversation AND r.taken_turn IS NOT NULL)),
        s.sub_step = l.sub_step AND (
            (s.branch, s.turn_index) IN (SELECT u.branch, u.turn_index FROM unread AS u)
            OR s.turn_index + 1 IN (SELECT u.turn_index FROM unread AS u))
    FROM step AS s
    JOIN last AS l ON l.turn_index = s.turn_index AND l.branch = s.branch
    LEFT JOIN last AS n ON n.turn_index = s.turn_index + 1 AND n.branch = s.branch
    LEFT JOIN mark AS m ON m.turn_index = s.turn_index AND m.sub_step = s.sub_step AND m.branch = s.branch
    LEFT JOIN open AS o ON o.turn_index = s.turn_index AND o.branch = s.branch
    WHERE s.turn_index BETWEEN v_low AND v_high
        AND (s.turn_index, s.sub_step, s.branch) < (p_turn, p_sub_step, p_branch)
    ORDER BY s.turn_index DESC, s.sub_step DESC, s.branch DESC;
END $$;

-- Ranges of positions whose messages no checkpoint holds. No checkpoint ever will: a new one takes its list from one that is
-- there, and new messages.
CREATE OR REPLACE FUNCTION {schema}.unheld(p_conversation uuid)
RETURNS TABLE (branch int, start int, stop int) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT b.branch, lower(g), upper(g)
    FROM {schema}.branch AS b
    LEFT JOIN (
        SELECT s.branch, range_agg(int4range(s.start, s.stop)) AS positions
        FROM {schema}.checkpoint AS c
        CROSS JOIN LATERAL {schema}.spans_of(c.spans) AS s
        WHERE c.conversation_id = p_conversation
        GROUP BY s.branch
    ) AS h ON h.branch = b.branch
    CROSS JOIN LATERAL unnest(
        int4multirange(int4range(0, b.next_position)) - coalesce(h.positions, '{{}}')) AS g
    WHERE b.conversation_id = p_conversation
    ORDER BY b.branch, lower(g);
END $$;

-- Removes up to about p_limit messages that no checkpoint holds, those behind a place first. `more`: call it again with
-- the place given back. Writers are not held up: what nobody holds, nobody will.
CREATE OR REPLACE FUNCTION {schema}.prune_messages_v1(
    p_conversation uuid, p_limit int, p_branch int DEFAULT 0, p_position int DEFAULT -1,
    OUT messages bigint, OUT bytes bigint, OUT more boolean, OUT branch int, OUT "position" int
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_gap record;
    v_gone record;
BEGIN
    IF p_limit IS NULL OR p_limit < 1 THEN
        RAISE EXCEPTION 'p_limit is at least 1' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM {schema}.must_see_others();
    messages := 0;
    bytes := 0;
    more := false;
    PERFORM FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation ORDER BY b.branch FOR KEY SHARE;
    FOR v_gap IN
        SELECT u.branch, greatest(u.start, CASE WHEN u.branch = p_branch THEN p_position + 1 ELSE 0 END) AS start, u.stop
        FROM {schema}.unheld(p_conversation) AS u
        WHERE u.branch > p_branch OR u.branch = p_branch AND u.stop > p_position + 1
    LOOP
        WITH gone AS (
            DELETE FROM {schema}.message AS m
            WHERE m.conversation_id = p_conversation AND m.branch = v_gap.branch AND m.position IN (
                SELECT o.position FROM {schema}.message AS o
                WHERE o.conversation_id = p_conversation AND o.branch = v_gap.branch
                    AND o.position >= v_gap.start AND o.position < v_gap.stop
                ORDER BY o.position LIMIT p_limit - messages)
            RETURNING m.position, m.size
        )
        SELECT count(*) AS rows, coalesce(sum(g.size), 0) AS bytes, max(g.position) AS position INTO v_gone FROM gone AS g;
        messages := messages + v_gone.rows;
        bytes := bytes + v_gone.bytes;
        IF messages >= p_limit THEN
            more := true;
            prune_messages_v1.branch := v_gap.branch;
            prune_messages_v1.position := v_gone.position;
            RETURN;
        END IF;
    END LOOP;
END $$;

-- Removes the old checkpoints of a conversation among those right below a place, at most p_limit of them, from its newest
-- on. p_keep: 'last-per-turn' or 'heads'. 'more': call it again with the place given back. 'messages': checkpoints are
-- done, and prune_messages_v1 has work left. 'done': all is. 'busy': somebody held a branch for a second, and nothing was
-- done. `held_back` counts checkpoints that only stay for a document's sake. What is younger than p_older_than is never
-- touched, and that is an hour at least: a write that may still be repeated finds what it was compared with.
CREATE OR REPLACE FUNCTION {schema}.prune_v1(
    p_conversation uuid, p_keep text, p_older_than interval, p_limit int,
    p_turn int DEFAULT 2147483647, p_sub_step int DEFAULT 0, p_branch int DEFAULT 0,
    OUT outcome text, OUT checkpoints bigint, OUT messages bigint, OUT documents bigint, OUT bytes bigint,
    OUT held_back bigint, OUT turn_index int, OUT sub_step int, OUT branch int
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_rows int;
    v_turns int[];
    v_sub_steps int[];
    v_branches int[];
    v_now int;  -- how many of these it is the turn of
    v_left record;
BEGIN
    IF p_keep IS NULL OR p_keep NOT IN ('last-per-turn', 'heads') OR p_limit IS NULL OR p_limit < 1
        OR p_older_than IS NULL OR p_older_than < interval '1 hour'
    THEN
        RAISE EXCEPTION 'p_keep is last-per-turn or heads, p_limit at least 1, p_older_than at least an hour'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM {schema}.must_see_others();
    checkpoints := 0;
    messages := 0;
    documents := 0;
    bytes := 0;
    held_back := 0;
    v_rows := {schema}.hold_branches(p_conversation);
    IF v_rows IS NULL THEN
        outcome := 'busy';
        RETURN;
    ELSIF v_rows = 0 THEN
        SELECT CASE count(*) WHEN 0 THEN 'not_found' ELSE 'archived' END INTO outcome
        FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation;
        RETURN;
    END IF;
    SELECT count(*) FILTER (WHERE j.ord <= p_limit), count(*) FILTER (WHERE j.ord <= p_limit AND j.wanted AND NOT j.kept),
        coalesce(array_agg(j.turn_index ORDER BY j.ord) FILTER (WHERE j.doomed), '{{}}'),
        coalesce(array_agg(j.sub_step ORDER BY j.ord) FILTER (WHERE j.doomed), '{{}}'),
        coalesce(array_agg(j.branch ORDER BY j.ord) FILTER (WHERE j.doomed), '{{}}'),
        count(*) FILTER (WHERE j.ord <= p_limit AND j.doomed),
        coalesce(sum(j.bytes) FILTER (WHERE j.ord <= p_limit AND j.doomed), 0),
        max(j.turn_index) FILTER (WHERE j.ord = p_limit), max(j.sub_step) FILTER (WHERE j.ord = p_limit),
        max(j.branch) FILTER (WHERE j.ord = p_limit)
    INTO v_rows, held_back, v_turns, v_sub_steps, v_branches, v_now, prune_v1.bytes, prune_v1.turn_index,
        prune_v1.sub_step, prune_v1.branch
    FROM (
        SELECT g.*, NOT g.kept AND NOT g.wanted AS doomed,
            row_number() OVER (ORDER BY g.turn_index DESC, g.sub_step DESC, g.branch DESC) AS ord
        FROM {schema}.prune_judged(
            p_conversation, p_keep, {schema}.clock() - p_older_than, p_turn, p_sub_step, p_branch, p_limit) AS g
    ) AS j;
    IF p_keep = 'heads' AND v_now > 0 THEN
        documents := {schema}.prune_documents(p_conversation, v_turns, v_sub_steps, v_branches, v_now);
    END IF;
    DELETE FROM {schema}.checkpoint AS c
    USING unnest(v_turns[:v_now], v_sub_steps[:v_now], v_branches[:v_now]) AS d (t, s, b)
    WHERE c.conversation_id = p_conversation AND c.turn_index = d.t AND c.sub_step = d.s AND c.branch = d.b;
    GET DIAGNOSTICS checkpoints = ROW_COUNT;
    IF v_rows = p_limit THEN
        outcome := 'more';
        RETURN;
    END IF;
    SELECT m.* INTO v_left FROM {schema}.prune_messages_v1(p_conversation, p_limit) AS m;
    messages := v_left.messages;
    prune_v1.bytes := prune_v1.bytes + v_left.bytes;
    outcome := CASE WHEN v_left.more THEN 'messages' ELSE 'done' END;
END $$;

-- Removes the documents of turns whose end is among the first p_now of these places, where no checkpoint but these holds a
-- message that the turn has added.
CREATE OR REPLACE FUNCTION {schema}.prune_documents(
    p_conversation uuid, p_turns int[], p_sub_steps int[], p_branches int[], p_now int
) RETURNS bigint LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_turn int;
    v_rows bigint;
BEGIN
    -- Those that are looked at: most have no document, or keep it.
    SELECT min(c.turn_index) INTO v_turn
    FROM unnest(p_turns[:p_now], p_sub_steps[:p_now], p_branches[:p_now]) AS g (t, s, b)
    JOIN {schema}.checkpoint AS c ON c.conversation_id = p_conversation AND c.turn_index = g.t AND c.sub_step = g.s
        AND c.branch = g.b AND c.phase = 'final'
    JOIN {schema}.document AS d ON d.conversation_id = p_conversation AND d.branch = g.b AND d.turn_index = g.t;
    IF v_turn IS NULL THEN
        RETURN 0;
    END IF;
    WITH held AS MATERIALIZED (  -- a message of a turn is in no list of an earlier one
        SELECT s.branch, range_agg(int4range(s.start, s.stop)) AS positions
        FROM {schema}.checkpoint AS c
        CROSS JOIN LATERAL {schema}.spans_of(c.spans) AS s
        WHERE c.conversation_id = p_conversation AND c.turn_index >= v_turn
            AND (c.turn_index, c.sub_step, c.branch) NOT IN (
                SELECT g.t, g.s, g.b FROM unnest(p_turns, p_sub_steps, p_branches) AS g (t, s, b))
        GROUP BY s.branch
    ), added AS (
        SELECT c.turn_index, c.branch, coalesce((
                SELECT range_agg(int4range(s.start, s.stop)) FROM {schema}.spans_of(c.spans) AS s
                WHERE s.branch = c.branch), '{{}}') - coalesce((
                SELECT range_agg(int4range(s.start, s.stop))
                FROM (
                    SELECT p.spans FROM {schema}.checkpoint AS p
                    WHERE p.conversation_id = p_conversation AND p.turn_index = c.turn_index - 1 AND p.branch = c.branch
                    ORDER BY p.sub_step DESC LIMIT 1
                ) AS p
                CROSS JOIN LATERAL {schema}.spans_of(p.spans) AS s
                WHERE s.branch = c.branch), '{{}}') AS positions
        FROM unnest(p_turns[:p_now], p_sub_steps[:p_now], p_branches[:p_now]) AS g (t, s, b)
        JOIN {schema}.checkpoint AS c ON c.conversation_id = p_conversation AND c.turn_index = g.t AND c.sub_step = g.s
            AND c.branch = g.b AND c.phase = 'final'
    )
    DELETE FROM {schema}.document AS d
    USING added AS a
    LEFT JOIN held AS h ON h.branch = a.branch
    WHERE d.conversation_id = p_conversation AND d.branch = a.branch AND d.turn_index = a.turn_index
        AND NOT coalesce(a.positions && h.positions, false);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END $$;

-- What prune_v1 would remove among the checkpoints right below a place, looked at without a lock, and in `held` the
-- (branch, start, stop) triples of messages that those of them hold that would stay.
CREATE OR REPLACE FUNCTION {schema}.prune_look_v1(
    p_conversation uuid, p_keep text, p_older_than interval, p_limit int,
    p_turn int DEFAULT 2147483647, p_sub_step int DEFAULT 0, p_branch int DEFAULT 0,
    OUT outcome text, OUT checkpoints bigint, OUT bytes bigint, OUT held_back bigint, OUT held int[],
    OUT turn_index int, OUT sub_step int, OUT branch int
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_rows int;
    v_turns int[];
    v_sub_steps int[];
    v_branches int[];
BEGIN
    IF p_keep IS NULL OR p_keep NOT IN ('last-per-turn', 'heads') OR p_limit IS NULL OR p_limit < 1
        OR p_older_than IS NULL OR p_older_than < interval '1 hour'
    THEN
        RAISE EXCEPTION 'p_keep is last-per-turn or heads, p_limit at least 1, p_older_than at least an hour'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT CASE WHEN v.archived_at IS NULL THEN 'done' ELSE 'archived' END INTO outcome
    FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation;
    outcome := coalesce(outcome, 'not_found');
    SELECT count(*), count(*) FILTER (WHERE j.doomed), coalesce(sum(j.bytes) FILTER (WHERE j.doomed), 0),
        count(*) FILTER (WHERE j.wanted AND NOT j.kept),
        coalesce(array_agg(j.turn_index) FILTER (WHERE NOT j.doomed), '{{}}'),
        coalesce(array_agg(j.sub_step) FILTER (WHERE NOT j.doomed), '{{}}'),
        coalesce(array_agg(j.branch) FILTER (WHERE NOT j.doomed), '{{}}'),
        max(j.turn_index) FILTER (WHERE j.ord = p_limit), max(j.sub_step) FILTER (WHERE j.ord = p_limit),
        max(j.branch) FILTER (WHERE j.ord = p_limit)
    INTO v_rows, checkpoints, prune_look_v1.bytes, held_back, v_turns, v_sub_steps, v_branches, prune_look_v1.turn_index,
        prune_look_v1.sub_step, prune_look_v1.branch
    FROM (
        SELECT g.*, NOT g.kept AND NOT g.wanted AS doomed,
            row_number() OVER (ORDER BY g.turn_index DESC, g.sub_step DESC, g.branch DESC) AS ord
        FROM {schema}.prune_judged(
            p_conversation, p_keep, {schema}.clock() - p_older_than, p_turn, p_sub_step, p_branch, p_limit) AS g
    ) AS j
    WHERE j.ord <= p_limit;
    IF v_rows = p_limit THEN
        outcome := 'more';
    END IF;
    SELECT coalesce(array_agg(n ORDER BY r.branch, r.ord, k), '{{}}') INTO held
    FROM (
        SELECT h.branch, g.ord, lower(g.positions) AS start, upper(g.positions) AS stop
        FROM (
            SELECT s.branch, range_agg(int4range(s.start, s.stop)) AS positions
            FROM unnest(v_turns, v_sub_steps, v_branches) AS d (t, s, b)
            JOIN {schema}.checkpoint AS c ON c.conversation_id = p_conversation AND c.turn_index = d.t AND c.sub_step = d.s
                AND c.branch = d.b
            CROSS JOIN LATERAL {schema}.spans_of(c.spans) AS s
            GROUP BY s.branch
        ) AS h
        CROSS JOIN LATERAL unnest(h.positions) WITH ORDINALITY AS g (positions, ord)
    ) AS r
    CROSS JOIN LATERAL unnest(ARRAY[r.branch, r.start, r.stop]) WITH ORDINALITY AS one (n, k);
END $$;
