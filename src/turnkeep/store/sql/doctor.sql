-- What the command line asks beside the store's own statements. Same form as statements.sql.

-- name: server
-- The server, the database and the role, as this connection has them.
SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4 AS version_number, pg_catalog.current_setting('server_version') AS version,
    pg_catalog.pg_backend_pid() AS backend_pid, pg_catalog.current_setting('server_encoding') AS encoding,
    pg_catalog.current_setting('fsync', true) AS fsync, pg_catalog.current_setting('full_page_writes', true) AS full_page_writes,
    pg_catalog.current_setting('synchronous_commit', true) AS synchronous_commit,
    pg_catalog.pg_is_in_recovery() AS in_recovery, pg_catalog.current_setting('transaction_read_only') AS read_only,
    current_user::pg_catalog.text AS role_name, pg_catalog.current_database()::pg_catalog.text AS database_name,
    pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS may_create,
    EXISTS (SELECT FROM pg_catalog.pg_available_extensions AS e WHERE e.name = 'vector') AS vector_available

-- name: ping
-- The shortest round trip.
SELECT

-- name: rights
-- What this role may not do in the schema, and indexes of it that are not valid. No row where there is no schema.
SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS may_use,
    ARRAY(SELECT p.privilege || ' on ' || c.relname
        FROM pg_catalog.pg_class AS c
        CROSS JOIN pg_catalog.unnest(CASE
            WHEN c.relkind = 'v' OR c.relname = 'migration' THEN ARRAY['SELECT']
            ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'] END) WITH ORDINALITY AS p (privilege, ord)
        WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v')
            AND NOT pg_catalog.has_table_privilege(c.oid, p.privilege)
        ORDER BY c.relname, p.ord) AS missing_on_tables,
    ARRAY(SELECT DISTINCT f.proname::pg_catalog.text
        FROM pg_catalog.pg_proc AS f
        WHERE f.pronamespace = n.oid AND NOT pg_catalog.has_function_privilege(f.oid, 'EXECUTE')
        ORDER BY 1) AS missing_on_functions,
    ARRAY(SELECT i.relname::pg_catalog.text
        FROM pg_catalog.pg_index AS x
        JOIN pg_catalog.pg_class AS i ON i.oid = x.indexrelid
        WHERE i.relnamespace = n.oid AND NOT (x.indisvalid AND x.indisready)
        ORDER BY 1) AS invalid_indexes
FROM pg_catalog.pg_namespace AS n
WHERE n.nspname = %(schema)s

-- name: leases
-- Branches that are running, by whether their lease is live, and those in the middle of a turn without one.
SELECT pg_catalog.count(*) FILTER (WHERE b.status = 'running' AND b.lease_until > t.now) AS live,
    pg_catalog.count(*) FILTER (WHERE b.status = 'running' AND (b.lease_until IS NULL OR b.lease_until <= t.now)) AS expired,
    pg_catalog.count(*) FILTER (WHERE c.phase <> 'final' AND (b.lease_until IS NULL OR b.lease_until <= t.now)) AS interrupted
FROM (SELECT {schema}.clock() AS now OFFSET 0) AS t
CROSS JOIN {schema}.branch AS b
LEFT JOIN {schema}.checkpoint AS c ON c.conversation_id = b.conversation_id AND c.turn_index = b.turn_index
    AND c.sub_step = b.sub_step AND c.branch = {schema}.owner_of(b.branch, b.lineage, b.turn_index, b.sub_step)
WHERE b.status IN ('open', 'running', 'ready')
