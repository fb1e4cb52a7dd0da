-- How long conversations are kept after their newest write: each one's own time, else its agent's.

ALTER TABLE {schema}.conversation ADD COLUMN ttl interval;
CREATE INDEX IF NOT EXISTS conversation_ttl ON {schema}.conversation (conversation_id) WHERE ttl IS NOT NULL;

CREATE TABLE {schema}.retention (
    agent_id text PRIMARY KEY,
    ttl interval NOT NULL
);
