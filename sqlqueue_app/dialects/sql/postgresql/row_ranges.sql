-- Statements of the pipeline for many rows of a queue table on PostgreSQL. {table} is the quoted "schema"."table".

-- name: remove_ranges
-- Deletes these ranges of row versions; {ranges} is a list of (lowest, highest).
DELETE FROM {table} AS queue
USING (VALUES {ranges}) AS wanted (lowest, highest)
WHERE queue.seq BETWEEN wanted.lowest AND wanted.highest;

-- name: drawn_row_version
-- The last row version drawn, even if the row is gone; NULL if unknown.
SELECT CASE WHEN has_sequence_privilege(numbers.name, 'USAGE, SELECT') THEN pg_sequence_last_value(numbers.name) END
FROM (SELECT CAST(pg_get_serial_sequence(CAST(:table AS text), 'seq') AS regclass) AS name) AS numbers;

-- name: row_ids
-- The row versions and ids of the first rows after a row version.
SELECT seq, id
FROM {table}
WHERE seq > CAST(:after AS bigint)
ORDER BY seq
LIMIT CAST(:limit AS integer);
