-- Rate limits on SQLite, in a managed table.

-- name: read_rate
-- The wall clock in microseconds since 1970, and the state of the limit, NULL before its first message.
SELECT
    CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS integer) * 1000,
    rates.reserved_until,
    rates.handled_until
FROM (SELECT 1) AS clock
LEFT JOIN {table} AS rates ON rates.id = :id;

-- name: replace_rate
-- Changes nothing if another process was faster: both have read the same state.
UPDATE {table} SET reserved_until = :reserved_until, handled_until = :handled_until
WHERE id = :id AND reserved_until = :reserved_before AND handled_until = :handled_before;
