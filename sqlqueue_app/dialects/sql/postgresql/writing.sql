-- Messages that Spark writes, on PostgreSQL: each task fills a table of its own, and one transaction moves them all into the queue.

-- name: create_staging
-- Without a log: what a broken server loses of it was never sent.
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
-- {columns} and {values} follow the columns that the table has. In the order of the rows, by which they are numbered.
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
-- One row if the batch is new; none if it, or a later one, was written.
INSERT INTO {table} AS written (query, batch)
VALUES (:query, CAST(:batch AS bigint))
ON CONFLICT (query) DO UPDATE SET batch = excluded.batch WHERE written.batch < excluded.batch
RETURNING batch;
