-- What the command line asks beside the store's own statements. Same form as statements.sql.

-- name: server
-- The server, the database and the role, as this connection has them.
SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4 AS version_number, pg_catalog.current_setting('server_version') AS version,
    pg_catalog.pg_backend_pid() AS backend_pid, pg_catalog.current_setting('server_encoding') AS encoding,
    pg_catalog.pg_is_in_recovery() AS in_recovery, pg_catalog.current_setting('transaction_read_only') AS read_only,
    current_user::pg_catalog.text AS role_name, pg_catalog.current_database()::pg_catalog.text AS database_name,
    pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS may_create,
    EXISTS (SELECT FROM pg_catalog.pg_available_extensions AS e WHERE e.name = 'vector') AS vector_available

-- name: ping
-- The shortest round trip, and the time on the server.
SELECT pg_catalog.clock_timestamp() AS server_time

-- name: settings
-- Settings that bear on whether a save is durable and gets through, in ms where they are times, and where each was made.
SELECT s.name, s.setting, s.source
FROM pg_catalog.pg_settings AS s
WHERE s.name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'statement_timeout', 'lock_timeout', 'transaction_timeout',
    'idle_in_transaction_session_timeout', 'synchronous_standby_names', 'max_connections', 'superuser_reserved_connections',
    'reserved_connections', 'autovacuum_freeze_max_age')

-- name: overrides
-- Roles and databases that other values are set for: those that this session does not show.
SELECT d.datname::pg_catalog.text AS database_name, r.rolname::pg_catalog.text AS role_name, c.value AS setting
FROM pg_catalog.pg_db_role_setting AS s
CROSS JOIN LATERAL pg_catalog.unnest(s.setconfig) AS c (value)
LEFT JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = s.setrole
WHERE (s.setdatabase = 0 OR d.datname = pg_catalog.current_database())
    AND pg_catalog.split_part(c.value, '=', 1) IN ('synchronous_commit', 'default_transaction_read_only')
ORDER BY 2 NULLS FIRST, 1 NULLS FIRST, 3

-- name: cluster
-- The whole server: connections, prepared transactions, standbys, and how far the database is from wraparound.
SELECT (SELECT pg_catalog.sum(d.numbackends) FROM pg_catalog.pg_stat_database AS d)::pg_catalog.int4 AS connections,
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_prepared_xacts AS x WHERE x.database = pg_catalog.current_database())::pg_catalog.int4
        AS prepared,
    (SELECT pg_catalog.min(x.prepared) FROM pg_catalog.pg_prepared_xacts AS x WHERE x.database = pg_catalog.current_database())
        AS oldest_prepared,
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication)::pg_catalog.int4 AS standbys,
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication AS r WHERE r.sync_state IN ('sync', 'quorum'))::pg_catalog.int4
        AS synchronous_standbys,
    pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS may_see_standbys,
    (SELECT pg_catalog.age(d.datfrozenxid) FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
        AS transaction_age,
    (SELECT d.datconnlimit FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()) AS database_limit,
    (SELECT r.rolconnlimit FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user) AS role_limit

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
        ORDER BY 1) AS invalid_indexes,
    NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
            AND (NOT pg_catalog.has_table_privilege(c.oid, 'SELECT')
                OR pg_catalog.has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE'))) AS reads_only
FROM pg_catalog.pg_namespace AS n
WHERE n.nspname = %(schema)s

-- name: leases
-- Branches that are running, by whether their lease is live, and those in the middle of a turn without one.
SELECT pg_catalog.count(*) FILTER (WHERE b.status = 'running' AND b.lease_until > t.now) AS live,
    pg_catalog.count(*) FILTER (WHERE b.status = 'running' AND (b.lease_until IS NULL OR b.lease_until <= t.now)) AS expired,
    pg_catalog.count(*) FILTER (WHERE c.phase <> 'final' AND (b.lease_until IS NULL OR b.lease_until <= t.now)) AS interrupted,
    pg_catalog.min(b.lease_until) FILTER (WHERE b.status = 'running' AND b.lease_until <= t.now) AS oldest_expired,
    ARRAY(SELECT DISTINCT v.agent_id FROM {schema}.branch AS r
        JOIN {schema}.conversation AS v ON v.conversation_id = r.conversation_id
        WHERE r.status = 'running' AND r.lease_until <= {schema}.clock() AND v.agent_id IS NOT NULL
        ORDER BY 1 LIMIT 10) AS agents_of_expired,
    (SELECT pg_catalog.date_part('epoch', {schema}.clock() - pg_catalog.clock_timestamp())) AS clock_ahead
FROM (SELECT {schema}.clock() AS now OFFSET 0) AS t
CROSS JOIN {schema}.branch AS b
LEFT JOIN LATERAL (  -- by its key, for each of the few
    SELECT k.phase FROM {schema}.checkpoint AS k
    WHERE k.conversation_id = b.conversation_id AND k.turn_index = b.turn_index
        AND k.sub_step = b.sub_step AND k.branch = {schema}.owner_of(b.branch, b.lineage, b.turn_index, b.sub_step)
    OFFSET 0) AS c ON true
WHERE b.status IN ('open', 'running', 'ready')
