-- Sessions of the OpenAI Agents SDK. Same form as sql/statements.sql; {schema} is where its tables are.

-- name: sessions
-- Sessions after one, by id.
SELECT s.session_id, s.created_at, s.updated_at FROM {schema}.agent_sessions AS s
WHERE s.session_id > %(after)s ORDER BY s.session_id LIMIT 500

-- name: items
-- Items of a session after one, in order.
SELECT m.id, m.message_data FROM {schema}.agent_messages AS m
WHERE m.session_id = %(session)s AND m.id > %(after)s ORDER BY m.id LIMIT 500
