-- Statements of the pipeline for many rows of a queue table on SQL Server. {table} is the quoted [catalog].[schema].[table].

-- name: remove_ranges
-- The rows of these numbers; {ranges} is a list of (lowest, highest). The caller keeps it below 5,000 rows: from there on the locks
-- of a statement become one of the table, and senders would wait.
DELETE queue
FROM {table} AS queue WITH (ROWLOCK)
INNER JOIN (VALUES {ranges}) AS wanted (Lowest, Highest)
    ON queue.RowVersion BETWEEN wanted.Lowest AND wanted.Highest;

-- name: numbers_drawn
-- The last number that was given to a row, also of one that is gone; the first one where none was given; NULL where nothing tells.
SELECT CAST(IDENT_CURRENT(CAST(:table AS nvarchar(800))) AS bigint);

-- name: row_ids
-- The numbers and ids of the first rows after a number, without those that somebody holds.
SELECT TOP (CAST(:limit AS int))
    RowVersion,
    Id
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion > CAST(:after AS bigint)
ORDER BY RowVersion ASC;
