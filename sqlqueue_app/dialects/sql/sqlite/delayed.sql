-- Statements of a table of delayed messages on SQLite.

-- name: delay
INSERT INTO {table} (Headers, Body, Due)
VALUES {rows};

-- name: delay_row
-- A row with a time or a delay, in the form that `now` is compared in.
(:headers, :body, coalesce(
    strftime('%Y-%m-%d %H:%M:%f', :due),
    strftime('%Y-%m-%d %H:%M:%f', 'now', (CAST(:delay_ms AS INTEGER) / 1000.0) || ' seconds')
));

-- name: next_due
-- Seconds until the earliest is due, negative since then, NULL for none: the first entry of the index.
-- Due may be text that is no time: what `take_due` would take is due, or the rows behind it would wait for ever; of the rest, which has
-- to wait whatever it says, nobody knows for how long.
SELECT CASE
    WHEN Due <= strftime('%Y-%m-%d %H:%M:%f', 'now') THEN min(coalesce((julianday(Due) - julianday('now')) * 86400.0, 0.0), 0.0)
    WHEN julianday(Due) > julianday('now') THEN (julianday(Due) - julianday('now')) * 86400.0
END
FROM (SELECT 1 AS one)
LEFT JOIN (SELECT Due FROM {table} ORDER BY Due LIMIT 1) ON one = 1;

-- name: count_delayed
-- How many wait, and how many of them are due; neither beyond the limit.
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT :limit)),
    (SELECT count(*) FROM (SELECT 1 FROM {table} WHERE Due <= strftime('%Y-%m-%d %H:%M:%f', 'now') LIMIT :limit));

-- name: take_due
-- As BLOB: see the statement `receive`.
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
-- Looks at every row: nothing but the headers says whose they are.
DELETE FROM {table} WHERE instr(Headers, :one) > 0 AND instr(Headers, :other) > 0;

-- name: bring_nearer
UPDATE {table} SET Due = strftime('%Y-%m-%d %H:%M:%f', Due, (CAST(:milliseconds AS INTEGER) / -1000.0) || ' seconds');
