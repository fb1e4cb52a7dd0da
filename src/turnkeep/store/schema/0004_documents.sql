-- Documents as work: what is due is taken up, oldest first; what has failed for good says why. First a turn's text is
-- filled, then its chunks are given their embeddings.

ALTER TABLE {schema}.document
    ALTER COLUMN next_try_at DROP NOT NULL,  -- null: nothing is left to be done
    ADD COLUMN created_at timestamptz,  -- when the turn ended; known with the text
    ADD COLUMN claim uuid,  -- of the worker that is at it: what is written back without it is stale
    ADD COLUMN left_out bigint;  -- how much of a turn that is too long comes after its last chunk

-- Of a row at most one of the first two changes.
CREATE INDEX IF NOT EXISTS document_to_fill ON {schema}.document (next_try_at) WHERE text IS NULL;
CREATE INDEX IF NOT EXISTS document_to_embed ON {schema}.document (next_try_at)
    WHERE text IS NOT NULL AND next_try_at IS NOT NULL;
-- The whole key of a turn, so that dead letters are found by it alone; tries tells the planner how few they are.
CREATE INDEX IF NOT EXISTS document_dead ON {schema}.document (conversation_id, branch, turn_index)
    WHERE next_try_at IS NULL AND error IS NOT NULL AND tries > 0;
CREATE INDEX IF NOT EXISTS document_words ON {schema}.document USING gin (tsv) WHERE tsv IS NOT NULL;
CREATE INDEX IF NOT EXISTS document_newest ON {schema}.document (created_at DESC) WHERE tsv IS NOT NULL;
CREATE INDEX IF NOT EXISTS document_model ON {schema}.document (model) WHERE text <> '' AND error IS NULL;

-- An embedding is of a model. Of those that plain SQL has brought nobody knows which.
DO $$ BEGIN
    UPDATE {schema}.document SET model = 'unknown' WHERE embedding IS NOT NULL AND model IS NULL;
EXCEPTION WHEN undefined_column THEN  -- the column comes with the first functions
END $$;

-- Functions whose parameters have changed are made anew.
DROP FUNCTION IF EXISTS {schema}.save_v1;
DROP FUNCTION IF EXISTS {schema}.save_turn_v1;
DROP FUNCTION IF EXISTS {schema}.take_v1;

-- Each document is written three times: a pointer, its text, its embedding. What that leaves behind is removed before it
-- is a twentieth of the table, rather than a fifth.
ALTER TABLE {schema}.document SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
    toast.autovacuum_vacuum_scale_factor = 0.05);
