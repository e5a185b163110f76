-- Reading a whole queue table on SQL Server, as Spark does it. {table} is the quoted [catalog].[schema].[table].
-- READPAST: rows that somebody holds are stepped over, as by every look at a queue; nobody is waited for and nobody waits.

-- name: read_rows
SELECT
{columns}
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion BETWEEN {lowest} AND {highest}{conditions};

-- name: row_version_bounds
-- The two ends, from the index.
SELECT
    (SELECT MIN(RowVersion) FROM {table} WITH (READPAST, READCOMMITTEDLOCK)),
    (SELECT MAX(RowVersion) FROM {table} WITH (READPAST, READCOMMITTEDLOCK));

-- name: look_at_range
-- How many rows are in a range, at most {limit}, and the last that was counted.
SELECT COUNT(*), MAX(head.RowVersion)
FROM (
    SELECT TOP ({limit}) RowVersion FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    WHERE RowVersion BETWEEN {lowest} AND {highest}
    ORDER BY RowVersion ASC
) AS head;
