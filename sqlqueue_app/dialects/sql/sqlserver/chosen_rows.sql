-- Statements for selected rows of a queue table on SQL Server. {table} is the quoted [catalog].[schema].[table].

-- name: headers_of_rows
-- The headers of the rows with these row versions. {row_versions} is a list of integers. Skips locked rows.
SELECT
    RowVersion,
    Headers
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion IN ({row_versions});

-- name: take
-- Deletes and returns the rows with these row versions, with their remaining lifetime in milliseconds. Skips locked rows.
-- The lifetime is clamped to the range of an int, about 24 days either way.
DECLARE @NOCOUNT VARCHAR(3) = 'OFF';
IF ( (512 & @@OPTIONS) = 512 ) SET @NOCOUNT = 'ON';
SET NOCOUNT ON;
WITH message AS (
    SELECT *
    FROM {table} WITH (UPDLOCK, READPAST, ROWLOCK)
    WHERE RowVersion IN ({row_versions})
)
DELETE FROM message
OUTPUT
    deleted.Id,
    {correlation_id},
    {reply_to_address},
    CASE
        WHEN deleted.Expires < DATEADD(DAY, -24, GETUTCDATE()) THEN -2147483647
        WHEN deleted.Expires > DATEADD(DAY, 24, GETUTCDATE()) THEN 2147483647
        ELSE DATEDIFF(MS, GETUTCDATE(), deleted.Expires)
    END,
    deleted.Headers,
    deleted.Body,
    deleted.RowVersion;
IF (@NOCOUNT = 'ON') SET NOCOUNT ON;
IF (@NOCOUNT = 'OFF') SET NOCOUNT OFF;

-- name: remove
-- As `take`, but returns only the row versions.
DECLARE @NOCOUNT VARCHAR(3) = 'OFF';
IF ( (512 & @@OPTIONS) = 512 ) SET @NOCOUNT = 'ON';
SET NOCOUNT ON;
WITH message AS (
    SELECT RowVersion
    FROM {table} WITH (UPDLOCK, READPAST, ROWLOCK)
    WHERE RowVersion IN ({row_versions})
)
DELETE FROM message
OUTPUT deleted.RowVersion;
IF (@NOCOUNT = 'ON') SET NOCOUNT ON;
IF (@NOCOUNT = 'OFF') SET NOCOUNT OFF;

-- name: free_rows
-- Those of these row versions that no other transaction has locked.
SELECT RowVersion
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion IN ({row_versions});
