-- Statements for chosen rows of a queue table on PostgreSQL. {table} is the quoted "schema"."table".

-- name: look_at
-- The headers of the rows of these numbers, that are there. {row_versions} is a list of whole numbers.
SELECT seq, headers
FROM {table}
WHERE seq IN ({row_versions});

-- name: take
-- The rows of these numbers, but those that somebody else holds; with what is left of their lives in milliseconds.
DELETE FROM {table}
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table}
    WHERE seq IN ({row_versions})
    FOR UPDATE SKIP LOCKED
))
RETURNING
    id,
    NULL,
    NULL,
    CAST(extract(EPOCH FROM expires - (clock_timestamp() AT TIME ZONE 'UTC')) * 1000 AS bigint),
    headers,
    body,
    seq;

-- name: remove
-- The same without reading them; returns their numbers.
DELETE FROM {table}
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table}
    WHERE seq IN ({row_versions})
    FOR UPDATE SKIP LOCKED
))
RETURNING seq;
