-- Statements of the pipeline for many rows of a queue table on PostgreSQL. {table} is the quoted "schema"."table".

-- name: remove_ranges
-- The rows of these numbers; {ranges} is a list of (lowest, highest).
DELETE FROM {table} AS queue
USING (VALUES {ranges}) AS wanted (lowest, highest)
WHERE queue.seq BETWEEN wanted.lowest AND wanted.highest;

-- name: row_ids
-- The numbers and ids of the first rows after a number.
SELECT seq, id
FROM {table}
WHERE seq > CAST(:after AS bigint)
ORDER BY seq
LIMIT CAST(:limit AS integer);
