-- How long conversations are kept after their newest write: each one's own time, else its agent's.

ALTER TABLE {schema}.conversation ADD COLUMN ttl interval;
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
