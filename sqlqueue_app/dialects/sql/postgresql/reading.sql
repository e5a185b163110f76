-- Reading a whole queue table on PostgreSQL, as Spark does it. {table} is the quoted "schema"."table".
-- These are sent as text without values: results are streamed by COPY, which takes none.

-- name: read_rows
SELECT
{columns}
FROM {table}
WHERE seq BETWEEN {lowest} AND {highest}{conditions};

-- name: row_version_bounds
-- The two ends, from the index.
SELECT
    (SELECT min(seq) FROM {table}),
    (SELECT max(seq) FROM {table});

-- name: look_at_range
-- How many rows are in a range, at most {limit}, and the last that was counted.
SELECT count(*), max(head.seq)
FROM (
    SELECT seq FROM {table}
    WHERE seq BETWEEN {lowest} AND {highest}
    ORDER BY seq
    LIMIT {limit}
) AS head;

-- name: row_version_after
-- The number of the row so many places after one, not beyond another.
SELECT seq FROM {table}
WHERE seq > {after} AND seq <= {highest}
ORDER BY seq
OFFSET {places}
LIMIT 1;

-- name: writers
-- The transactions that may have drawn numbers for rows that nobody sees yet: whoever inserts holds such a lock before he draws one.
-- A prepared transaction has no process.
SELECT virtualtransaction, CASE WHEN pid IS NULL THEN 1 ELSE 0 END
FROM pg_locks
WHERE locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation = to_regclass(CAST(:table AS text))
    AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND granted;

-- name: numbers_in_advance
-- How many numbers each session draws at once: more than 1 are given to rows long after they were drawn.
SELECT COALESCE(max(seqcache), 1)
FROM pg_sequence
WHERE seqrelid = CAST(pg_get_serial_sequence(CAST(:table AS text), 'seq') AS regclass);
