-- Repeatable: run whenever its text changes. Conversations put into the archive, and taken out of it.

-- Tells whoever looks for rows of an archived conversation where they are.
CREATE OR REPLACE FUNCTION {schema}.refuse_archived(p_conversation uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM {schema}.conversation AS v
    WHERE v.conversation_id = p_conversation AND v.archived_at IS NOT NULL;
    IF FOUND THEN
        RAISE EXCEPTION 'conversation % is archived', p_conversation
            USING ERRCODE = 'TK005', HINT = 'turnkeep unarchive puts it back.';
    END IF;
END $$;

-- Locks all branches of a conversation, so that nobody writes, forks, copies, archives or erases meanwhile, and counts them.
CREATE OR REPLACE FUNCTION {schema}.lock_branches(p_conversation uuid) RETURNS int
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_locked int := -1;
    v_rows int;
BEGIN
    LOOP  -- until no fork can have added one
        PERFORM FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation ORDER BY b.branch FOR UPDATE;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        EXIT WHEN v_rows = v_locked;
        v_locked := v_rows;
    END LOOP;
    RETURN v_locked;
END $$;

-- Locks all branches of a conversation, so that nobody writes to it, and says whether it may be archived: 'locked', or
-- what stands in the way. One that has ended may be, whatever was open then: reopened, it goes on with that. 'not_due' is one
-- that has not been ended, or at rest, for so many seconds.
CREATE OR REPLACE FUNCTION {schema}.archive_lock_v1(
    p_conversation uuid, p_ended_seconds float8 DEFAULT NULL, p_idle_seconds float8 DEFAULT NULL,
    OUT outcome text, OUT branch int, OUT lease_owner text, OUT lease_until timestamptz, OUT waiting bigint
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
    v_locked int;
BEGIN
    PERFORM {schema}.must_see_others();
    v_locked := {schema}.lock_branches(p_conversation);
    SELECT CASE
            WHEN v.archived_at IS NOT NULL THEN 'archived'
            WHEN p_ended_seconds IS NOT NULL AND coalesce(v.ended_at >= v_now - make_interval(secs => p_ended_seconds), true)
                THEN 'not_due'
            WHEN p_idle_seconds IS NOT NULL AND EXISTS (
                SELECT FROM {schema}.branch AS b
                WHERE b.conversation_id = p_conversation
                    AND (b.status NOT IN ('idle', 'ended')
                        OR b.updated_at >= v_now - make_interval(secs => p_idle_seconds)))
                THEN 'not_due'
            ELSE 'locked'
        END INTO outcome
    FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation;
    IF outcome IS NULL OR v_locked = 0 THEN
        outcome := CASE WHEN outcome = 'archived' THEN outcome ELSE 'not_found' END;
        RETURN;
    END IF;
    IF outcome = 'not_due' THEN
        RETURN;
    END IF;
    SELECT b.branch, b.lease_owner, b.lease_until, w.waiting, CASE
            WHEN b.lease_until > v_now THEN 'lease_held'
            WHEN w.waiting > 0 THEN 'request_waits'
            ELSE 'turn_open'
        END
    INTO archive_lock_v1.branch, archive_lock_v1.lease_owner, archive_lock_v1.lease_until, archive_lock_v1.waiting,
        archive_lock_v1.outcome
    FROM {schema}.branch AS b
    CROSS JOIN LATERAL (
        SELECT count(*) AS waiting FROM {schema}.request AS r
        WHERE r.conversation_id = b.conversation_id AND r.branch = b.branch AND r.taken_turn IS NULL
    ) AS w
    WHERE b.conversation_id = p_conversation AND b.status <> 'ended'
        AND (b.status <> 'idle' OR b.lease_until > v_now OR w.waiting > 0)
    ORDER BY b.lease_until > v_now DESC NULLS LAST, b.branch LIMIT 1;
    outcome := coalesce(outcome, 'locked');
END $$;

-- Puts a payload in the place of the rows that it was made of. The branches are locked: see archive_lock_v1. Rows that the
-- payload does not count are an error, and nothing is changed.
CREATE OR REPLACE FUNCTION {schema}.archive_move_v1(
    p_conversation uuid, p_format int, p_digest bytea, p_payload bytea, p_raw_bytes bigint, p_branches bigint,
    p_checkpoints bigint, p_messages bigint, p_requests bigint, p_archived_at timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := coalesce(p_archived_at, {schema}.clock());
    v_removed bigint[];
    v_rows bigint;
BEGIN
    INSERT INTO {schema}.archive (conversation_id, format, digest, payload, raw_bytes, branches, checkpoints, messages,
                                  requests, archived_at)
    VALUES (p_conversation, p_format, p_digest, p_payload, p_raw_bytes, p_branches, p_checkpoints, p_messages, p_requests,
            v_now);
    DELETE FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_removed := v_removed || v_rows;
    DELETE FROM {schema}.checkpoint AS c WHERE c.conversation_id = p_conversation;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_removed := v_removed || v_rows;
    DELETE FROM {schema}.message AS m WHERE m.conversation_id = p_conversation;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_removed := v_removed || v_rows;
    DELETE FROM {schema}.request AS r WHERE r.conversation_id = p_conversation;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_removed := v_removed || v_rows;
    IF v_removed <> ARRAY[p_branches, p_checkpoints, p_messages, p_requests] THEN
        RAISE EXCEPTION 'conversation %: % rows were read, % are there', p_conversation,
            ARRAY[p_branches, p_checkpoints, p_messages, p_requests], v_removed USING ERRCODE = 'data_corrupted';
    END IF;
    -- What has no text yet can't be filled until it is back. An error would say that it has been given up.
    UPDATE {schema}.document AS d SET next_try_at = NULL, claim = NULL, error = NULL
    WHERE d.conversation_id = p_conversation AND d.text IS NULL AND d.next_try_at IS NOT NULL;
    UPDATE {schema}.conversation AS v SET archived_at = v_now WHERE v.conversation_id = p_conversation;
END $$;

-- Ends what has put the rows of an archived conversation back: they are in the tables only.
CREATE OR REPLACE FUNCTION {schema}.unarchive_v1(p_conversation uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM {schema}.archive AS a WHERE a.conversation_id = p_conversation;
    UPDATE {schema}.document AS d SET next_try_at = {schema}.clock()
    WHERE d.conversation_id = p_conversation AND d.text IS NULL AND d.next_try_at IS NULL AND d.error IS NULL;
    UPDATE {schema}.conversation AS v SET archived_at = NULL, kept_since = {schema}.clock()
    WHERE v.conversation_id = p_conversation;
END $$;
