-- Statements with which Spark reads a whole queue table, on SQL Server. {table} is the quoted [catalog].[schema].[table].
-- Row versions are cast, because a large literal is not a bigint, and no index could be used.
-- READPAST skips locked rows, as in every query of a queue: reads do not wait, and nothing waits for them.

-- name: read_rows
SELECT
{columns}
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion BETWEEN CAST({lowest} AS bigint) AND CAST({highest} AS bigint){conditions};

-- name: row_version_bounds
-- The lowest and the highest row version, read from the index.
SELECT
    (SELECT MIN(RowVersion) FROM {table} WITH (READPAST, READCOMMITTEDLOCK)),
    (SELECT MAX(RowVersion) FROM {table} WITH (READPAST, READCOMMITTEDLOCK));

-- name: count_range
-- The number of rows in a range, at most {limit}, and the last row version counted.
SELECT COUNT(*), MAX(head.RowVersion)
FROM (
    SELECT TOP ({limit}) RowVersion FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    WHERE RowVersion BETWEEN CAST({lowest} AS bigint) AND CAST({highest} AS bigint)
    ORDER BY RowVersion ASC
) AS head;

-- name: row_version_after
-- The row version at offset {places} after {after}, up to {highest}.
SELECT RowVersion FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion > CAST({after} AS bigint) AND RowVersion <= CAST({highest} AS bigint)
ORDER BY RowVersion ASC
OFFSET {places} ROWS FETCH NEXT 1 ROWS ONLY;

-- name: writers
-- Transactions that may have drawn row versions for rows that are not visible yet: an INSERT takes one of these locks before it
-- draws one.
SELECT CAST(request_owner_id AS nvarchar(20)), 0
FROM sys.dm_tran_locks
WHERE resource_type = 'OBJECT'
    AND resource_database_id = DB_ID()
    AND resource_associated_entity_id = OBJECT_ID(CAST(:table AS nvarchar(800)), N'U')
    AND request_mode IN ('IX', 'SIX', 'X', 'BU')
    AND request_status = 'GRANT';
