-- What is asked of extensions that a server may have, in whatever schema they are. Same form as statements.sql.

-- name: extension
-- The schema of an extension that this role may use, and whether its library is loaded.
SELECT n.nspname::pg_catalog.text, pg_catalog.current_setting(%(setting)s, true) IS NOT NULL
FROM pg_catalog.pg_extension AS e
JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
WHERE e.extname = %(name)s AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')

-- name: save_times
-- Times of the saves of this schema in milliseconds, since the statistics were reset: how many, all together, shortest,
-- longest, standard deviation. Statements that differ in their text are taken together.
SELECT pg_catalog.sum(s.calls)::pg_catalog.int8, pg_catalog.sum(s.total_exec_time), pg_catalog.min(s.min_exec_time),
    pg_catalog.max(s.max_exec_time),
    pg_catalog.sqrt(greatest(0, pg_catalog.sum(s.calls * (s.stddev_exec_time ^ 2 + s.mean_exec_time ^ 2)) / pg_catalog.sum(s.calls)
        - (pg_catalog.sum(s.total_exec_time) / pg_catalog.sum(s.calls)) ^ 2))
FROM {extension}.pg_stat_statements AS s
JOIN pg_catalog.pg_database AS d ON d.oid = s.dbid
WHERE d.datname = pg_catalog.current_database() AND s.toplevel AND s.calls > 0
    AND pg_catalog.strpos(s.query, %(called)s) > 0 AND s.query ~* '^\s*select\M'

-- name: waste
-- Of each table of the schema, by pgstattuple: bytes of dead rows, and bytes that are free. Reads what is not all visible.
SELECT c.relname::pg_catalog.text, p.dead_tuple_len::pg_catalog.int8, p.approx_free_space::pg_catalog.int8
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL {extension}.pgstattuple_approx(c.oid) AS p
WHERE n.nspname = %(schema)s AND c.relkind = 'r'
