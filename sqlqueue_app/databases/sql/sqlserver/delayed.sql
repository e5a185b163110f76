-- Statements of a table of delayed messages on SQL Server (transport reference 7.2).
-- Style 126 reads ISO text alike under every language and date format of the session.

-- name: delay
INSERT INTO {table} (Headers, Body, Due)
VALUES (:headers, :body, CONVERT(datetime, :due, 126));

-- name: any_due
SELECT CASE WHEN EXISTS (
    SELECT 1 FROM {table} WITH (READPAST, READCOMMITTEDLOCK) WHERE Due <= GETUTCDATE()
) THEN 1 ELSE 0 END;

-- name: take_due
WITH message AS (
    SELECT TOP (CAST(:limit AS int)) *
    FROM {table} WITH (UPDLOCK, READPAST, ROWLOCK)
    WHERE Due <= GETUTCDATE()
    ORDER BY Due ASC
)
DELETE FROM message
OUTPUT deleted.Headers, deleted.Body;
