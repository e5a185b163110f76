-- Statements with which Spark reads a whole queue table, on SQLite. {table} is the quoted name.

-- name: read_rows
-- In batches, so that a waiting writer gets its turn between two of them.
SELECT
{columns}
FROM {table}
WHERE RowVersion BETWEEN {lowest} AND {highest}{conditions}
ORDER BY RowVersion
LIMIT {limit};

-- name: row_version_bounds
-- The lowest and the highest row version, each in its own SELECT: one SELECT of both would scan the whole table.
SELECT
    (SELECT min(RowVersion) FROM {table}),
    (SELECT max(RowVersion) FROM {table});

-- name: count_range
-- The number of rows in a range, at most {limit}, and the last row version counted.
SELECT count(*), max(head.RowVersion)
FROM (
    SELECT RowVersion FROM {table}
    WHERE RowVersion BETWEEN {lowest} AND {highest}
    ORDER BY RowVersion
    LIMIT {limit}
) AS head;

-- name: row_version_after
-- The row version at offset {places} after {after}, up to {highest}.
SELECT RowVersion FROM {table}
WHERE RowVersion > {after} AND RowVersion <= {highest}
ORDER BY RowVersion
LIMIT 1 OFFSET {places};
