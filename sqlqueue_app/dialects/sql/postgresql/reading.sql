-- Statements with which Spark reads a whole queue table, on PostgreSQL. {table} is the quoted "schema"."table".
-- They are sent as text without parameters, because COPY streams the results and takes none.

-- name: read_rows
SELECT
{columns}
FROM {table}
WHERE seq BETWEEN {lowest} AND {highest}{conditions};

-- name: row_version_bounds
-- The lowest and the highest row version, read from the index.
SELECT
    (SELECT min(seq) FROM {table}),
    (SELECT max(seq) FROM {table});

-- name: count_range
-- The number of rows in a range, at most {limit}, and the last row version counted.
SELECT count(*), max(head.seq)
FROM (
    SELECT seq FROM {table}
    WHERE seq BETWEEN {lowest} AND {highest}
    ORDER BY seq
    LIMIT {limit}
) AS head;

-- name: row_version_after
-- The row version at offset {places} after {after}, up to {highest}.
SELECT seq FROM {table}
WHERE seq > {after} AND seq <= {highest}
ORDER BY seq
OFFSET {places}
LIMIT 1;

-- name: writers
-- Transactions that may have drawn row versions for rows that are not visible yet: an INSERT takes one of these locks before it
-- draws one. A prepared transaction has no process.
SELECT virtualtransaction, CASE WHEN pid IS NULL THEN 1 ELSE 0 END
FROM pg_locks
WHERE locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation = to_regclass(CAST(:table AS text))
    AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND granted;

-- name: drawn_in_advance
-- How many row versions each session draws at once (CACHE). If more than 1, a row may get one that was drawn long before.
SELECT COALESCE(max(seqcache), 1)
FROM pg_sequence
WHERE seqrelid = CAST(pg_get_serial_sequence(CAST(:table AS text), 'seq') AS regclass);
