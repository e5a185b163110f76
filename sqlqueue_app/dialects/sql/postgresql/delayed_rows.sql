-- Statements for rows of a table of delayed messages that somebody looks at or has chosen, on PostgreSQL.
-- A row is told by its id. Its due time travels as ISO text in UTC, whatever the session's style of dates; it may be infinite.
-- ORDER BY takes a bare name for that of a result.

-- name: list_delayed
-- The first that will be due: id, due, in how many seconds, headers, length of the body.
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
-- The same after one of them, by the index on due.
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
-- Those of these ids that are there, with the begin of the body. {ids} is a list of quoted ids.
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
-- The same with the whole body, taken out; but those that somebody else holds.
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id FROM {table}
    WHERE id IN ({ids})
    FOR UPDATE SKIP LOCKED
))
RETURNING CAST(id AS text), headers, body;

-- name: remove_delayed
-- The same without reading them; returns their ids.
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id FROM {table}
    WHERE id IN ({ids})
    FOR UPDATE SKIP LOCKED
))
RETURNING CAST(id AS text);
