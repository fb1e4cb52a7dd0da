-- Repeatable: run whenever its text changes. What tables, views and their columns hold, for \d+ in psql, for other tools,
-- and for the reference page that is written from it. What functions do stands before each of them.

COMMENT ON TABLE {schema}.conversation IS 'What all turns of a conversation have in common.';
COMMENT ON COLUMN {schema}.conversation.conversation_id IS 'The key of everything about it.';
COMMENT ON COLUMN {schema}.conversation.external_id IS 'The text it was first asked for by, verbatim.';
COMMENT ON COLUMN {schema}.conversation.agent_id IS 'The agent whose workers serve it.';
COMMENT ON COLUMN {schema}.conversation.metadata IS 'A JSON object of its users'' own; updates merge into it.';
COMMENT ON COLUMN {schema}.conversation.parent_conversation_id IS 'The conversation that it is part of: one of an agent that uses another as a tool.';
COMMENT ON COLUMN {schema}.conversation.current_branch IS 'The branch that is meant where none is named.';
COMMENT ON COLUMN {schema}.conversation.next_branch IS 'The number of the next fork; a number is never used twice.';
COMMENT ON COLUMN {schema}.conversation.created_at IS 'When it was made.';
COMMENT ON COLUMN {schema}.conversation.ended_at IS 'When it was ended: it takes no more requests.';
COMMENT ON COLUMN {schema}.conversation.archived_at IS 'When it was archived.';
COMMENT ON COLUMN {schema}.conversation.tenant IS 'Whose it is, where text ids are a tenant''s own.';
COMMENT ON COLUMN {schema}.conversation.title IS 'A title for people.';
COMMENT ON COLUMN {schema}.conversation.tags IS 'Texts that lists can ask for.';
COMMENT ON COLUMN {schema}.conversation.version IS 'How often title, tags and metadata have been updated.';
COMMENT ON COLUMN {schema}.conversation.update_id IS 'The id of the last update: the same one again changes nothing more.';

COMMENT ON TABLE {schema}.branch IS
    'A line of turns: its head, its lease, and what it waits for. The only row of a conversation that a save changes.';
COMMENT ON COLUMN {schema}.branch.conversation_id IS 'Whose branch it is.';
COMMENT ON COLUMN {schema}.branch.branch IS 'Its number: 0 is the first, each fork has the next one.';
COMMENT ON COLUMN {schema}.branch.name IS 'Its name within the conversation: main, or what it was forked under.';
COMMENT ON COLUMN {schema}.branch.status IS
    'idle; open: in a turn, without a lease; ready: waits for a worker; running: leased; waiting: for a person; ended; failed.';
COMMENT ON COLUMN {schema}.branch.turn_index IS 'The turn of the head, from 0; -1 before the first.';
COMMENT ON COLUMN {schema}.branch.sub_step IS 'The sub-step of the head within its turn, from 0.';
COMMENT ON COLUMN {schema}.branch.next_position IS 'The position of the next message in its log.';
COMMENT ON COLUMN {schema}.branch.lineage IS
    'Whose history it inherits: (branch, turn_index, sub_step) triples, each branch up to and with that checkpoint.';
COMMENT ON COLUMN {schema}.branch.fork_id IS 'The id that its fork was asked for under: the same one gives it again.';
COMMENT ON COLUMN {schema}.branch.ready_at IS 'From when on a worker may take it, where it is ready.';
COMMENT ON COLUMN {schema}.branch.turn_started_at IS 'When its newest turn began: lists go by it.';
COMMENT ON COLUMN {schema}.branch.not_before IS 'The same as ready_at where it was handed back for later, for people to read.';
COMMENT ON COLUMN {schema}.branch.attempts IS 'How many workers have died over it since it last made progress.';
COMMENT ON COLUMN {schema}.branch.failure IS 'Why it has failed or waits: an object with type and message.';
COMMENT ON COLUMN {schema}.branch.lease_owner IS 'Who runs it, for people to read.';
COMMENT ON COLUMN {schema}.branch.lease_token IS 'The fencing token of its lease, drawn at random for each claim; 0: none.';
COMMENT ON COLUMN {schema}.branch.lease_until IS 'When its lease expires unless it is renewed.';
COMMENT ON COLUMN {schema}.branch.updated_at IS 'When it was last written to; rises with every write.';

