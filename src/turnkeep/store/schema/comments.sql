-- Repeatable: run whenever its text changes. What tables, views and their columns hold, for \d+ in psql, for other tools,
-- and for the reference page that is written from it. What functions do stands before each of them.
-- Only comments that are other ones are written: each would wait for whoever is vacuuming its table.

DO $$
DECLARE
    v_new record;
BEGIN
    FOR v_new IN
        SELECT n.nspname, k.relname, k.relkind, a.attname, c.words
        FROM (VALUES
        ('conversation', NULL, 'What all turns of a conversation have in common.'),
        ('conversation', 'conversation_id', 'The key of everything about it.'),
        ('conversation', 'external_id', 'The text it was first asked for by, verbatim.'),
        ('conversation', 'agent_id', 'The agent whose workers serve it.'),
        ('conversation', 'metadata', 'A JSON object of its users'' own; updates merge into it.'),
        ('conversation', 'parent_conversation_id',
         'The conversation that it is part of: one of an agent that uses another as a tool.'),
        ('conversation', 'current_branch', 'The branch that is meant where none is named.'),
        ('conversation', 'next_branch', 'The number of the next fork; a number is never used twice.'),
        ('conversation', 'created_at', 'When it was made.'),
        ('conversation', 'ended_at', 'When it was ended: it takes no more requests.'),
        ('conversation', 'archived_at', 'When it was archived.'),
        ('conversation', 'tenant', 'Whose it is, where text ids are a tenant''s own.'),
        ('conversation', 'title', 'A title for people.'),
        ('conversation', 'tags', 'Texts that lists can ask for.'),
        ('conversation', 'version', 'How often title, tags and metadata have been updated.'),
        ('conversation', 'update_ids', 'The ids of the newest updates: one of them again changes nothing more.'),
        ('conversation', 'ttl', 'How long it is kept after its newest write; null: as its agent''s are.'),
        ('conversation', 'kept_since', 'When it was imported or unarchived last: that counts as a write.'),

        ('branch', NULL,
         'A line of turns: its head, its lease, and what it waits for. The only row of a conversation that a save changes.'),
        ('branch', 'conversation_id', 'Whose branch it is.'),
        ('branch', 'branch', 'Its number: 0 is the first, each fork has the next one.'),
        ('branch', 'name', 'Its name within the conversation: main, or what it was forked under.'),
        ('branch', 'status',
         'idle; open: in a turn, without a lease; ready: waits for a worker; running: leased; waiting: for a person; ended; failed.'),
        ('branch', 'turn_index', 'The turn of the head, from 0; -1 before the first.'),
        ('branch', 'sub_step', 'The sub-step of the head within its turn, from 0.'),
        ('branch', 'next_position', 'The position of the next message in its log.'),
        ('branch', 'lineage',
         'Whose history it inherits: (branch, turn_index, sub_step) triples, each branch up to and with that checkpoint.'),
        ('branch', 'fork_id', 'The id that its fork was asked for under: the same one gives it again.'),
        ('branch', 'ready_at', 'From when on a worker may take it, where it is ready.'),
        ('branch', 'turn_started_at', 'When its newest turn began: lists go by it.'),
        ('branch', 'not_before', 'The same as ready_at where it was handed back for later, for people to read.'),
        ('branch', 'attempts', 'How many workers have died over it since it last made progress.'),
        ('branch', 'failure', 'Why it has failed or waits: an object with type and message.'),
        ('branch', 'lease_owner', 'Who runs it, for people to read.'),
        ('branch', 'lease_token', 'The fencing token of its lease, drawn at random for each claim; 0: none.'),
        ('branch', 'lease_until', 'When its lease expires unless it is renewed.'),
        ('branch', 'updated_at', 'When it was last written to; rises with every write.'),

        ('message', NULL, 'The messages, each once: an append-only log for every branch.'),
        ('message', 'conversation_id', 'Whose message it is.'),
        ('message', 'branch', 'The branch it was saved on. Branches forked later share it.'),
        ('message', 'position', 'Its place in that branch''s log, from 0.'),
        ('message', 'body', 'The exact text that was stored.'),
        ('message', 'size', 'Its bytes.'),

        ('checkpoint', NULL,
         'The sub-steps, each an immutable snapshot: what was saved with it, and which messages the conversation consisted of.'),
        ('checkpoint', 'conversation_id', 'Whose checkpoint it is.'),
        ('checkpoint', 'turn_index', 'Its turn, from 0 along the branch, inherited turns included.'),
        ('checkpoint', 'sub_step', 'Its place in the turn, from 0.'),
        ('checkpoint', 'branch', 'The branch it was saved on.'),
        ('checkpoint', 'id', 'A number for reference; the order is that of (turn_index, sub_step).'),
        ('checkpoint', 'parent_turn_index', 'The turn of the checkpoint it extends.'),
        ('checkpoint', 'parent_sub_step', 'The sub-step of the checkpoint it extends.'),
        ('checkpoint', 'parent_branch', 'The branch of the checkpoint it extends: another one right after a fork.'),
        ('checkpoint', 'phase',
         'input: begins a turn; tool_calls: has some; started: calls are about to run; tool_results: has some; step: none of these; final: ends the turn.'),
        ('checkpoint', 'agent_id', 'Who wrote it.'),
        ('checkpoint', 'created_at', 'When, by the database''s clock; rises along a branch.'),
        ('checkpoint', 'write_id', 'The id that its save carried: the same one again gives its first outcome.'),
        ('checkpoint', 'spans',
         'Which messages it holds: (branch, start, stop) triples over the logs, half-open, in order.'),
        ('checkpoint', 'tool_calls', 'The calls saved with it, an array.'),
        ('checkpoint', 'tool_results', 'The results saved with it, an array.'),
        ('checkpoint', 'answers',
         'The call that each result settles, or that has started: (turn_index, sub_step, index in tool_calls) triples.'),
        ('checkpoint', 'state', 'The state as it was then, whole.'),
        ('checkpoint', 'origin_conversation', 'The conversation it was written in, where it has been copied.'),
        ('checkpoint', 'origin_branch', 'The branch it was written on, where it has been copied.'),

        ('request', NULL, 'Messages accepted under a key: those that wait for a turn, and those that have begun one.'),
        ('request', 'conversation_id', 'Whose request it is.'),
        ('request', 'key', 'The idempotency key, unique in the conversation.'),
        ('request', 'number', 'The order of arrival.'),
        ('request', 'branch', 'The branch it is for.'),
        ('request', 'body', 'The message, or an array of them; null where only the turn it began holds it.'),
        ('request', 'digest', 'Tells whether the same key has come with the same body.'),
        ('request', 'received_at', 'When it was accepted.'),
        ('request', 'taken_turn', 'The turn it has begun; null while it waits.'),

        ('document', NULL,
         'The text of each turn that has ended, as a search will see it. A turn''s end only leaves a row to be filled.'),
        ('document', 'conversation_id', 'Whose text it is.'),
        ('document', 'branch', 'The branch of the turn.'),
        ('document', 'turn_index', 'The turn.'),
        ('document', 'chunk', 'A long text is several rows, from 0.'),
        ('document', 'text', 'The text.'),
        ('document', 'tsv', 'Its words.'),
        ('document', 'model', 'The model that made the embedding.'),
        ('document', 'next_try_at', 'When something is to be done about it: text to be filled, an embedding to be made. Null: nothing.'),
        ('document', 'tries', 'How often that has been tried in vain.'),
        ('document', 'error', 'Why the last try failed; a dead letter where next_try_at is null.'),
        ('document', 'created_at', 'When its turn ended; known with the text.'),
        ('document', 'claim', 'Whose work it is at the moment.'),
        ('document', 'left_out', 'How much of a turn comes after its last chunk, in characters; a message that was not looked at counts by its bytes.'),
        ('document', 'embedding', 'Its embedding: pgvector''s type where that is installed, else an array.'),

        ('archive', NULL, 'Conversations put away: branches, messages, checkpoints and requests of each, compressed.'),
        ('archive', 'conversation_id', 'Whose they are.'),
        ('archive', 'format', 'The number of the payload''s format.'),
        ('archive', 'digest', 'The SHA-256 of the payload.'),
        ('archive', 'payload', 'What was in the tables, compressed.'),
        ('archive', 'raw_bytes', 'What it takes before it is compressed.'),
        ('archive', 'branches', 'How many branches there are in it.'),
        ('archive', 'checkpoints', 'How many checkpoints.'),
        ('archive', 'messages', 'How many messages.'),
        ('archive', 'requests', 'How many requests.'),
        ('archive', 'archived_at', 'When.'),

        ('retention', NULL, 'How long the conversations of an agent are kept after their newest write.'),
        ('retention', 'agent_id', 'The agent.'),
        ('retention', 'ttl', 'How long; a conversation''s own ttl goes before it.'),

        ('migration', NULL, 'The changes that the schema has been through.'),
        ('migration', 'number', 'Its number; 0 stands for functions, views and comments together.'),
        ('migration', 'name', 'Its name; for 0 the release.'),
        ('migration', 'digest', 'What functions, views and comments were made from.'),
        ('migration', 'applied_at', 'When.'),

        ('agent_checkpoints', NULL,
         'Each sub-step of every conversation''s current branch, its inherited history included, as one row.'),
        ('agent_checkpoints', 'id', 'Of the checkpoint.'),
        ('agent_checkpoints', 'conversation_id', 'Of the conversation.'),
        ('agent_checkpoints', 'turn_index', 'The turn, from 0.'),
        ('agent_checkpoints', 'agent_id', 'Who wrote it.'),
        ('agent_checkpoints', 'parent_turn_id', 'The id of the checkpoint it extends; null where that has been pruned.'),
        ('agent_checkpoints', 'created_at', 'When; rises along a branch.'),
        ('agent_checkpoints', 'messages', 'All messages up to here, an array.'),
        ('agent_checkpoints', 'tool_calls', 'The calls saved with it, an array.'),
        ('agent_checkpoints', 'tool_results', 'The results saved with it, an array.'),
        ('agent_checkpoints', 'state', 'The state; an object also has sub_step.'),
        ('agent_checkpoints', 'embedding', 'Of the turn, at its final sub-step.'),
        ('agent_checkpoints', 'branch', 'The branch it was saved on.'),
        ('agent_checkpoints', 'sub_step', 'The sub-step, from 0.'),
        ('agent_checkpoints', 'phase', 'input, tool_calls, started, tool_results, step or final.'),
        ('agent_checkpoints', 'parent_turn_index', 'The turn of the checkpoint it extends.'),
        ('agent_checkpoints', 'parent_sub_step', 'The sub-step of the checkpoint it extends.'),
        ('agent_checkpoints', 'parent_branch', 'The branch of the checkpoint it extends.'),

        ('agent_messages', NULL, 'The messages at the head of every conversation''s current branch, in order.'),
        ('agent_messages', 'conversation_id', 'Of the conversation.'),
        ('agent_messages', 'branch', 'The branch whose list it is.'),
        ('agent_messages', 'index', 'Its place in the list, from 0.'),
        ('agent_messages', 'role', 'What it says of its role, if anything.'),
        ('agent_messages', 'body', 'The message.'),
        ('agent_messages', 'body_text', 'Its exact text.'),

        ('all_messages', NULL, 'The messages at the head of every branch, in no order: sort by index.'),
        ('all_messages', 'branch', 'The branch whose list it is.'),

        ('pending_calls', NULL, 'The tool calls that have no result yet, of every branch whose turn is open.'),
        ('pending_calls', 'branch', 'The branch on which it is pending.'),
        ('pending_calls', 'turn_index', 'The turn that is open.'),
        ('pending_calls', 'sub_step', 'The sub-step that it was saved with.'),
        ('pending_calls', 'index', 'Its place in the tool_calls of that checkpoint.'),
        ('pending_calls', 'call_id', 'The provider''s id of it, if it has one.'),
        ('pending_calls', 'name', 'The name of its tool.'),
        ('pending_calls', 'call', 'The call.'),
        ('pending_calls', 'attempts', 'How often it was marked as started.'),
        ('pending_calls', 'uncertain', 'It was issued before a fork: whether it ran is for the issuing branch to know.'),
        ('pending_calls', 'issued_conversation', 'The conversation that has issued it.'),
        ('pending_calls', 'issued_branch', 'The branch that has issued it.'),
        ('pending_calls', 'issued_at', 'When.'),
        ('pending_calls', 'agent_id', 'Who has issued it.'),
        ('pending_calls', 'status', 'Of the branch.'),
        ('pending_calls', 'lease_owner', 'Who runs the branch.'),
        ('pending_calls', 'lease_until', 'When that lease expires unless it is renewed.'),

        ('all_checkpoints', NULL, 'The same for every branch: each checkpoint once, on the branch it was saved on.')
        ) AS c (relation, part, words)
        JOIN pg_catalog.pg_type AS t ON t.oid = pg_catalog.pg_typeof(NULL::{schema}.conversation)
        JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
        JOIN pg_catalog.pg_class AS k ON k.relnamespace = n.oid AND k.relname = c.relation
        LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = k.oid AND a.attname = c.part
        WHERE (c.part IS NULL) = (a.attname IS NULL) AND c.words IS DISTINCT FROM CASE
            WHEN c.part IS NULL THEN pg_catalog.obj_description(k.oid, 'pg_class')
            ELSE pg_catalog.col_description(k.oid, a.attnum)
        END
    LOOP
        IF v_new.attname IS NOT NULL THEN
            EXECUTE pg_catalog.format(
                'COMMENT ON COLUMN %I.%I.%I IS %L', v_new.nspname, v_new.relname, v_new.attname, v_new.words);
        ELSE
            EXECUTE pg_catalog.format(
                'COMMENT ON %s %I.%I IS %L', CASE v_new.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END,
                v_new.nspname, v_new.relname, v_new.words);
        END IF;
    END LOOP;
END $$;
