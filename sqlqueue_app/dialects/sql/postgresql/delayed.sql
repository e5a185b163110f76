-- Statements of a table of delayed messages on PostgreSQL.
-- `due` is sent as ISO text in UTC, which every session parses alike.

-- name: delay
INSERT INTO {table} (headers, body, due)
VALUES {rows};

-- name: delay_row
-- A due time or a delay. In milliseconds, not days: a day of a timestamptz can have 23 or 25 hours in the session's time zone.
(:headers, :body, COALESCE(
    CAST(:due AS timestamp without time zone) AT TIME ZONE 'UTC',
    clock_timestamp() + CAST(:delay_ms AS bigint) * interval '1 millisecond'
));

-- name: next_due
-- Seconds until the earliest due time: negative if it has passed, NULL if there is none. Reads the first index entry.
-- Subtracts epoch seconds, because a due time may be infinite, and infinite timestamps cannot be subtracted.
SELECT CAST(
    EXTRACT(EPOCH FROM (SELECT due FROM {table} ORDER BY due LIMIT 1)) - EXTRACT(EPOCH FROM clock_timestamp())
    AS double precision
);

-- name: count_delayed
-- All delayed messages, and those that are due; each count stops at the limit.
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT CAST(:limit AS integer)) AS counted),
    (SELECT count(*) FROM (
        SELECT 1 FROM {table} WHERE due <= (SELECT clock_timestamp()) LIMIT CAST(:limit AS integer)
    ) AS overdue);

-- name: take_due
-- The array is built once, so its LIMIT holds. Skips locked rows.
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id FROM {table}
    WHERE due <= (SELECT clock_timestamp())
    ORDER BY due
    LIMIT CAST(:limit AS integer)
    FOR UPDATE SKIP LOCKED
))
RETURNING headers, body, CAST(EXTRACT(EPOCH FROM due) AS double precision);

-- name: peek_delayed
SELECT headers, body FROM {table} ORDER BY due LIMIT CAST(:limit AS integer);

-- name: cancel
-- Scans the whole table: only the headers identify the messages.
DELETE FROM {table} WHERE strpos(headers, :one) > 0 AND strpos(headers, :other) > 0;

-- name: bring_nearer
UPDATE {table} SET due = due - CAST(:milliseconds AS bigint) * interval '1 millisecond';
