-- Statements with which Spark writes messages, on SQLite: each task fills its own staging table, and one transaction moves all rows
-- into the queue.

-- name: create_staging
CREATE TABLE {table} (
    position integer PRIMARY KEY,
    id text NOT NULL,
    correlation_id text NULL,
    reply_to_address text NULL,
    headers text NOT NULL,
    body blob NOT NULL,
    time_to_be_received_ms integer NULL,
    delay_ms integer NULL
);

-- name: stage_row
INSERT INTO {table} (position, id, correlation_id, reply_to_address, headers, body, time_to_be_received_ms, delay_ms)
VALUES (:position, :id, :correlation_id, :reply_to_address, :headers, :body, :time_to_be_received_ms, :delay_ms);

-- name: move_staged
-- {columns} and {values} match the columns of the table. ORDER BY, because rows are numbered in the order of the INSERT.
INSERT INTO {table} ({columns})
SELECT {values}
FROM {staging}
WHERE delay_ms IS NULL
ORDER BY position;

-- name: move_staged_delayed
INSERT INTO {table} (Headers, Body, Due)
SELECT headers, body, strftime('%Y-%m-%d %H:%M:%f', 'now', (delay_ms / 1000.0) || ' seconds')
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
INSERT INTO {table} (query, batch)
VALUES (:query, :batch)
ON CONFLICT (query) DO UPDATE SET batch = excluded.batch WHERE batch < excluded.batch
RETURNING batch;
