-- Statements of the pipeline for many rows of a queue table on SQL Server. {table} is the quoted [catalog].[schema].[table].

-- name: remove_ranges
-- Deletes these ranges of row versions; {ranges} is a list of (lowest, highest). The caller keeps each statement below
-- 5,000 rows, because from that number on the server escalates row locks to a table lock, and senders would wait.
DELETE queue
FROM {table} AS queue WITH (ROWLOCK)
INNER JOIN (VALUES {ranges}) AS wanted (Lowest, Highest)
    ON queue.RowVersion BETWEEN wanted.Lowest AND wanted.Highest;

-- name: drawn_row_version
-- The last row version drawn, even if the row is gone; the first one if none was drawn; NULL if unknown.
SELECT CAST(IDENT_CURRENT(CAST(:table AS nvarchar(800))) AS bigint);

-- name: row_ids
-- The row versions and ids of the first rows after a row version. Skips locked rows.
SELECT TOP (CAST(:limit AS int))
    RowVersion,
    Id
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion > CAST(:after AS bigint)
ORDER BY RowVersion ASC;
