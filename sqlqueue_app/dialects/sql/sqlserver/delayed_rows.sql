-- Statements for browsing a table of delayed messages and for selected rows of it, on SQL Server. A row is identified by its
-- RowVersion. All of them skip locked rows.

-- name: list_delayed
-- The messages due first: RowVersion, due time, seconds until then, headers, no body, length of the body. The index on Due does not
-- contain RowVersion: WITH TIES adds all rows due at the same time as the last one, which are few to sort.
SELECT TOP (CAST(:limit AS int))
    RowVersion,
    CONVERT(varchar(30), Due, 126),
    CAST(DATEDIFF_BIG(millisecond, GETUTCDATE(), Due) AS float) / 1000.0,
    Headers,
    NULL,
    DATALENGTH(Body)
FROM (
    SELECT TOP (CAST(:limit AS int)) WITH TIES RowVersion, Due, Headers, Body
    FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    ORDER BY Due ASC
) AS first_due
ORDER BY Due ASC, RowVersion ASC;

-- name: list_delayed_after
-- As `list_delayed`, after a given row.
SELECT TOP (CAST(:limit AS int))
    RowVersion,
    CONVERT(varchar(30), Due, 126),
    CAST(DATEDIFF_BIG(millisecond, GETUTCDATE(), Due) AS float) / 1000.0,
    Headers,
    NULL,
    DATALENGTH(Body)
FROM (
    SELECT TOP (CAST(:limit AS int)) WITH TIES RowVersion, Due, Headers, Body
    FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    WHERE Due >= CONVERT(datetime, CAST(:due AS varchar(30)), 126)
        AND (Due > CONVERT(datetime, CAST(:due AS varchar(30)), 126) OR RowVersion > CAST(:place AS bigint))
    ORDER BY Due ASC
) AS first_due
ORDER BY Due ASC, RowVersion ASC;

-- name: read_delayed
-- The rows with these row versions, with the beginning of the body. {ids} is a list of integers.
SELECT
    RowVersion,
    CONVERT(varchar(30), Due, 126),
    CAST(DATEDIFF_BIG(millisecond, GETUTCDATE(), Due) AS float) / 1000.0,
    Headers,
    SUBSTRING(Body, 1, CAST(:body_limit AS int)),
    DATALENGTH(Body)
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion IN ({ids})
ORDER BY Due ASC, RowVersion ASC;

-- name: take_delayed
-- Deletes and returns the rows with these row versions, with the whole body.
WITH message AS (
    SELECT *
    FROM {table} WITH (UPDLOCK, READPAST, ROWLOCK)
    WHERE RowVersion IN ({ids})
)
DELETE FROM message
OUTPUT deleted.RowVersion, deleted.Headers, deleted.Body;

-- name: remove_delayed
-- As `take_delayed`, but returns only the row versions.
WITH message AS (
    SELECT RowVersion
    FROM {table} WITH (UPDLOCK, READPAST, ROWLOCK)
    WHERE RowVersion IN ({ids})
)
DELETE FROM message
OUTPUT deleted.RowVersion;
