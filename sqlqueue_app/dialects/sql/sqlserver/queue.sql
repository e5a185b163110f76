-- Statements of a queue table on SQL Server. {table} is the quoted [catalog].[schema].[table].
-- Each statement that counts its rows on the way saves NOCOUNT and puts it back.

-- name: send
-- One or many rows; {columns} and {rows} follow the columns that the table has.
DECLARE @NOCOUNT VARCHAR(3) = 'OFF';
IF ( (512 & @@OPTIONS) = 512 ) SET @NOCOUNT = 'ON';
SET NOCOUNT ON;
INSERT INTO {table} ({columns})
VALUES {rows};
IF (@NOCOUNT = 'ON') SET NOCOUNT ON;
IF (@NOCOUNT = 'OFF') SET NOCOUNT OFF;

-- name: receive
-- Deletes the lowest rows that nobody holds and returns them. READPAST steps over rows that other receives hold. {before} and {after}
-- are nothing, or the beginning of the transaction and `keep_what_was_received`.
DECLARE @NOCOUNT VARCHAR(3) = 'OFF';
IF ( (512 & @@OPTIONS) = 512 ) SET @NOCOUNT = 'ON';
SET NOCOUNT ON;
{before}WITH message AS (
    SELECT TOP ({limit}) *
    FROM {table} WITH (UPDLOCK, READPAST, ROWLOCK)
    ORDER BY RowVersion ASC
)
DELETE FROM message
OUTPUT
    deleted.Id,
    {correlation_id},
    {reply_to_address},
    CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END,
    deleted.Headers,
    deleted.Body,
    deleted.RowVersion;{after}
IF (@NOCOUNT = 'ON') SET NOCOUNT ON;
IF (@NOCOUNT = 'OFF') SET NOCOUNT OFF;

-- name: keep_what_was_received
-- Directly after the receive: no transaction where there was nothing, so that an idle poll is one round trip, else the savepoint.
-- IMPLICIT_TRANSACTIONS: if an error rolls everything back on the server, later statements begin a transaction, which is not committed.
IF @@ROWCOUNT = 0 ROLLBACK TRANSACTION
ELSE
BEGIN
    SAVE TRANSACTION sqlqueue;
    SET IMPLICIT_TRANSACTIONS ON;
END;

-- name: peek
-- The first rows after a RowVersion, or the last ones at and before it, without taking or waiting for any.
SELECT TOP (CAST(:limit AS int))
    RowVersion,
    Id,
    {correlation_id},
    {reply_to_address},
    Expires,
    CASE WHEN Expires <= GETUTCDATE() THEN 1 ELSE 0 END,
    Headers,
    SUBSTRING(Body, 1, CAST(:body_limit AS int)),
    DATALENGTH(Body)
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion {compared} CAST(:place AS bigint)
ORDER BY RowVersion {order};

-- name: row_versions
-- The numbers alone of the first rows after one, without those that somebody holds.
SELECT TOP (CAST(:limit AS int)) RowVersion
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion > CAST(:after AS bigint)
ORDER BY RowVersion ASC;

-- name: row_version_at
-- The number of the row at a position, counted from 0.
SELECT RowVersion FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
ORDER BY RowVersion ASC
OFFSET CAST(:position AS bigint) ROWS FETCH NEXT 1 ROWS ONLY;

-- name: find_ids
-- The rows of these ids among the first rows: nothing else leads to an id. {ids} is a list of quoted ids.
SELECT head.RowVersion, head.Id
FROM (
    SELECT TOP (CAST(:limit AS int)) RowVersion, Id
    FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    ORDER BY RowVersion ASC
) AS head
WHERE head.Id IN ({ids});

-- name: count
-- Rows, rows with an expiry and expired rows among the first rows of the table; never more than limit rows are read.
SELECT
    COUNT(*),
    COUNT(head.Expires),
    COUNT(CASE WHEN head.Expires <= GETUTCDATE() THEN 1 END)
FROM (
    SELECT TOP (CAST(:limit AS int)) Expires
    FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    ORDER BY RowVersion ASC
) AS head;

-- name: count_expiring
-- The same two numbers through the index on Expires, each bounded.
SELECT
    (
        SELECT COUNT(*) FROM (
            SELECT TOP (CAST(:limit AS int)) Expires FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
            WHERE Expires IS NOT NULL ORDER BY Expires ASC
        ) AS expiring
    ),
    (
        SELECT COUNT(*) FROM (
            SELECT TOP (CAST(:limit AS int)) Expires FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
            WHERE Expires <= GETUTCDATE() ORDER BY Expires ASC
        ) AS expired
    );

-- name: estimate, waiting
-- An upper bound of the number of rows from the two ends of the index, without a scan: the peek of the transport.
SELECT MAX(RowVersion) - MIN(RowVersion) + 1
FROM {table} WITH (READPAST, READCOMMITTEDLOCK);

-- name: purge
DELETE FROM {table};

-- name: purge_expired
-- One batch; rows that a receive holds are stepped over.
DELETE FROM {table}
WHERE RowVersion IN (
    SELECT TOP (CAST(:limit AS int)) RowVersion
    FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    WHERE Expires <= GETUTCDATE()
);

-- name: begin
-- Twice, for a COMMIT of somebody else then commits nothing, and a transaction that is not ours shows by its count, which is 1.
BEGIN TRANSACTION;
BEGIN TRANSACTION;

-- name: commit
-- Returns 2 if our transaction is committed; else 1 if another was open, or ours was doomed, which is rolled back, and 0 if none was.
DECLARE @open int = @@TRANCOUNT;
IF @open = 2 AND XACT_STATE() = 1
BEGIN
    COMMIT TRANSACTION;
    COMMIT TRANSACTION;
END
ELSE IF @open > 0
BEGIN
    ROLLBACK TRANSACTION;
    SET @open = 1;
END;
SET IMPLICIT_TRANSACTIONS OFF;
SELECT @open;

-- name: roll_back
-- What is open, if anything.
IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
SET IMPLICIT_TRANSACTIONS OFF;

-- name: save_transaction
-- Returns the count of `transaction_count`; sets the savepoint in our transaction alone.
IF @@TRANCOUNT = 2 SAVE TRANSACTION sqlqueue;
SELECT @@TRANCOUNT;

-- name: rollback_to_saved
-- A rollback to a savepoint also removes it; a second one would fail with error 6401. Returns 1 if it was done.
IF @@TRANCOUNT = 2 AND XACT_STATE() = 1
BEGIN
    ROLLBACK TRANSACTION sqlqueue;
    SAVE TRANSACTION sqlqueue;
    SELECT 1;
END
ELSE SELECT 0;

-- name: transaction_count
-- 2 in our transaction, 1 after a COMMIT in it or in one that began after it, 0 where there is none.
SELECT @@TRANCOUNT;
