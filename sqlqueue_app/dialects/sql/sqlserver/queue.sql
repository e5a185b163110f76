-- Statements of a queue table on SQL Server. {table} is the quoted [catalog].[schema].[table]. A row version is a RowVersion.
-- Statements that would report intermediate row counts turn NOCOUNT on, and restore it afterwards.

-- name: send
-- One or more rows; {columns} and {rows} match the columns of the table.
DECLARE @NOCOUNT VARCHAR(3) = 'OFF';
IF ( (512 & @@OPTIONS) = 512 ) SET @NOCOUNT = 'ON';
SET NOCOUNT ON;
INSERT INTO {table} ({columns})
VALUES {rows};
IF (@NOCOUNT = 'ON') SET NOCOUNT ON;
IF (@NOCOUNT = 'OFF') SET NOCOUNT OFF;

-- name: receive
-- Deletes and returns the lowest unlocked rows; READPAST skips locked ones. {before} and {after} are empty, or `begin` and
-- `keep_what_was_received`.
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

-- name: receive_keyed
-- Begins, and runs `receive_this` as {inner}, a text whose plan is kept. {tried} has 19 digits of a RowVersion and 16 of a lock for each
-- row to try. As after `receive`, there is a transaction with a savepoint if a row was received.
DECLARE @NOCOUNT VARCHAR(3) = 'OFF';
IF ( (512 & @@OPTIONS) = 512 ) SET @NOCOUNT = 'ON';
SET NOCOUNT ON;
DECLARE @tried varchar(4000) = '{tried}', @found int = 0;
BEGIN TRANSACTION;
BEGIN TRANSACTION;
EXEC sp_executesql N'{inner}', N'@tried varchar(4000), @found int OUTPUT', @tried, @found OUTPUT;
IF @found = 0 ROLLBACK TRANSACTION
ELSE
BEGIN
    SAVE TRANSACTION sqlqueue;
    SET IMPLICIT_TRANSACTIONS ON;
END;
IF (@NOCOUNT = 'ON') SET NOCOUNT ON;
IF (@NOCOUNT = 'OFF') SET NOCOUNT OFF;

-- name: receive_this
-- Takes the first of the tried rows that is in the table and whose lock is free; the lock comes before the row. Then returns the rows
-- before it that no session has. APPLOCK_TEST reports a taken lock without the warning of sp_getapplock.
DECLARE @at int = 1, @got int = -1, @row bigint, @key nvarchar(255);
WHILE @got < 0 AND @at < LEN(@tried)
BEGIN
    SET @row = CAST(SUBSTRING(@tried, @at, 19) AS bigint);
    SET @key = N'sqlqueue.' + SUBSTRING(@tried, @at + 19, 16);
    IF EXISTS (SELECT 1 FROM {table} WITH (READPAST, READCOMMITTEDLOCK) WHERE RowVersion = @row)
        AND APPLOCK_TEST(N'public', @key, N'Exclusive', N'Transaction') = 1
        EXEC @got = sp_getapplock @Resource = @key, @LockMode = N'Exclusive', @LockOwner = N'Transaction', @LockTimeout = 0;
    SET @at = @at + 35;
END;
WITH message AS (
    SELECT TOP (1) *
    FROM {table} WITH (UPDLOCK, READPAST, ROWLOCK)
    WHERE RowVersion = @row AND @got >= 0
)
DELETE FROM message
OUTPUT
    deleted.Id,
    {correlation_id},
    {reply_to_address},
    CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END,
    deleted.Headers,
    deleted.Body,
    deleted.RowVersion;
SET @found = @@ROWCOUNT;
IF @found > 0 SELECT RowVersion FROM {table} WITH (READPAST, READCOMMITTEDLOCK) WHERE RowVersion < @row;

-- name: keep_what_was_received
-- Runs directly after the receive. Without rows it ends the transaction, so that an empty poll is one round trip; with rows it sets
-- the savepoint. IMPLICIT_TRANSACTIONS: if an error rolls the transaction back on the server, later statements begin another one,
-- which is never committed.
IF @@ROWCOUNT = 0 ROLLBACK TRANSACTION
ELSE
BEGIN
    SAVE TRANSACTION sqlqueue;
    SET IMPLICIT_TRANSACTIONS ON;
END;

-- name: peek
-- The first rows after a row version, or the last rows up to and including it. Skips locked rows.
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
-- The row versions of the first rows after a row version. Skips locked rows.
SELECT TOP (CAST(:limit AS int)) RowVersion
FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion > CAST(:after AS bigint)
ORDER BY RowVersion ASC;

-- name: row_version_at
-- The row version at a position, counted from 0.
SELECT RowVersion FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
ORDER BY RowVersion ASC
OFFSET CAST(:position AS bigint) ROWS FETCH NEXT 1 ROWS ONLY;

-- name: find_ids
-- The rows with these ids among the first rows, because no index leads to an id. {ids} is a list of quoted ids.
SELECT head.RowVersion, head.Id
FROM (
    SELECT TOP (CAST(:limit AS int)) RowVersion, Id
    FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    ORDER BY RowVersion ASC
) AS head
WHERE head.Id IN ({ids});

-- name: count
-- Rows, rows with an expiry and expired rows, among the first rows. Never reads more rows than the limit.
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
-- Rows with an expiry and expired rows, through the index on Expires; each count stops at the limit.
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
-- One batch. Skips locked rows.
DELETE FROM {table}
WHERE RowVersion IN (
    SELECT TOP (CAST(:limit AS int)) RowVersion
    FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    WHERE Expires <= GETUTCDATE()
);

-- name: begin
-- Twice, so that a COMMIT in a handler's own SQL commits nothing, and @@TRANCOUNT 1 identifies a transaction that is not ours.
BEGIN TRANSACTION;
BEGIN TRANSACTION;

-- name: commit
-- Returns 2 if it committed our transaction, 1 if it rolled back a foreign or a doomed one, and 0 if none was open.
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
IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
SET IMPLICIT_TRANSACTIONS OFF;

-- name: save_transaction
-- Sets the savepoint, but only in our transaction. Returns the same as `transaction_count`.
IF @@TRANCOUNT = 2 SAVE TRANSACTION sqlqueue;
SELECT @@TRANCOUNT;

-- name: rollback_to_saved
-- Returns 1 if it rolled back. That also removes the savepoint, so it is set again: a second rollback would fail with error 6401.
IF @@TRANCOUNT = 2 AND XACT_STATE() = 1
BEGIN
    ROLLBACK TRANSACTION sqlqueue;
    SAVE TRANSACTION sqlqueue;
    SELECT 1;
END
ELSE SELECT 0;

-- name: transaction_count
-- 2 in our transaction, 1 after a COMMIT in it or in a transaction that began after it, 0 without a transaction.
SELECT @@TRANCOUNT;
