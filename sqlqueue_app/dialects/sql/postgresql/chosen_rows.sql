-- Statements for selected rows of a queue table on PostgreSQL. {table} is the quoted "schema"."table".

-- name: headers_of_rows
-- The headers of the rows with these row versions. {row_versions} is a list of integers.
SELECT seq, headers
FROM {table}
WHERE seq IN ({row_versions});

-- name: take
-- Deletes and returns the rows with these row versions, with their remaining lifetime in milliseconds. Skips locked rows.
-- PostgreSQL cannot subtract from 'infinity'.
DELETE FROM {table}
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table}
    WHERE seq IN ({row_versions})
    FOR UPDATE SKIP LOCKED
))
RETURNING
    id,
    NULL,
    NULL,
    CAST(extract(EPOCH FROM CASE
        WHEN expires < TIMESTAMP '0001-01-02' THEN TIMESTAMP '0001-01-02'
        WHEN expires > TIMESTAMP '9999-12-30' THEN TIMESTAMP '9999-12-30'
        ELSE expires
    END - (clock_timestamp() AT TIME ZONE 'UTC')) * 1000 AS bigint),
    headers,
    body,
    seq;

-- name: remove
-- As `take`, but returns only the row versions.
DELETE FROM {table}
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table}
    WHERE seq IN ({row_versions})
    FOR UPDATE SKIP LOCKED
))
RETURNING seq;

-- name: free_rows
-- Those of these row versions that no other transaction has deleted or locked. A transaction, also a prepared one, holds a lock on
-- its own number, which is in `xmax` of the rows that it deletes.
SELECT seq
FROM {table} AS held
WHERE seq IN ({row_versions})
    AND NOT EXISTS (
        SELECT 1 FROM pg_locks
        WHERE pg_locks.locktype = 'transactionid' AND pg_locks.transactionid = held.xmax
            AND pg_locks.granted AND pg_locks.pid IS DISTINCT FROM pg_backend_pid()
    );
