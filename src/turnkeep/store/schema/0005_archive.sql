-- Conversations put away: what was in branch, message, checkpoint and request, in one compressed row. The conversation
-- itself and its documents stay, so that it is listed and found.

CREATE TABLE {schema}.archive (
    conversation_id uuid PRIMARY KEY REFERENCES {schema}.conversation ON DELETE CASCADE,
    format int NOT NULL,
    digest bytea NOT NULL,
    payload bytea NOT NULL,
    raw_bytes bigint NOT NULL,
    branches bigint NOT NULL,
    checkpoints bigint NOT NULL,
    messages bigint NOT NULL,
    requests bigint NOT NULL,
    archived_at timestamptz NOT NULL
);
ALTER TABLE {schema}.archive ALTER COLUMN payload SET STORAGE EXTERNAL;  -- compressed as it is

CREATE INDEX IF NOT EXISTS conversation_ended ON {schema}.conversation (ended_at)
    WHERE ended_at IS NOT NULL AND archived_at IS NULL;
CREATE INDEX IF NOT EXISTS conversation_archived ON {schema}.conversation (archived_at DESC, conversation_id DESC)
    WHERE archived_at IS NOT NULL;
