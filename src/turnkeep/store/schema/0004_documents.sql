-- Documents as work: what is due is taken up, oldest first; what has failed for good says why.

ALTER TABLE {schema}.document
    ALTER COLUMN next_try_at DROP NOT NULL,  -- null: nothing is left to be done
    ADD COLUMN created_at timestamptz,  -- when the turn ended; known with the text
    ADD COLUMN claim uuid;  -- of the worker that is at it: what is written back without it is stale

CREATE INDEX IF NOT EXISTS document_due ON {schema}.document (next_try_at) WHERE next_try_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS document_dead ON {schema}.document (conversation_id)
    WHERE next_try_at IS NULL AND error IS NOT NULL;
CREATE INDEX IF NOT EXISTS document_words ON {schema}.document USING gin (tsv) WHERE tsv IS NOT NULL;
CREATE INDEX IF NOT EXISTS document_model ON {schema}.document (model) WHERE text IS NOT NULL;
