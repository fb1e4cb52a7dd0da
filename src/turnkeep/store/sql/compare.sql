-- What comparing two checkpoints asks. Same form as statements.sql.

-- name: side
-- A checkpoint without its messages: of a branch by number or name, or of the current one; at a place, or at the head.
SELECT v.conversation_id, v.external_id, b.branch, b.name, c.turn_index, c.sub_step, c.spans, c.state::pg_catalog.text
FROM {schema}.conversation AS v
JOIN {schema}.branch AS b ON b.conversation_id = v.conversation_id AND CASE
    WHEN %(name)s::pg_catalog.text IS NULL THEN b.branch = coalesce(%(branch)s::pg_catalog.int4, v.current_branch)
    ELSE b.name = %(name)s END
CROSS JOIN LATERAL (
    SELECT coalesce(%(turn)s::pg_catalog.int4, b.turn_index) AS turn_index,
        coalesce(%(sub_step)s::pg_catalog.int4, b.sub_step) AS sub_step
) AS p
LEFT JOIN {schema}.checkpoint AS c ON c.conversation_id = v.conversation_id AND c.turn_index = p.turn_index
    AND c.sub_step = p.sub_step
    AND c.branch = {schema}.owner_of(b.branch, b.lineage, p.turn_index, p.sub_step)
WHERE v.conversation_id = %(conversation)s

-- name: digests
-- What tells messages apart, without their text.
SELECT m.branch, m.position, pg_catalog.sha256(pg_catalog.convert_to(m.body::pg_catalog.text, 'UTF8')) AS digest
FROM {schema}.spans_of(%(spans)s::pg_catalog.int4[]) AS s
JOIN {schema}.message AS m ON m.conversation_id = %(conversation)s AND m.branch = s.branch
    AND m.position >= s.start AND m.position < s.stop

-- name: bodies
-- Messages, those without their text that are larger than is wanted.
SELECT m.branch, m.position, m.size, CASE WHEN m.size <= %(most)s THEN m.body::pg_catalog.text END AS body
FROM {schema}.spans_of(%(spans)s::pg_catalog.int4[]) AS s
JOIN {schema}.message AS m ON m.conversation_id = %(conversation)s AND m.branch = s.branch
    AND m.position >= s.start AND m.position < s.stop
