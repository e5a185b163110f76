-- Reading a whole queue table on SQLite, as Spark does it. {table} is the quoted name.

-- name: read_rows
-- So many at a time: between the statements a writer that waits gets its turn.
SELECT
{columns}
FROM {table}
WHERE RowVersion BETWEEN {lowest} AND {highest}{conditions}
ORDER BY RowVersion
LIMIT {limit};

-- name: row_version_bounds
-- In one SELECT of its own each: together they are a scan of the whole table.
SELECT
    (SELECT min(RowVersion) FROM {table}),
    (SELECT max(RowVersion) FROM {table});

-- name: look_at_range
-- How many rows are in a range, at most {limit}, and the last that was counted.
SELECT count(*), max(head.RowVersion)
FROM (
    SELECT RowVersion FROM {table}
    WHERE RowVersion BETWEEN {lowest} AND {highest}
    ORDER BY RowVersion
    LIMIT {limit}
) AS head;

-- name: row_version_after
-- The number of the row so many places after one, not beyond another.
SELECT RowVersion FROM {table}
WHERE RowVersion > {after} AND RowVersion <= {highest}
ORDER BY RowVersion
LIMIT 1 OFFSET {places};
