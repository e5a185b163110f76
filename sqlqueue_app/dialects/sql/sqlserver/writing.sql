-- Statements with which Spark writes messages, on SQL Server: each task fills its own staging table, and one transaction moves all
-- rows into the queue.

-- name: create_staging
CREATE TABLE {table} (
    position bigint NOT NULL,
    id nvarchar(400) NOT NULL,
    correlation_id nvarchar(max) NULL,
    reply_to_address nvarchar(max) NULL,
    headers nvarchar(max) NOT NULL,
    body varbinary(max) NOT NULL,
    time_to_be_received_ms bigint NULL,
    delay_ms bigint NULL
);

-- name: stage_row
INSERT INTO {table} (position, id, correlation_id, reply_to_address, headers, body, time_to_be_received_ms, delay_ms)
VALUES (
    :position, :id, :correlation_id, :reply_to_address, :headers, CAST(:body AS varbinary(max)),
    CAST(:time_to_be_received_ms AS bigint), CAST(:delay_ms AS bigint)
);

-- name: move_staged
-- {columns} and {values} match the columns of the table. ORDER BY, because rows are numbered in the order of the INSERT.
INSERT INTO {table} ({columns})
SELECT {values}
FROM {staging}
WHERE delay_ms IS NULL
ORDER BY position;

-- name: move_staged_delayed
-- DATEADD takes a 32-bit integer, which holds 24 days in milliseconds, so whole days are added separately.
INSERT INTO {table} (Headers, Body, Due)
SELECT headers, body, DATEADD(ms, CAST(delay_ms % 86400000 AS int), DATEADD(day, CAST(delay_ms / 86400000 AS int), GETUTCDATE()))
FROM {staging}
WHERE delay_ms IS NOT NULL
ORDER BY position;

-- name: create_written
-- The last batch that each streaming query has written.
IF OBJECT_ID(N'{literal}', N'U') IS NULL CREATE TABLE {table} (
    query nvarchar(200) PRIMARY KEY,
    batch bigint NOT NULL
);

-- name: claim_batch
-- Returns a row if the batch is new, none if this or a later batch was written. HOLDLOCK makes a second writer of the batch wait.
MERGE {table} WITH (HOLDLOCK) AS written
USING (SELECT :query AS query, CAST(:batch AS bigint) AS batch) AS wanted
ON written.query = wanted.query
WHEN MATCHED AND written.batch < wanted.batch THEN UPDATE SET batch = wanted.batch
WHEN NOT MATCHED THEN INSERT (query, batch) VALUES (wanted.query, wanted.batch)
OUTPUT inserted.batch;;
