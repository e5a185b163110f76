-- Statements for browsing a table of delayed messages and for selected rows of it, on PostgreSQL. A row is identified by its id.
-- Due times are exchanged as ISO text in UTC, regardless of the DateStyle of the session; they may be infinite.
-- ORDER BY qualifies its columns, because a bare name would refer to an output column.

-- name: list_delayed
-- The messages due first: id, due time, seconds until then, headers, no body, length of the body.
SELECT
    CAST(id AS text),
    CASE WHEN isfinite(due) THEN to_char(due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') ELSE CAST(due AS text) END,
    CAST(EXTRACT(EPOCH FROM due) - EXTRACT(EPOCH FROM clock_timestamp()) AS double precision),
    headers,
    NULL,
    length(body)
FROM {table} AS held
ORDER BY held.due, held.id
LIMIT CAST(:limit AS integer);

-- name: list_delayed_after
-- As `list_delayed`, after a given row, through the index on due.
SELECT
    CAST(id AS text),
    CASE WHEN isfinite(due) THEN to_char(due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') ELSE CAST(due AS text) END,
    CAST(EXTRACT(EPOCH FROM due) - EXTRACT(EPOCH FROM clock_timestamp()) AS double precision),
    headers,
    NULL,
    length(body)
FROM {table} AS held
WHERE due >= CAST(:due AS timestamp without time zone) AT TIME ZONE 'UTC'
    AND (due > CAST(:due AS timestamp without time zone) AT TIME ZONE 'UTC' OR id > CAST(:place AS uuid))
ORDER BY held.due, held.id
LIMIT CAST(:limit AS integer);

-- name: read_delayed
-- The rows with these ids, with the beginning of the body. {ids} is a list of quoted ids.
SELECT
    CAST(id AS text),
    CASE WHEN isfinite(due) THEN to_char(due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') ELSE CAST(due AS text) END,
    CAST(EXTRACT(EPOCH FROM due) - EXTRACT(EPOCH FROM clock_timestamp()) AS double precision),
    headers,
    substring(body FROM 1 FOR CAST(:body_limit AS integer)),
    length(body)
FROM {table} AS held
WHERE id IN ({ids})
ORDER BY held.due, held.id;

-- name: take_delayed
-- Deletes and returns the rows with these ids, with the whole body. Skips locked rows.
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id FROM {table}
    WHERE id IN ({ids})
    FOR UPDATE SKIP LOCKED
))
RETURNING CAST(id AS text), headers, body;

-- name: remove_delayed
-- As `take_delayed`, but returns only the ids.
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id FROM {table}
    WHERE id IN ({ids})
    FOR UPDATE SKIP LOCKED
))
RETURNING CAST(id AS text);
