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
