-- Repeatable: run whenever its text changes. What a plain INSERT into agent_checkpoints brings, checked and compared with what
-- is stored.

-- A value as it is stored. Refuses what no other writer may store either.
CREATE OR REPLACE FUNCTION {schema}.insert_value(p_value jsonb, p_name text) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF octet_length(p_value::text) > 67108864 THEN
        RAISE EXCEPTION '%: % bytes of JSON; at most 67108864 are stored', p_name, octet_length(p_value::text)
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Store it elsewhere, and a reference to it here.';
    END IF;
    IF jsonb_path_exists(p_value, 'strict $.**{{500 to last}} ? (@.type() == "array" || @.type() == "object")') THEN
        RAISE EXCEPTION '%: more than 500 arrays and objects inside each other', p_name
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Store it as text.';
    END IF;
    RETURN p_value::text;
END $$;

-- Refuses to store what a view shows in the place of a value that it can't show.
CREATE OR REPLACE FUNCTION {schema}.insert_no_stand_in(p_value jsonb, p_name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(p_value) = 'object' AND p_value ? 'turnkeep_unrepresentable' THEN
        RAISE EXCEPTION '%: it stands for a value that can''t be shown (%)', p_name, p_value ->> 'turnkeep_unrepresentable'
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'NULL keeps the list or the state as it is; the exact texts are in all_messages and the tables.';
    END IF;
END $$;

-- A list as it is stored: null where there is nothing in it.
CREATE OR REPLACE FUNCTION {schema}.insert_list(p_values jsonb, p_name text) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(p_values) NOT IN ('array', 'null') THEN
        RAISE EXCEPTION '%: an array is needed, not %', p_name, jsonb_typeof(p_values)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Put a single one into an array; NULL stands for none.';
    ELSIF p_values IN ('[]', 'null') THEN
        RETURN NULL;
    END IF;
    PERFORM {schema}.insert_value(e.value, format('%s[%s]', p_name, e.ord - 1))
    FROM jsonb_array_elements(p_values) WITH ORDINALITY AS e (value, ord);
    RETURN p_values::text;
END $$;

-- Whether a value is what a stored one is shown as; or, where that is too large to show, what is stored.
CREATE OR REPLACE FUNCTION {schema}.is_shown(p_value jsonb, p_stored json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(p_value, 'null') = coalesce({schema}.shown(p_stored), 'null') OR p_value::text = p_stored::text;
END $$;

-- The messages that spans stand for, numbered from 1.
CREATE OR REPLACE FUNCTION {schema}.listed(p_conversation uuid, p_spans int[]) RETURNS TABLE (ord bigint, body json)
LANGUAGE sql STABLE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
    SELECT row_number() OVER (ORDER BY s.ord, m.position), m.body
    FROM {schema}.spans_of(p_spans) AS s
    JOIN {schema}.message AS m ON m.conversation_id = p_conversation AND m.branch = s.branch
        AND m.position >= s.start AND m.position < s.stop
$$;

-- The number of messages in a list of them.
CREATE OR REPLACE FUNCTION {schema}.insert_objects(p_messages jsonb) RETURNS int
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_wrong text;
BEGIN
    IF jsonb_typeof(p_messages) = 'array' THEN
        SELECT format('messages[%s] is of type %s', e.ord - 1, jsonb_typeof(e.value)) INTO v_wrong
        FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS e (value, ord)
        WHERE jsonb_typeof(e.value) <> 'object' ORDER BY e.ord LIMIT 1;
    ELSE
        v_wrong := format('messages is of type %s', jsonb_typeof(p_messages));
    END IF;
    IF v_wrong IS NOT NULL THEN
        RAISE EXCEPTION '%: it is the whole list of messages, an array of objects', v_wrong
            USING ERRCODE = 'invalid_parameter_value', HINT = 'NULL stands for the list as it is.';
    END IF;
    RETURN jsonb_array_length(p_messages);
END $$;

-- How the whole list of messages differs from the one that spans stand for, as a reader sees it: what both begin and end
-- with is kept, the rest is new. Nothing is new and parts is null where they are the same, or p_messages is null.
CREATE OR REPLACE FUNCTION {schema}.insert_messages(
    p_conversation uuid, p_spans int[], p_messages jsonb, OUT added json, OUT count int, OUT parts int[]
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_stored int := {schema}.length_of(p_spans);
    v_given int;
    v_front int;
    v_back int := 0;
BEGIN
    count := 0;
    IF p_messages IS NULL THEN
        RETURN;
    END IF;
    v_given := {schema}.insert_objects(p_messages);
    SELECT count(*) FILTER (WHERE p.same) INTO v_front FROM (
        SELECT bool_and({schema}.is_shown(g.value, s.body)) OVER (ORDER BY g.ord) AS same
        FROM {schema}.listed(p_conversation, p_spans) AS s
        JOIN jsonb_array_elements(p_messages) WITH ORDINALITY AS g (value, ord) ON g.ord = s.ord) AS p;
    IF v_front < v_stored THEN
        SELECT least(count(*) FILTER (WHERE p.same), v_stored - v_front, v_given - v_front) INTO v_back FROM (
            SELECT bool_and({schema}.is_shown(g.value, s.body)) OVER (ORDER BY g.ord DESC) AS same
            FROM {schema}.listed(p_conversation, p_spans) AS s
            JOIN jsonb_array_elements(p_messages) WITH ORDINALITY AS g (value, ord)
                ON g.ord - v_given = s.ord - v_stored) AS p;
        parts := CASE WHEN v_front > 0 THEN ARRAY[0, v_front] ELSE '{{}}' END
            || CASE WHEN v_given > v_front + v_back THEN ARRAY[-1, v_given - v_front - v_back] ELSE '{{}}' END
            || CASE WHEN v_back > 0 THEN ARRAY[v_stored - v_back, v_stored] ELSE '{{}}' END;
    END IF;
    count := v_given - v_front - v_back;
    SELECT '[' || string_agg({schema}.insert_value(g.value, format('messages[%s]', g.ord - 1))::text, ',' ORDER BY g.ord) || ']'
    INTO added
    FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS g (value, ord)
    WHERE g.ord > v_front AND g.ord <= v_given - v_back;
END $$;
