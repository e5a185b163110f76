-- Rate limits on PostgreSQL, in a managed table.

-- name: read_rate
-- The wall clock in microseconds since 1970, and the state of the limit, NULL before its first message.
SELECT
    CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000) AS bigint),
    rates.reserved_until,
    rates.handled_until
FROM (SELECT 1) AS clock
LEFT JOIN {table} AS rates ON rates.id = CAST(:id AS uuid);

-- name: replace_rate
-- Changes nothing if another process was faster: both have read the same state.
UPDATE {table} SET reserved_until = :reserved_until, handled_until = :handled_until
WHERE id = CAST(:id AS uuid) AND reserved_until = :reserved_before AND handled_until = :handled_before;
