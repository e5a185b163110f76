-- Dead rows of queue tables, and what keeps vacuum from removing them. Read-only, for any role. Without
-- pg_read_all_stats, the sessions of other roles show only process, application, role and xmin; their other columns are NULL.

-- name: dead_rows
SELECT asked.name, pg_stat_user_tables.n_dead_tup, pg_stat_user_tables.n_live_tup
FROM unnest(CAST(:tables AS text [])) AS asked (name)
INNER JOIN pg_stat_user_tables ON pg_stat_user_tables.relid = to_regclass(asked.name);

-- name: horizon_holders
-- Vacuum keeps every row that died after the oldest of these began. Sessions in other databases do not hold the horizon back.
SELECT
    holder.kind,
    holder.name,
    holder.role,
    holder.pid,
    holder.state,
    CAST(extract(EPOCH FROM clock_timestamp() - holder.since) AS double precision),
    holder.transactions
FROM (
    SELECT
        'session' AS kind,
        application_name AS name,
        CAST(usename AS text) AS role,
        pid,
        state,
        xact_start AS since,
        greatest(age(backend_xmin), age(backend_xid)) AS transactions
    FROM pg_stat_activity
    WHERE
        (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
        AND pid <> pg_backend_pid()
        AND (datname = current_database() OR datname IS NULL)
        AND coalesce(query, '') NOT LIKE 'autovacuum:%'
    UNION ALL
    SELECT 'prepared transaction', gid, CAST(owner AS text), NULL, NULL, prepared, age(transaction)
    FROM pg_prepared_xacts
    WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', CAST(slot_name AS text), NULL, active_pid, NULL, NULL, age(xmin)
    FROM pg_replication_slots
    WHERE xmin IS NOT NULL
) AS holder
ORDER BY holder.transactions DESC
LIMIT 5;
