-- Repeatable: run whenever its text changes. Conversations whose time is over.

-- How long a conversation is kept after its newest write: its own time, else its agent's; null: for ever.
CREATE OR REPLACE FUNCTION {schema}.ttl_of(p_ttl interval, p_agent text) RETURNS interval
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(p_ttl, (SELECT r.ttl FROM {schema}.retention AS r WHERE r.agent_id = p_agent));
END $$;

-- Whether a time to live is over since a write, whatever either is: what people set by SQL must not end a run for all.
CREATE OR REPLACE FUNCTION {schema}.is_over(p_newest timestamptz, p_ttl interval, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE
        WHEN p_ttl IS NULL OR NOT isfinite(p_newest) THEN false
        WHEN p_now - p_newest < p_ttl THEN false  -- a subtraction can't overflow
        WHEN p_ttl > '0' AND date_part('year', p_ttl) BETWEEN -1000 AND 1000
            AND date_part('day', p_ttl) BETWEEN -365000 AND 365000 THEN p_newest + p_ttl <= p_now  -- months of the calendar
        ELSE true
    END;
END $$;

-- A conversation and its children at any depth.
CREATE OR REPLACE FUNCTION {schema}.family_of(p_conversation uuid) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(
        WITH RECURSIVE family AS (
            SELECT v.conversation_id FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation
            UNION
            SELECT v.conversation_id FROM family AS f
            JOIN {schema}.conversation AS v ON v.parent_conversation_id = f.conversation_id
        )
        SELECT f.conversation_id FROM family AS f ORDER BY f.conversation_id);
END $$;

-- Locks a conversation with its children, so that nobody writes to them, adds to them or erases them: their ids, and null
-- where somebody held one for too long.
CREATE OR REPLACE FUNCTION {schema}.hold_family(p_conversation uuid) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET lock_timeout = '1s' SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_family uuid[] := {schema}.family_of(p_conversation);
    v_held uuid[];
    v_locked int := -1;
    v_rows int;
BEGIN
    LOOP  -- until neither a fork nor a new child can have added anything
        PERFORM FROM {schema}.branch AS b WHERE b.conversation_id = ANY (v_family)
        ORDER BY b.conversation_id, b.branch FOR UPDATE;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        PERFORM FROM {schema}.conversation AS v WHERE v.conversation_id = ANY (v_family)
        ORDER BY v.conversation_id FOR UPDATE;
        EXIT WHEN v_held = v_family AND v_rows = v_locked;
        v_held := v_family;
        v_locked := v_rows;
        v_family := {schema}.family_of(p_conversation);
    END LOOP;
    RETURN v_family;
EXCEPTION WHEN lock_not_available THEN
    RETURN NULL;
END $$;

-- Erases a conversation with its children if its time is over: 'expired', or 'alive', or 'busy' where somebody held a
-- branch for a second. The newest write to any of them counts; to be archived, unarchived or imported is one. While a lease is
-- live or a request waits, nothing expires. With p_look nothing is locked and nothing is erased.
CREATE OR REPLACE FUNCTION {schema}.expire_v1(
    p_conversation uuid, p_look boolean DEFAULT false, OUT outcome text,
    OUT conversations bigint, OUT branches bigint, OUT checkpoints bigint, OUT messages bigint, OUT requests bigint
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
    v_family uuid[];
    v_ttl interval;
    v_newest timestamptz;
    v_busy boolean;
BEGIN
    PERFORM {schema}.must_see_others();
    conversations := 0;
    branches := 0;
    checkpoints := 0;
    messages := 0;
    requests := 0;
    v_family := CASE WHEN p_look THEN {schema}.family_of(p_conversation) ELSE {schema}.hold_family(p_conversation) END;
    IF v_family IS NULL OR v_family = '{{}}' THEN
        outcome := CASE WHEN v_family IS NULL THEN 'busy' ELSE 'not_found' END;
        RETURN;
    END IF;
    SELECT {schema}.ttl_of(v.ttl, v.agent_id) INTO v_ttl
    FROM {schema}.conversation AS v WHERE v.conversation_id = p_conversation;
    SELECT max(greatest(v.created_at, v.archived_at, v.kept_since)) INTO v_newest
    FROM {schema}.conversation AS v WHERE v.conversation_id = ANY (v_family);
    SELECT greatest(v_newest, max(b.updated_at)), coalesce(bool_or(b.lease_until > v_now), false) INTO v_newest, v_busy
    FROM {schema}.branch AS b WHERE b.conversation_id = ANY (v_family);
    v_busy := v_busy OR EXISTS (
        SELECT FROM {schema}.request AS r WHERE r.conversation_id = ANY (v_family) AND r.taken_turn IS NULL);
    IF v_busy OR NOT {schema}.is_over(v_newest, v_ttl, v_now) THEN
        outcome := 'alive';
        RETURN;
    END IF;
    outcome := 'expired';
    IF p_look THEN
        conversations := cardinality(v_family);
        RETURN;
    END IF;
    SELECT e.conversations, e.branches, e.checkpoints, e.messages, e.requests
    INTO expire_v1.conversations, expire_v1.branches, expire_v1.checkpoints, expire_v1.messages, expire_v1.requests
    FROM {schema}.erase_v1(p_conversation) AS e;
END $$;

-- How long the conversations of an agent are kept after their newest write; null: for ever.
CREATE OR REPLACE FUNCTION {schema}.set_retention_v1(p_agent text, p_ttl interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_ttl IS NULL THEN
        DELETE FROM {schema}.retention AS r WHERE r.agent_id = p_agent;
    ELSE
        INSERT INTO {schema}.retention (agent_id, ttl) VALUES (p_agent, p_ttl)
        ON CONFLICT (agent_id) DO UPDATE SET ttl = excluded.ttl;
    END IF;
END $$;
