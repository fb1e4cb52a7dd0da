-- What people say of a conversation, where copied checkpoints come from, and what is stopped. Functions whose
-- parameters have changed are made anew.

ALTER TABLE {schema}.conversation
    ADD COLUMN tenant text,
    ADD COLUMN title text,
    ADD COLUMN tags text[] NOT NULL DEFAULT '{{}}',
    ADD COLUMN version int NOT NULL DEFAULT 0,  -- counts the updates of title, tags and metadata
    ADD COLUMN update_ids uuid[] NOT NULL DEFAULT '{{}}';  -- the newest ones: a retry of them changes nothing
CREATE INDEX conversation_tenant ON {schema}.conversation (tenant) WHERE tenant IS NOT NULL;
CREATE INDEX conversation_parent ON {schema}.conversation (parent_conversation_id)
    WHERE parent_conversation_id IS NOT NULL;
CREATE INDEX conversation_tags ON {schema}.conversation USING gin (tags);
CREATE INDEX conversation_metadata ON {schema}.conversation USING gin (metadata jsonb_path_ops);

-- The conversation and branch that a checkpoint was written in, where it has been copied from another conversation.
ALTER TABLE {schema}.checkpoint ADD COLUMN origin_conversation uuid, ADD COLUMN origin_branch int;

CREATE INDEX branch_stopped ON {schema}.branch (conversation_id) WHERE status IN ('waiting', 'failed');

DROP FUNCTION IF EXISTS {schema}.save_v1;
DROP FUNCTION IF EXISTS {schema}.save_refusal;
DROP FUNCTION IF EXISTS {schema}.earlier_outcome;
DROP FUNCTION IF EXISTS {schema}.shown_list;
