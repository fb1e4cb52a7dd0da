-- How long conversations are kept after their newest write: each one's own time, else its agent's.

ALTER TABLE {schema}.conversation ADD COLUMN ttl interval, ADD COLUMN kept_since timestamptz;
CREATE INDEX IF NOT EXISTS conversation_ttl ON {schema}.conversation (conversation_id) WHERE ttl IS NOT NULL;

CREATE TABLE {schema}.retention (
    agent_id text PRIMARY KEY,
    ttl interval NOT NULL
);

-- Rows of these are only inserted, until many go at once: pruned, archived, erased. Their room is found again before it
-- is a twentieth of the table, rather than a fifth, also where long values are kept.
ALTER TABLE {schema}.message SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
    toast.autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE {schema}.checkpoint SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
    toast.autovacuum_vacuum_scale_factor = 0.05);
-- Each request is updated once, and not in place: an index tells which ones wait.
ALTER TABLE {schema}.request SET (autovacuum_vacuum_scale_factor = 0.05);

-- Made anew with another parameter at the end.
DROP FUNCTION IF EXISTS {schema}.create_v2;
DROP FUNCTION IF EXISTS {schema}.update_v1;

-- What the planner keeps of a column's values would outlive a conversation that is erased. It plans without: worst for a
-- word that most of very many documents have, all of which are read then.
ALTER TABLE {schema}.conversation
    ALTER COLUMN external_id SET STATISTICS 0, ALTER COLUMN title SET STATISTICS 0,
    ALTER COLUMN tags SET STATISTICS 0, ALTER COLUMN metadata SET STATISTICS 0;
ALTER TABLE {schema}.branch ALTER COLUMN name SET STATISTICS 0, ALTER COLUMN lease_owner SET STATISTICS 0;
ALTER TABLE {schema}.request ALTER COLUMN key SET STATISTICS 0, ALTER COLUMN digest SET STATISTICS 0;
ALTER TABLE {schema}.document
    ALTER COLUMN text SET STATISTICS 0, ALTER COLUMN tsv SET STATISTICS 0, ALTER COLUMN error SET STATISTICS 0;
ALTER TABLE {schema}.archive ALTER COLUMN payload SET STATISTICS 0, ALTER COLUMN digest SET STATISTICS 0;
DO $$ BEGIN
    ALTER TABLE {schema}.document ALTER COLUMN embedding SET STATISTICS 0;
EXCEPTION WHEN undefined_column THEN  -- it comes with the first functions, and with the same
END $$;
-- What it has kept of them so far goes with a change of type, to the same one.
DO $$
BEGIN
    ALTER TABLE {schema}.conversation
        ALTER COLUMN external_id TYPE text, ALTER COLUMN title TYPE text, ALTER COLUMN tags TYPE text[],
        ALTER COLUMN metadata TYPE jsonb;
    ALTER TABLE {schema}.request ALTER COLUMN key TYPE text, ALTER COLUMN digest TYPE bytea;
    ALTER TABLE {schema}.branch ALTER COLUMN name TYPE text;
EXCEPTION WHEN feature_not_supported THEN
    RAISE NOTICE 'a view of somebody else''s reads these columns: what the planner has kept of their values stays';
END $$;