COMMENT ON TABLE {schema}.message IS 'The messages, each once: an append-only log for every branch.';
COMMENT ON COLUMN {schema}.message.conversation_id IS 'Whose message it is.';
COMMENT ON COLUMN {schema}.message.branch IS 'The branch it was saved on. Branches forked later share it.';
COMMENT ON COLUMN {schema}.message.position IS 'Its place in that branch''s log, from 0.';
COMMENT ON COLUMN {schema}.message.body IS 'The exact text that was stored.';
COMMENT ON COLUMN {schema}.message.size IS 'Its bytes.';

COMMENT ON TABLE {schema}.checkpoint IS
    'The sub-steps, each an immutable snapshot: what was saved with it, and which messages the conversation consisted of.';
COMMENT ON COLUMN {schema}.checkpoint.conversation_id IS 'Whose checkpoint it is.';
COMMENT ON COLUMN {schema}.checkpoint.turn_index IS 'Its turn, from 0 along the branch, inherited turns included.';
COMMENT ON COLUMN {schema}.checkpoint.sub_step IS 'Its place in the turn, from 0.';
COMMENT ON COLUMN {schema}.checkpoint.branch IS 'The branch it was saved on.';
COMMENT ON COLUMN {schema}.checkpoint.id IS 'A number for reference; the order is that of (turn_index, sub_step).';
COMMENT ON COLUMN {schema}.checkpoint.parent_turn_index IS 'The turn of the checkpoint it extends.';
COMMENT ON COLUMN {schema}.checkpoint.parent_sub_step IS 'The sub-step of the checkpoint it extends.';
COMMENT ON COLUMN {schema}.checkpoint.parent_branch IS 'The branch of the checkpoint it extends: another one right after a fork.';
COMMENT ON COLUMN {schema}.checkpoint.phase IS
    'input: begins a turn; tool_calls: has some; started: calls are about to run; tool_results: has some; step: none of these; final: ends the turn.';
COMMENT ON COLUMN {schema}.checkpoint.agent_id IS 'Who wrote it.';
COMMENT ON COLUMN {schema}.checkpoint.created_at IS 'When, by the database''s clock; rises along a branch.';
COMMENT ON COLUMN {schema}.checkpoint.write_id IS 'The id that its save carried: the same one again gives its first outcome.';
COMMENT ON COLUMN {schema}.checkpoint.spans IS
    'Which messages it holds: (branch, start, stop) triples over the logs, half-open, in order.';
COMMENT ON COLUMN {schema}.checkpoint.tool_calls IS 'The calls saved with it, an array.';
COMMENT ON COLUMN {schema}.checkpoint.tool_results IS 'The results saved with it, an array.';
COMMENT ON COLUMN {schema}.checkpoint.answers IS
    'The call that each result settles, or that has started: (turn_index, sub_step, index in tool_calls) triples.';
COMMENT ON COLUMN {schema}.checkpoint.state IS 'The state as it was then, whole.';
COMMENT ON COLUMN {schema}.checkpoint.origin_conversation IS 'The conversation it was written in, where it has been copied.';
COMMENT ON COLUMN {schema}.checkpoint.origin_branch IS 'The branch it was written on, where it has been copied.';

COMMENT ON TABLE {schema}.request IS 'Messages accepted under a key: those that wait for a turn, and those that have begun one.';
COMMENT ON COLUMN {schema}.request.conversation_id IS 'Whose request it is.';
COMMENT ON COLUMN {schema}.request.key IS 'The idempotency key, unique in the conversation.';
COMMENT ON COLUMN {schema}.request.number IS 'The order of arrival.';
COMMENT ON COLUMN {schema}.request.branch IS 'The branch it is for.';
COMMENT ON COLUMN {schema}.request.body IS 'The message, or an array of them; null where only the turn it began holds it.';
COMMENT ON COLUMN {schema}.request.digest IS 'Tells whether the same key has come with the same body.';
COMMENT ON COLUMN {schema}.request.received_at IS 'When it was accepted.';
COMMENT ON COLUMN {schema}.request.taken_turn IS 'The turn it has begun; null while it waits.';

