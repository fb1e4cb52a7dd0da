(%(agent)s::pg_catalog.text IS NULL OR v.agent_id = %(agent)s)
    AND (%(tenant)s::pg_catalog.text IS NULL OR v.tenant = %(tenant)s)
    AND (%(conversation)s::pg_catalog.uuid IS NULL OR v.conversation_id = %(conversation)s)
    AND (%(other_than)s::pg_catalog.uuid IS NULL OR v.conversation_id <> %(other_than)s)
    AND (%(tags)s::pg_catalog.text[] IS NULL OR v.tags OPERATOR(pg_catalog.@>) %(tags)s::pg_catalog.text[])
    AND (%(metadata)s::pg_catalog.text IS NULL
        OR v.metadata OPERATOR(pg_catalog.@>) %(metadata)s::pg_catalog.text::pg_catalog.jsonb)
    AND (%(line_branches)s::pg_catalog.int4[] IS NULL OR EXISTS (
        SELECT FROM ROWS FROM (
            pg_catalog.unnest(%(line_branches)s::pg_catalog.int4[]), pg_catalog.unnest(%(line_lasts)s::pg_catalog.int4[])
        ) AS l (branch, last)
        WHERE l.branch = d.branch AND d.turn_index <= l.last))
