-- Repeatable: run whenever its text changes. What the others are built of: the clock, spans, values as they are shown.

-- The only clock. Test databases replace it.
CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS timestamptz
LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.clock_timestamp() $$;

-- The branch that holds the checkpoint at (turn, sub_step) in the history of a branch with this lineage.
CREATE OR REPLACE FUNCTION {schema}.owner_of(p_branch int, p_lineage int[], p_turn int, p_sub_step int)
RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    i int := 1;
BEGIN
    WHILE i < pg_catalog.cardinality(p_lineage) LOOP
        IF (p_turn, p_sub_step) <= (p_lineage[i + 1], p_lineage[i + 2]) THEN
            RETURN p_lineage[i];
        END IF;
        i := i + 3;
    END LOOP;
    RETURN p_branch;
END $$;

-- Spans as rows, in order.
CREATE OR REPLACE FUNCTION {schema}.spans_of(p_spans int[])
RETURNS TABLE (ord int, branch int, start int, stop int) LANGUAGE sql IMMUTABLE AS $$  -- no SET: it is inlined
    SELECT i / 3, p_spans[i], p_spans[i + 1], p_spans[i + 2]
    FROM pg_catalog.generate_series(1, pg_catalog.cardinality(p_spans), 3) AS i
$$;

-- The spans of parts of a list: p_parts are pairs (start, stop), half-open, of indices in the list that p_spans stand
-- for. The pair (-1, k) is the next k of p_count new messages, which begin at p_start of p_branch.
CREATE OR REPLACE FUNCTION {schema}.parts_of(
    p_spans int[], p_parts int[], p_branch int DEFAULT NULL, p_start int DEFAULT NULL, p_count int DEFAULT NULL
) RETURNS int[] LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_spans int[] := '{{}}';
    v_start int;
    v_stop int;
    v_index int;
    v_next int := p_start;
BEGIN
    FOR i IN 1..coalesce(pg_catalog.cardinality(p_parts), 0) BY 2 LOOP
        v_start := p_parts[i];
        v_stop := p_parts[i + 1];
        IF v_start = -1 AND v_stop > 0 AND v_next IS NOT NULL THEN
            v_spans := {schema}.with_span(v_spans, p_branch, v_next, v_next + v_stop);
            v_next := v_next + v_stop;
            CONTINUE;
        END IF;
        v_index := 0;
        FOR j IN 1..coalesce(pg_catalog.cardinality(p_spans), 0) BY 3 LOOP
            EXIT WHEN v_index >= v_stop;
            IF v_start < v_index + p_spans[j + 2] - p_spans[j + 1] THEN
                v_spans := {schema}.with_span(
                    v_spans, p_spans[j],
                    p_spans[j + 1] + greatest(v_start - v_index, 0),
                    least(p_spans[j + 2], p_spans[j + 1] + v_stop - v_index));
            END IF;
            v_index := v_index + p_spans[j + 2] - p_spans[j + 1];
        END LOOP;
        IF v_start < 0 OR v_start >= v_stop OR v_index < v_stop OR v_stop IS NULL THEN
            RAISE EXCEPTION 'part % of the list is (%, %), and the list before has % messages',
                i / 2, v_start, v_stop, v_index USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
    IF v_next <> p_start + p_count THEN
        RAISE EXCEPTION 'the list has a place for % of % new messages', v_next - p_start, p_count
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN v_spans;
END $$;

-- Spans and one more, which goes on with the last one where it can.
CREATE OR REPLACE FUNCTION {schema}.with_span(p_spans int[], p_branch int, p_start int, p_stop int) RETURNS int[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_last int := pg_catalog.cardinality(p_spans);
BEGIN
    IF p_spans[v_last - 2] = p_branch AND p_spans[v_last] = p_start THEN
        RETURN p_spans[:v_last - 1] || p_stop;
    END IF;
    RETURN p_spans || ARRAY[p_branch, p_start, p_stop];
END $$;

-- How many messages spans stand for.
CREATE OR REPLACE FUNCTION {schema}.length_of(p_spans int[]) RETURNS int
LANGUAGE sql IMMUTABLE AS $$  -- no SET: it is inlined
    SELECT coalesce(pg_catalog.sum(s.stop - s.start), 0)::int FROM {schema}.spans_of(p_spans) AS s
$$;

-- A json value for reading. What jsonb can't represent never makes a query fail: the exact text stays in its table.
-- Nor does it make a driver fail: jsonb spells 1e5000 out, and Python refuses integers of more than 4,300 digits.
CREATE OR REPLACE FUNCTION {schema}.shown(p_value json) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_value jsonb;
    v_long boolean;
BEGIN
    IF pg_catalog.octet_length(p_value::text) > 16777216 THEN
        RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable',
            pg_catalog.format('%s bytes of JSON: too large to show', pg_catalog.octet_length(p_value::text)));
    END IF;
    v_value := p_value::jsonb;
    -- jsonb spells exponents out: a short text can become one that no query can return, and a long one by many short ones.
    v_long := p_value::text ~ '[0-9][eE][+-]?[0-9]{{3}}|[0-9]{{255}}';
    IF (v_long OR pg_catalog.octet_length(p_value::text) > 1048576)
        AND pg_catalog.octet_length(v_value::text) > 33554432
    THEN
        RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable', 'numbers too long to spell out');
    END IF;
    IF v_long
        AND pg_catalog.jsonb_path_exists(v_value, '$.** ? (@.type() == "number" && (@ >= 1e4300 || @ <= -1e4300))')
    THEN
        RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable', 'a number of more than 4300 digits');
    END IF;
    RETURN v_value;
EXCEPTION WHEN OTHERS THEN
    RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable', SQLERRM);
END $$;

-- The messages that spans stand for, as one array.
CREATE OR REPLACE FUNCTION {schema}.messages_of(p_conversation uuid, p_spans int[]) RETURNS jsonb
LANGUAGE plpgsql STABLE STRICT SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_bytes bigint;
    v_text text;
BEGIN
    SELECT pg_catalog.sum(m.size) INTO v_bytes
    FROM {schema}.spans_of(p_spans) AS s
    JOIN {schema}.message AS m ON m.conversation_id = p_conversation AND m.branch = s.branch
        AND m.position >= s.start AND m.position < s.stop;
    IF v_bytes > 67108864 THEN
        RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable',
            pg_catalog.format('%s bytes of messages: too large to show', v_bytes));
    END IF;
    -- By way of text: jsonb_agg takes time by the square of an object's keys, and what is too long shows here.
    SELECT '[' || coalesce(pg_catalog.string_agg({schema}.shown(m.body)::text, ',' ORDER BY s.ord, m.position), '') || ']'
    INTO v_text
    FROM {schema}.spans_of(p_spans) AS s
    JOIN {schema}.message AS m ON m.conversation_id = p_conversation AND m.branch = s.branch
        AND m.position >= s.start AND m.position < s.stop;
    IF pg_catalog.octet_length(v_text) > 134217728 THEN
        RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable',
            pg_catalog.format('%s bytes of messages, spelled out: too large to show', pg_catalog.octet_length(v_text)));
    END IF;
    RETURN v_text::jsonb;
EXCEPTION WHEN program_limit_exceeded OR statement_too_complex THEN
    RETURN pg_catalog.jsonb_build_object('turnkeep_unrepresentable', SQLERRM);
END $$;