COMMENT ON TABLE {schema}.document IS 'The text of each turn that has ended, as a search will see it. A turn''s end only leaves a row to be filled.';
COMMENT ON COLUMN {schema}.document.conversation_id IS 'Whose text it is.';
COMMENT ON COLUMN {schema}.document.branch IS 'The branch of the turn.';
COMMENT ON COLUMN {schema}.document.turn_index IS 'The turn.';
COMMENT ON COLUMN {schema}.document.chunk IS 'A long text is several rows, from 0.';
COMMENT ON COLUMN {schema}.document.text IS 'The text.';
COMMENT ON COLUMN {schema}.document.tsv IS 'Its words.';
COMMENT ON COLUMN {schema}.document.model IS 'The model that made the embedding.';
COMMENT ON COLUMN {schema}.document.next_try_at IS 'When it is to be filled.';
COMMENT ON COLUMN {schema}.document.tries IS 'How often that was tried.';
COMMENT ON COLUMN {schema}.document.error IS 'Why it has failed.';
COMMENT ON COLUMN {schema}.document.embedding IS 'Its embedding: pgvector''s type where that is installed, else an array.';

COMMENT ON TABLE {schema}.migration IS 'The changes that the schema has been through.';
COMMENT ON COLUMN {schema}.migration.number IS 'Its number; 0 stands for functions, views and comments together.';
COMMENT ON COLUMN {schema}.migration.name IS 'Its name; for 0 the release.';
COMMENT ON COLUMN {schema}.migration.digest IS 'What functions, views and comments were made from.';
COMMENT ON COLUMN {schema}.migration.applied_at IS 'When.';

COMMENT ON VIEW {schema}.agent_checkpoints IS
    'Each sub-step of every conversation''s current branch, its inherited history included, as one row.';
COMMENT ON COLUMN {schema}.agent_checkpoints.id IS 'Of the checkpoint.';
COMMENT ON COLUMN {schema}.agent_checkpoints.conversation_id IS 'Of the conversation.';
COMMENT ON COLUMN {schema}.agent_checkpoints.turn_index IS 'The turn, from 0.';
COMMENT ON COLUMN {schema}.agent_checkpoints.agent_id IS 'Who wrote it.';
COMMENT ON COLUMN {schema}.agent_checkpoints.parent_turn_id IS 'The id of the checkpoint it extends.';
COMMENT ON COLUMN {schema}.agent_checkpoints.created_at IS 'When; rises along a branch.';
COMMENT ON COLUMN {schema}.agent_checkpoints.messages IS 'All messages up to here, an array.';
COMMENT ON COLUMN {schema}.agent_checkpoints.tool_calls IS 'The calls saved with it, an array.';
COMMENT ON COLUMN {schema}.agent_checkpoints.tool_results IS 'The results saved with it, an array.';
COMMENT ON COLUMN {schema}.agent_checkpoints.state IS 'The state; an object also has sub_step.';
COMMENT ON COLUMN {schema}.agent_checkpoints.embedding IS 'Of the turn, at its final sub-step.';
COMMENT ON COLUMN {schema}.agent_checkpoints.branch IS 'The branch it was saved on.';
COMMENT ON COLUMN {schema}.agent_checkpoints.sub_step IS 'The sub-step, from 0.';
COMMENT ON COLUMN {schema}.agent_checkpoints.phase IS 'input, tool_calls, started, tool_results, step or final.';

COMMENT ON VIEW {schema}.all_checkpoints IS
    'The same for every branch: each checkpoint once, on the branch it was saved on.';
