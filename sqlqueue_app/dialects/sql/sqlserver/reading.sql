-- Reading a whole queue table on SQL Server, as Spark does it. {table} is the quoted [catalog].[schema].[table].
-- Numbers are cast: a large one alone is no bigint, and no index would serve.
-- READPAST: rows that somebody holds are stepped over, as by every look at a queue; nobody is waited for and nobody waits.

-- name: read_rows
SELECT
{columns}
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion BETWEEN CAST({lowest} AS bigint) AND CAST({highest} AS bigint){conditions};

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
    WHERE RowVersion BETWEEN CAST({lowest} AS bigint) AND CAST({highest} AS bigint)
    ORDER BY RowVersion ASC
) AS head;

-- name: row_version_after
-- The number of the row so many places after one, not beyond another.
SELECT RowVersion FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion > CAST({after} AS bigint) AND RowVersion <= CAST({highest} AS bigint)
ORDER BY RowVersion ASC
OFFSET {places} ROWS FETCH NEXT 1 ROWS ONLY;

-- name: writers
-- The transactions that may have drawn numbers for rows that nobody sees yet: whoever inserts holds such a lock before he draws one.
SELECT CAST(request_owner_id AS nvarchar(20)), 0
FROM sys.dm_tran_locks
WHERE resource_type = 'OBJECT'
    AND resource_database_id = DB_ID()
    AND resource_associated_entity_id = OBJECT_ID(CAST(:table AS nvarchar(800)), N'U')
    AND request_mode IN ('IX', 'SIX', 'X', 'BU')
    AND request_status = 'GRANT';
