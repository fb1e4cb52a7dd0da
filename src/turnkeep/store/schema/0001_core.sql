-- Conversations as append-only logs of messages; checkpoints as piece tables over them.
-- Every key begins with conversation_id, so that the tables distribute as they stand.

CREATE TABLE {schema}.conversation (
    conversation_id uuid PRIMARY KEY,
    external_id text NOT NULL,
    agent_id text,
    metadata jsonb NOT NULL DEFAULT '{{}}',
    parent_conversation_id uuid,
    current_branch int NOT NULL DEFAULT 0,
    next_branch int NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    archived_at timestamptz
);
CREATE INDEX conversation_agent ON {schema}.conversation (agent_id);

-- The head of each line of turns. A save changes this row and no index of it: fillfactor leaves
-- room for HOT updates, and neither lease_until nor updated_at stands in an index or a predicate.
CREATE TABLE {schema}.branch (
    conversation_id uuid NOT NULL,
    branch int NOT NULL,
    name text,
    status text NOT NULL DEFAULT 'idle',  -- idle open ready running waiting ended failed; a CHECK costs every save
    turn_index int NOT NULL DEFAULT -1,
    sub_step int NOT NULL DEFAULT 0,
    next_position int NOT NULL DEFAULT 0,
    lineage int[] NOT NULL DEFAULT '{{}}',
    fork_id uuid,
    ready_at timestamptz,
    turn_started_at timestamptz NOT NULL,
    not_before timestamptz,
    attempts int NOT NULL DEFAULT 0,
    failure json,
    lease_owner text,
    lease_token bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (conversation_id, branch)
) WITH (fillfactor = 50);
CREATE INDEX branch_ready ON {schema}.branch (ready_at) WHERE status = 'ready';
CREATE INDEX branch_running ON {schema}.branch (conversation_id) WHERE status = 'running';
CREATE INDEX branch_open ON {schema}.branch (conversation_id) WHERE status = 'open';
CREATE INDEX branch_newest ON {schema}.branch (turn_started_at DESC, conversation_id DESC);

-- Three rows of up to 2,700 bytes fill a page: they stay in it as they are. Longer ones are compressed, and moved out
-- if that does not help.
CREATE TABLE {schema}.message (
    conversation_id uuid NOT NULL,
    branch int NOT NULL,
    position int NOT NULL,
    body json NOT NULL,
    size int NOT NULL,
    PRIMARY KEY (conversation_id, branch, position)
) WITH (toast_tuple_target = 2700);

-- spans: (branch, start, stop) triples, half-open. answers: for each element of tool_results the call
-- it settles, as (turn_index, sub_step, index in tool_calls) triples.
CREATE TABLE {schema}.checkpoint (
    conversation_id uuid NOT NULL,
    turn_index int NOT NULL,
    sub_step int NOT NULL,
    branch int NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    parent_turn_index int,
    parent_sub_step int,
    parent_branch int,
    phase text NOT NULL,
    agent_id text,
    created_at timestamptz NOT NULL,
    write_id uuid NOT NULL,
    spans int[] NOT NULL,
    tool_calls json,
    tool_results json,
    answers int[],
    state json,
    PRIMARY KEY (conversation_id, turn_index, sub_step, branch)
);
CREATE INDEX checkpoint_agent ON {schema}.checkpoint (agent_id);

-- A user message accepted under an idempotency key. body is null where the turn it opened holds it.
CREATE TABLE {schema}.request (
    conversation_id uuid NOT NULL REFERENCES {schema}.conversation ON DELETE CASCADE,
    key text NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    branch int NOT NULL,
    body json,
    digest bytea NOT NULL,
    received_at timestamptz NOT NULL,
    taken_turn int,
    PRIMARY KEY (conversation_id, key)
);

-- The text of a turn as search sees it. A turn's end only leaves a row to be filled.
CREATE TABLE {schema}.document (
    conversation_id uuid NOT NULL REFERENCES {schema}.conversation ON DELETE CASCADE,
    branch int NOT NULL,
    turn_index int NOT NULL,
    chunk int NOT NULL DEFAULT 0,
    text text,
    tsv tsvector,
    model text,
    next_try_at timestamptz NOT NULL,
    tries int NOT NULL DEFAULT 0,
    error text,
    PRIMARY KEY (conversation_id, branch, turn_index, chunk)
);
