#!/bin/sh
# A writer that has psql and the published SQL, and no library. Usage: PSQL=psql writer.sh DSN CONVERSATION < what to do
# A line of "user TEXT" opens a turn, "call ID NAME" asks for a tool, "result ID TEXT" answers it, "final TEXT" ends the turn.
set -eu
newest="SELECT * FROM turnkeep.agent_checkpoints WHERE conversation_id = :'conversation'
    ORDER BY turn_index DESC, created_at DESC LIMIT 1"
columns="conversation_id, turn_index, agent_id, parent_turn_id, created_at, messages, tool_calls, tool_results, state"

run() {
    "$PSQL" -X -q -A -t -v ON_ERROR_STOP=1 -v conversation="$conversation" -v a="${2:-}" -v b="${3:-}" "$dsn" <<SQL
INSERT INTO turnkeep.agent_checkpoints ($columns) $1
RETURNING turn_index || '.' || sub_step || ' ' || phase;
SQL
}

dsn=$1
conversation=$2
while read -r what first rest; do
    case $what in
    user)
        run "SELECT :'conversation', coalesce(max(turn_index) + 1, 0), 'shell', max(id), now(), coalesce((array_agg(messages))[1], '[]')
            || jsonb_build_array(jsonb_build_object('role', 'user', 'content', :'a')), NULL, NULL, '{\"step_count\": 0}'
            FROM ($newest) AS newest" "$first $rest" ;;
    call)
        run "SELECT conversation_id, turn_index, agent_id, id, now(), messages || jsonb_build_array(jsonb_build_object('role', 'assistant',
            'content', NULL)), jsonb_build_array(jsonb_build_object('id', :'a', 'name', :'b')), NULL,
            jsonb_build_object('step_count', 1, 'sub_step', sub_step + 1) FROM ($newest) AS newest" "$first" "$rest" ;;
    result)
        run "SELECT conversation_id, turn_index, agent_id, id, now(), messages || jsonb_build_array(jsonb_build_object('role', 'tool',
            'content', :'b')), NULL, jsonb_build_array(jsonb_build_object('tool_call_id', :'a')), state - 'sub_step'
            FROM ($newest) AS newest" "$first" "$rest" ;;
    final)
        run "SELECT conversation_id, turn_index, agent_id, id, now(), messages || jsonb_build_array(jsonb_build_object('role', 'assistant',
            'content', :'a')), NULL, NULL, '{\"flags\": {\"is_final\": true}}' FROM ($newest) AS newest" "$first $rest" ;;
    esac
done
