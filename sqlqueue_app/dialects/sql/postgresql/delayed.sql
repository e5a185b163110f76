-- Statements of a table of delayed messages on PostgreSQL.
-- `due` travels as ISO text in UTC, which every session reads alike.

-- name: delay
INSERT INTO {table} (headers, body, due)
VALUES {rows};

-- name: delay_row
-- A row with a time or a delay. Milliseconds and not days: a day of a timestamptz has 23 or 25 hours at times, by the session's zone.
(:headers, :body, COALESCE(
    CAST(:due AS timestamp without time zone) AT TIME ZONE 'UTC',
    clock_timestamp() + CAST(:delay_ms AS bigint) * interval '1 millisecond'
));

-- name: next_due
-- Seconds until the earliest is due, negative since then, NULL for none: the first entry of the index.
-- By their seconds, for a due time may be infinite, which cannot be subtracted from.
SELECT CAST(
    EXTRACT(EPOCH FROM (SELECT due FROM {table} ORDER BY due LIMIT 1)) - EXTRACT(EPOCH FROM clock_timestamp())
    AS double precision
);

-- name: count_delayed
-- How many wait, and how many of them are due; neither beyond the limit.
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT CAST(:limit AS integer)) AS counted),
    (SELECT count(*) FROM (
        SELECT 1 FROM {table} WHERE due <= (SELECT clock_timestamp()) LIMIT CAST(:limit AS integer)
    ) AS overdue);

-- name: take_due
-- The array is built once, so its LIMIT holds; rows that another mover holds are stepped over.
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
-- Looks at every row: nothing but the headers says whose they are.
DELETE FROM {table} WHERE strpos(headers, :one) > 0 AND strpos(headers, :other) > 0;

-- name: bring_nearer
UPDATE {table} SET due = due - CAST(:milliseconds AS bigint) * interval '1 millisecond';
