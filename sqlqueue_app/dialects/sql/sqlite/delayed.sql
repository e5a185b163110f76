-- Statements of a table of delayed messages on SQLite.

-- name: delay
INSERT INTO {table} (Headers, Body, Due)
VALUES {rows};

-- name: delay_row
-- A due time or a delay, in the text format in which it is compared with `now`.
(:headers, :body, coalesce(
    strftime('%Y-%m-%d %H:%M:%f', :due),
    strftime('%Y-%m-%d %H:%M:%f', 'now', (CAST(:delay_ms AS INTEGER) / 1000.0) || ' seconds')
));

-- name: next_due
-- Seconds until the earliest due time: negative if it has passed, NULL if there is none. Reads the first index entry.
-- Due may be text that is not a time. If `take_due` would take it, it counts as due, because otherwise the rows behind it would
-- wait forever. If not, the wait is unknown: NULL.
SELECT CASE
    WHEN Due <= strftime('%Y-%m-%d %H:%M:%f', 'now') THEN min(coalesce((julianday(Due) - julianday('now')) * 86400.0, 0.0), 0.0)
    WHEN julianday(Due) > julianday('now') THEN (julianday(Due) - julianday('now')) * 86400.0
END
FROM (SELECT 1 AS one)
LEFT JOIN (SELECT Due FROM {table} ORDER BY Due LIMIT 1) ON one = 1;

-- name: count_delayed
-- All delayed messages, and those that are due; each count stops at the limit.
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT :limit)),
    (SELECT count(*) FROM (SELECT 1 FROM {table} WHERE Due <= strftime('%Y-%m-%d %H:%M:%f', 'now') LIMIT :limit));

-- name: take_due
-- As BLOB: see `receive`.
DELETE FROM {table}
WHERE RowVersion IN (
    SELECT RowVersion FROM {table}
    WHERE Due <= strftime('%Y-%m-%d %H:%M:%f', 'now')
    ORDER BY Due
    LIMIT :limit
)
RETURNING CAST(Headers AS blob), CAST(Body AS blob), CAST(Due AS blob);

-- name: peek_delayed
SELECT CAST(Headers AS blob), CAST(Body AS blob) FROM {table} ORDER BY Due LIMIT :limit;

-- name: cancel
-- Scans the whole table: only the headers identify the messages.
DELETE FROM {table} WHERE instr(Headers, :one) > 0 AND instr(Headers, :other) > 0;

-- name: bring_nearer
UPDATE {table} SET Due = strftime('%Y-%m-%d %H:%M:%f', Due, (CAST(:milliseconds AS INTEGER) / -1000.0) || ' seconds');
