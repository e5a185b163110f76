-- Statements of a table of delayed messages on SQL Server.
-- Style 126 parses ISO text regardless of the session's language and date format.

-- name: delay
INSERT INTO {table} (Headers, Body, Due)
VALUES {rows};

-- name: delay_row
-- A due time or a delay. DATEADD takes a 32-bit integer, which holds 24 days in milliseconds, so whole days are added separately.
(:headers, CAST(:body AS varbinary(max)), COALESCE(
    CONVERT(datetime, CAST(:due AS varchar(30)), 126),
    DATEADD(
        ms,
        CAST(CAST(:delay_ms AS bigint) % 86400000 AS int),
        DATEADD(day, CAST(CAST(:delay_ms AS bigint) / 86400000 AS int), GETUTCDATE())
    )
));

-- name: next_due
-- Seconds until the earliest due time: negative if it has passed, NULL if there is none. Reads the first index entry.
-- DATEDIFF in milliseconds overflows after 24 days, so longer differences are counted in days.
SELECT CASE
    WHEN ABS(CAST(DATEDIFF(day, GETUTCDATE(), MIN(Due)) AS bigint)) > 20
    THEN CAST(DATEDIFF(day, GETUTCDATE(), MIN(Due)) AS float) * 86400.0
    ELSE CAST(DATEDIFF(ms, GETUTCDATE(), MIN(Due)) AS float) / 1000.0
END
FROM (
    SELECT TOP (1) Due FROM {table} WITH (READPAST, READCOMMITTEDLOCK) ORDER BY Due ASC
) AS earliest;

-- name: count_delayed
-- All delayed messages, and those that are due; each count stops at the limit.
SELECT
    (SELECT COUNT(*) FROM (
        SELECT TOP (CAST(:limit AS int)) 1 AS one FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    ) AS counted),
    (SELECT COUNT(*) FROM (
        SELECT TOP (CAST(:limit AS int)) 1 AS one FROM {table} WITH (READPAST, READCOMMITTEDLOCK) WHERE Due <= GETUTCDATE()
    ) AS overdue);

-- name: take_due
WITH message AS (
    SELECT TOP (CAST(:limit AS int)) *
    FROM {table} WITH (UPDLOCK, READPAST, ROWLOCK)
    WHERE Due <= GETUTCDATE()
    ORDER BY Due ASC
)
DELETE FROM message
OUTPUT deleted.Headers, deleted.Body, deleted.Due;

-- name: peek_delayed
SELECT TOP (CAST(:limit AS int)) Headers, Body
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
ORDER BY Due ASC;

-- name: cancel
-- Scans the whole table: only the headers identify the messages. Skips locked rows.
DELETE FROM {table} WITH (READPAST, READCOMMITTEDLOCK, ROWLOCK) WHERE CHARINDEX(:one, Headers) > 0 AND CHARINDEX(:other, Headers) > 0;

-- name: bring_nearer
-- DATEADD takes a 32-bit integer, which holds 24 days in milliseconds, so whole days are subtracted separately.
UPDATE {table}
SET Due = DATEADD(
    ms,
    -CAST(CAST(:milliseconds AS bigint) % 86400000 AS int),
    DATEADD(day, -CAST(CAST(:milliseconds AS bigint) / 86400000 AS int), Due)
);
