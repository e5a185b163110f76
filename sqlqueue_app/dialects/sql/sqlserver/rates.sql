-- Rate limits on SQL Server, in a managed table. mssql-django stores a UUIDField as char(32), without dashes.

-- name: read_rate
-- The wall clock in microseconds since 1970, and the state of the limit, NULL before its first message.
SELECT
    DATEDIFF_BIG(second, CAST('19700101' AS datetime2), clock.now) * 1000000 + DATEPART(microsecond, clock.now),
    rates.reserved_until,
    rates.handled_until
FROM (SELECT SYSUTCDATETIME() AS now) AS clock
LEFT JOIN {table} AS rates ON rates.id = CAST(:id AS char(32));

-- name: replace_rate
-- Changes nothing if another process was faster: both have read the same state.
UPDATE {table} SET reserved_until = :reserved_until, handled_until = :handled_until
WHERE id = CAST(:id AS char(32)) AND reserved_until = :reserved_before AND handled_until = :handled_before;
