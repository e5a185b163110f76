-- Statements with which Spark writes messages, on PostgreSQL: each task fills its own staging table, and one transaction moves all
-- rows into the queue.

-- name: create_staging
-- Unlogged: rows that a server crash loses were never sent.
CREATE UNLOGGED TABLE {table} (
    position bigint NOT NULL,
    id text NOT NULL,
    correlation_id text NULL,
    reply_to_address text NULL,
    headers text NOT NULL,
    body bytea NOT NULL,
    time_to_be_received_ms bigint NULL,
    delay_ms bigint NULL
);

-- name: move_staged
-- {columns} and {values} match the columns of the table. ORDER BY, because rows are numbered in the order of the INSERT.
INSERT INTO {table} ({columns})
SELECT {values}
FROM {staging}
WHERE delay_ms IS NULL
ORDER BY position;

-- name: move_staged_delayed
INSERT INTO {table} (headers, body, due)
SELECT headers, body, clock_timestamp() + delay_ms * interval '1 millisecond'
FROM {staging}
WHERE delay_ms IS NOT NULL
ORDER BY position;

-- name: create_written
-- The last batch that each streaming query has written.
CREATE TABLE IF NOT EXISTS {table} (
    query varchar(200) PRIMARY KEY,
    batch bigint NOT NULL
);

-- name: claim_batch
-- Returns a row if the batch is new, none if this or a later batch was written.
INSERT INTO {table} AS written (query, batch)
VALUES (:query, CAST(:batch AS bigint))
ON CONFLICT (query) DO UPDATE SET batch = excluded.batch WHERE written.batch < excluded.batch
RETURNING batch;
