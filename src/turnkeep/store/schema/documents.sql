-- Repeatable: run whenever its text changes. Documents: their words, and how what a worker has made of them is kept.
-- {vector} is the type of an embedding: pgvector's where it is installed, real[] elsewhere.

-- A text in which each character of a script that puts no spaces between words stands alone: Thai to Khmer, Chinese,
-- Japanese, Korean. What joins words to a path, an address, a name of a program's (/ \ . : @ - = ? & # % + ~) is "_":
-- Postgres would take such a thing for one word, and takes it for a phrase then, in a text and in a query.
CREATE OR REPLACE FUNCTION {schema}.spaced(p_text text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_text text := regexp_replace(p_text,
        '(?<=[^\s"/\\.:@=?&#%+~-])[/\\.:@=?&#%+~-]+(?=[^\s"/\\.:@=?&#%+~-])|[/\\]+', '_', 'g');
BEGIN
    IF v_text ~ '[\u0E00-\u0EFF\u1000-\u11FF\u1780-\u17FF\u2E80-\uA4CF\uA960-\uA97F\uAC00-\uD7FF\uF900-\uFAFF\uFF66-\uFFDC\U00020000-\U0003FFFF]' THEN
        v_text := regexp_replace(v_text,
            '([\u0E00-\u0EFF\u1000-\u11FF\u1780-\u17FF\u2E80-\uA4CF\uA960-\uA97F\uAC00-\uD7FF\uF900-\uFAFF\uFF66-\uFFDC\U00020000-\U0003FFFF])',
            ' \1 ', 'g');
    END IF;
    RETURN v_text;
END $$;

-- The words of a text as the index has them: as they stand, in whatever language, and their English stems besides.
CREATE OR REPLACE FUNCTION {schema}.words_of(p_text text) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_text text := {schema}.spaced(p_text);
BEGIN
    RETURN to_tsvector('pg_catalog.simple', v_text) || to_tsvector('pg_catalog.english', v_text);
END $$;

-- What a query asks of words_of, in the language of web searches: words, "phrases", or, -without. A run of characters of
-- a script without spaces is a phrase. Phrases and what is excluded are taken as they stand: stems know no stop words.
CREATE OR REPLACE FUNCTION {schema}.words_wanted(p_query text) RETURNS tsquery
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_query text := p_query;
BEGIN
    IF strpos(v_query, '"') = 0 THEN
        v_query := regexp_replace(v_query,
            '([\u0E00-\u0EFF\u1000-\u11FF\u1780-\u17FF\u2E80-\uA4CF\uA960-\uA97F\uAC00-\uD7FF\uF900-\uFAFF\uFF66-\uFFDC\U00020000-\U0003FFFF]+)',
            '"\1"', 'g');
    END IF;
    v_query := {schema}.spaced(v_query);
    IF p_query ~ '"|(^|\s)-\S' THEN
        RETURN websearch_to_tsquery('pg_catalog.simple', v_query);
    END IF;
    RETURN websearch_to_tsquery('pg_catalog.simple', v_query) || websearch_to_tsquery('pg_catalog.english', v_query);
END $$;

-- Keeps a turn's text, cut into chunks, if the claim still holds: 'filled', or 'lost'. The branch's row is held: while a
-- branch is deleted or a conversation erased or archived, nothing is added, and nothing of it stays behind.
CREATE OR REPLACE FUNCTION {schema}.fill_v1(
    p_conversation uuid, p_branch int, p_turn int, p_claim uuid, p_chunks text[], p_left_out bigint,
    p_created timestamptz, p_model text, OUT outcome text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := {schema}.clock();
BEGIN
    outcome := 'lost';
    PERFORM FROM {schema}.branch AS b
    WHERE b.conversation_id = p_conversation AND b.branch = p_branch FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM FROM {schema}.document AS d
    WHERE d.conversation_id = p_conversation AND d.branch = p_branch AND d.turn_index = p_turn AND d.chunk = 0
        AND d.claim = p_claim FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM FROM {schema}.document AS d
    WHERE d.conversation_id = p_conversation AND d.branch = p_branch AND d.turn_index = p_turn
        AND d.chunk >= greatest(1, cardinality(p_chunks));
    IF FOUND THEN  -- from an earlier text; who never has one needs no right to delete
        DELETE FROM {schema}.document AS d
        WHERE d.conversation_id = p_conversation AND d.branch = p_branch AND d.turn_index = p_turn
            AND d.chunk >= greatest(1, cardinality(p_chunks));
    END IF;
    INSERT INTO {schema}.document AS d (
        conversation_id, branch, turn_index, chunk, text, tsv, next_try_at, created_at, left_out)
    SELECT p_conversation, p_branch, p_turn, c.ord - 1, c.text, {schema}.words_of(c.text),
        CASE WHEN p_model IS NOT NULL AND c.text <> '' THEN v_now END, p_created,
        CASE WHEN c.ord = 1 THEN nullif(p_left_out, 0) END
    FROM unnest(CASE WHEN cardinality(p_chunks) = 0 THEN ARRAY[''] ELSE p_chunks END) WITH ORDINALITY AS c (text, ord)
    ON CONFLICT (conversation_id, branch, turn_index, chunk) DO UPDATE SET
        text = excluded.text, tsv = excluded.tsv, created_at = excluded.created_at, left_out = excluded.left_out,
        next_try_at = CASE WHEN d.model IS DISTINCT FROM p_model THEN excluded.next_try_at END,
        claim = NULL, tries = 0, error = NULL;
    outcome := 'filled';
END $$;

-- An embedding as long as the column is now, which its writer may not know: padded with zeros, or rid of its padding.
CREATE OR REPLACE FUNCTION {schema}.as_column(p_vector real[]) RETURNS real[]
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_length int := cardinality(p_vector);
    v_column int;
BEGIN
    SELECT nullif(a.atttypmod, -1) INTO v_column FROM pg_type AS t JOIN pg_attribute AS a ON a.attrelid = t.typrelid
    WHERE t.oid = pg_typeof(NULL::{schema}.document) AND a.attname = 'embedding' AND NOT a.attisdropped;
    IF v_column IS NULL OR v_column = v_length THEN
        RETURN p_vector;
    ELSIF v_length < v_column THEN
        RETURN p_vector || array_fill(0::real, ARRAY[v_column - v_length]);
    ELSIF 0 = ALL (p_vector[v_column + 1 :]) THEN
        RETURN p_vector[: v_column];
    END IF;
    SELECT max(i) INTO v_length FROM generate_subscripts(p_vector, 1) AS i WHERE p_vector[i] <> 0;
    RAISE EXCEPTION 'embedding: % dimensions, and the column of embeddings has %', v_length, v_column
        USING ERRCODE = 'TK006', HINT = format('turnkeep migrate --dimensions %s makes room.', v_length);
END $$;

-- Keeps embeddings where the claim still holds, and counts them. p_vectors has all their numbers, one vector after the
-- other.
CREATE OR REPLACE FUNCTION {schema}.embedded_v1(
    p_claim uuid, p_conversations uuid[], p_branches int[], p_turns int[], p_chunks int[], p_vectors real[], p_model text
) RETURNS int LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_length int := cardinality(p_vectors) / nullif(cardinality(p_chunks), 0);
    v_count int := 0;
BEGIN
    IF cardinality(p_chunks) > 0 AND coalesce(v_length, 0) = 0 THEN
        RAISE EXCEPTION 'there are no vectors for % chunks', cardinality(p_chunks)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR i IN 1..cardinality(p_chunks) LOOP
        UPDATE {schema}.document AS d SET
            embedding = {schema}.as_column(p_vectors[(i - 1) * v_length + 1 : i * v_length])::{vector}, model = p_model,
            next_try_at = NULL, claim = NULL, tries = 0, error = NULL
        WHERE d.conversation_id = p_conversations[i] AND d.branch = p_branches[i] AND d.turn_index = p_turns[i]
            AND d.chunk = p_chunks[i] AND d.claim = p_claim;
        v_count := v_count + FOUND::int;
    END LOOP;
    RETURN v_count;
END $$;
