-- Repeatable: run whenever its text changes. Who may run a branch, until when, and who goes on after that.

-- A lease for p_token on a branch where none is live. The same token again renews it. With p_waiting only where a
-- worker is waited for: the branch is ready by now, or its worker's lease has expired. A worker that dies without
-- progress counts as an attempt; after the fifth the branch is failed.
CREATE OR REPLACE FUNCTION {schema}.claim_v1(
    p_conversation uuid, p_branch int, p_owner text, p_token bigint, p_lease_seconds float8, p_waiting boolean,
    OUT outcome text, OUT lease_until timestamptz, OUT lease_owner text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
    v_attempts int;
BEGIN
    IF p_token = 0 OR p_lease_seconds IS NULL OR p_lease_seconds <= 0 THEN
        RAISE EXCEPTION 'a lease has a token that is not 0, and a length' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF p_waiting THEN  -- whoever holds the row is at work there: others wait as well
        PERFORM FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation AND b.branch = p_branch
        FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            outcome := 'not_waiting';
            RETURN;
        END IF;
    END IF;
    UPDATE {schema}.branch AS b SET status = 'running', ready_at = NULL, not_before = NULL,
        attempts = b.attempts + CASE WHEN p_waiting AND b.status = 'running' AND b.lease_token <> p_token THEN 1 ELSE 0 END,
        lease_owner = p_owner, lease_token = p_token,
        lease_until = v_now + pg_catalog.make_interval(secs => p_lease_seconds),
        updated_at = greatest(v_now, b.updated_at + interval '1 microsecond')
    WHERE b.conversation_id = p_conversation AND b.branch = p_branch AND b.status <> 'ended'
        AND (b.lease_until IS NULL OR b.lease_until <= v_now OR b.lease_token = p_token)
        AND (NOT p_waiting OR b.status = 'running' OR b.status = 'ready' AND b.ready_at <= v_now)
    RETURNING b.lease_until, b.lease_owner, b.attempts
    INTO claim_v1.lease_until, claim_v1.lease_owner, v_attempts;
    IF v_attempts >= 5 AND p_waiting THEN
        UPDATE {schema}.branch AS b SET status = 'failed', lease_owner = NULL, lease_token = 0, lease_until = NULL,
            failure = pg_catalog.json_build_object('type', 'worker_died', 'message', pg_catalog.format(
                'its worker has died %s times in a row without getting any further', v_attempts))
        WHERE b.conversation_id = p_conversation AND b.branch = p_branch;
        outcome := 'failed';
        RETURN;
    END IF;
    IF v_attempts IS NOT NULL THEN
        outcome := 'claimed';
        RETURN;
    END IF;
    SELECT b.lease_until, b.lease_owner,
        CASE WHEN b.lease_until > v_now THEN 'lease_held' WHEN b.status = 'ended' THEN 'ended' ELSE 'not_waiting' END
    INTO claim_v1.lease_until, claim_v1.lease_owner, outcome
    FROM {schema}.branch AS b WHERE b.conversation_id = p_conversation AND b.branch = p_branch;
    IF outcome = 'ended' THEN
        RAISE EXCEPTION 'conversation % has ended', p_conversation USING ERRCODE = 'TK003';
    END IF;
    IF outcome IS NULL THEN
        PERFORM {schema}.refuse_archived(p_conversation);
        outcome := 'not_found';
    END IF;
END $$;

-- The lease's new end, or null if the token no longer holds. It holds, though expired, until somebody claims the branch or
-- writes to it: nothing has happened there that its holder does not know.
CREATE OR REPLACE FUNCTION {schema}.renew_v1(
    p_conversation uuid, p_branch int, p_token bigint, p_lease_seconds float8
) RETURNS timestamptz LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
    v_until timestamptz;
BEGIN
    UPDATE {schema}.branch AS b
    SET lease_until = v_now + pg_catalog.make_interval(secs => p_lease_seconds),
        updated_at = greatest(v_now, b.updated_at + interval '1 microsecond')
    WHERE b.conversation_id = p_conversation AND b.branch = p_branch
        AND b.lease_token = p_token AND p_token <> 0
    RETURNING b.lease_until INTO v_until;
    RETURN v_until;
END $$;

-- Hands a lease back. A branch with work left becomes 'ready' for the next runner, in p_delay seconds; or it is stopped
-- for p_failure, as p_stopped says: 'failed' or 'waiting' for a person. False if the token no longer holds.
CREATE OR REPLACE FUNCTION {schema}.release_v1(
    p_conversation uuid, p_branch int, p_token bigint, p_delay float8, p_stopped text, p_failure json
) RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
    v_branch {schema}.branch;
    v_work boolean;
BEGIN
    SELECT b.* INTO v_branch FROM {schema}.branch AS b
    WHERE b.conversation_id = p_conversation AND b.branch = p_branch AND b.lease_token = p_token
        AND b.lease_until > v_now FOR UPDATE;
    IF NOT FOUND OR p_token = 0 THEN
        RETURN false;
    END IF;
    v_work := {schema}.request_waits(p_conversation, p_branch)
        OR {schema}.turn_is_open(p_conversation, p_branch, v_branch.lineage, v_branch.turn_index, v_branch.sub_step);
    UPDATE {schema}.branch AS b SET lease_owner = NULL, lease_token = 0, lease_until = NULL, attempts = 0,
        updated_at = greatest(v_now, b.updated_at + interval '1 microsecond'),
        failure = p_failure,
        status = coalesce(p_stopped, CASE WHEN v_work THEN 'ready' ELSE 'idle' END),
        ready_at = CASE WHEN v_work AND p_stopped IS NULL THEN v_now + pg_catalog.make_interval(secs => p_delay) END,
        not_before = CASE
            WHEN v_work AND p_stopped IS NULL AND p_delay > 0 THEN v_now + pg_catalog.make_interval(secs => p_delay)
        END
    WHERE b.conversation_id = p_conversation AND b.branch = p_branch;
    RETURN true;
END $$;

-- Gives a branch that is stopped to the workers: 'ready' where it has work left, else 'idle'.
CREATE OR REPLACE FUNCTION {schema}.resume_v1(
    p_conversation uuid, p_branch int, OUT outcome text, OUT branch int, OUT lease_owner text, OUT lease_until timestamptz
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
    v_branch {schema}.branch;
BEGIN
    SELECT b.* INTO v_branch FROM {schema}.branch AS b
    WHERE b.conversation_id = p_conversation AND b.branch = coalesce(p_branch, (
        SELECT v.current_branch FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation))
    FOR UPDATE;
    branch := v_branch.branch;
    lease_owner := v_branch.lease_owner;
    lease_until := v_branch.lease_until;
    outcome := CASE
        WHEN branch IS NULL THEN 'not_found'
        WHEN lease_until > v_now THEN 'lease_held'
        WHEN v_branch.status = 'ended' THEN 'ended'
        WHEN {schema}.request_waits(p_conversation, branch)
            OR {schema}.turn_is_open(p_conversation, branch, v_branch.lineage, v_branch.turn_index, v_branch.sub_step)
            THEN 'ready'
        ELSE 'idle'
    END;
    IF outcome = 'not_found' THEN
        PERFORM {schema}.refuse_archived(p_conversation);
    ELSIF outcome = 'ended' THEN
        RAISE EXCEPTION 'conversation % has ended', p_conversation USING ERRCODE = 'TK003';
    ELSIF outcome IN ('ready', 'idle') THEN
        UPDATE {schema}.branch AS b SET status = outcome, ready_at = CASE outcome WHEN 'ready' THEN v_now END,
            not_before = NULL, attempts = 0, failure = NULL, lease_owner = NULL, lease_token = 0, lease_until = NULL,
            updated_at = greatest(v_now, b.updated_at + interval '1 microsecond')
        WHERE b.conversation_id = p_conversation AND b.branch = v_branch.branch;
    END IF;
END $$;
