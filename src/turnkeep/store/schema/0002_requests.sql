-- Requests that wait for a turn, oldest first. Functions whose parameters have changed are made anew.

CREATE INDEX request_waiting ON {schema}.request (conversation_id, branch, number) WHERE taken_turn IS NULL;

DROP FUNCTION IF EXISTS {schema}.save_v1;
DROP FUNCTION IF EXISTS {schema}.claim_v1;
DROP FUNCTION IF EXISTS {schema}.release_v1;
