-- Statements for rows of a table of delayed messages that somebody looks at or has chosen, on SQL Server. A row is told by its
-- RowVersion. Rows that somebody holds are stepped over.

-- name: list_delayed
-- The first that will be due: RowVersion, due, in how many seconds, headers, length of the body. The index on Due knows no RowVersion:
-- it gives the first with all that are due with the last of them, which are few to sort.
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
-- The same after one of them.
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
-- Those of these numbers that are there, with the begin of the body. {ids} is a list of whole numbers.
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
-- The same with the whole body, taken out.
WITH message AS (
    SELECT *
    FROM {table} WITH (UPDLOCK, READPAST, ROWLOCK)
    WHERE RowVersion IN ({ids})
)
DELETE FROM message
OUTPUT deleted.RowVersion, deleted.Headers, deleted.Body;

-- name: remove_delayed
-- The same without reading them; returns their numbers.
WITH message AS (
    SELECT RowVersion
    FROM {table} WITH (UPDLOCK, READPAST, ROWLOCK)
    WHERE RowVersion IN ({ids})
)
DELETE FROM message
OUTPUT deleted.RowVersion;
