-- Statements for chosen rows of a queue table on SQL Server. {table} is the quoted [catalog].[schema].[table].

-- name: look_at
-- The headers of the rows of these numbers, that are there and that nobody holds. {row_versions} is a list of whole numbers.
SELECT
    RowVersion,
    Headers
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion IN ({row_versions});

-- name: take
-- The rows of these numbers, but those that somebody else holds; with what is left of their lives in milliseconds, which an int holds.
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
-- The same without reading them; returns their numbers.
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
