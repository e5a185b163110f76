-- Statements of the pipeline for many rows of a queue table on SQL Server. {table} is the quoted [catalog].[schema].[table].

-- name: remove_ranges
-- Deletes these ranges of row numbers; {ranges} is a list of (lowest, highest). The caller keeps each statement below
-- 5,000 rows, because from that number on the server escalates row locks to a table lock, and senders would wait.
DELETE queue
FROM {table} AS queue WITH (ROWLOCK)
INNER JOIN (VALUES {ranges}) AS wanted (Lowest, Highest)
    ON queue.RowVersion BETWEEN wanted.Lowest AND wanted.Highest;

-- name: numbers_drawn
-- The last number given to a row, even if the row is gone; the first number if none was given; NULL if unknown.
SELECT CAST(IDENT_CURRENT(CAST(:table AS nvarchar(800))) AS bigint);

-- name: row_ids
-- The numbers and ids of the first rows after a row number. Skips locked rows.
SELECT TOP (CAST(:limit AS int))
    RowVersion,
    Id
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion > CAST(:after AS bigint)
ORDER BY RowVersion ASC;
