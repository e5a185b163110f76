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
-- Directly after the receive: the savepoint, or no transaction where there was nothing, so that an idle poll is one round trip.
IF @@ROWCOUNT = 0 ROLLBACK TRANSACTION ELSE SAVE TRANSACTION sqlqueue;

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
BEGIN TRANSACTION;

-- name: commit
-- Error 3902 where there is no transaction any more, 3930 where it can only be rolled back.
COMMIT TRANSACTION;

-- name: roll_back
-- What is open, if anything; returns 1 if there was.
DECLARE @open int = @@TRANCOUNT;
IF @open > 0 ROLLBACK TRANSACTION;
SELECT @open;

-- name: save_transaction
-- Error 628 where there is no transaction any more.
SAVE TRANSACTION sqlqueue;

-- name: rollback_to_saved
-- A rollback to a savepoint also removes it; a second one would fail with error 6401. Returns the state, as `transaction_state`.
IF XACT_STATE() = 1
BEGIN
    ROLLBACK TRANSACTION sqlqueue;
    SAVE TRANSACTION sqlqueue;
END;
SELECT XACT_STATE();

-- name: transaction_state
-- 1: usable, 0: none, -1: can only be rolled back.
SELECT XACT_STATE();
