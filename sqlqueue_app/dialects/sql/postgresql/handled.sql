-- Ids of handled messages on PostgreSQL, in a managed table.

-- name: remember_handled
-- Waits for a transaction that is inserting the same id, and does nothing if it commits.
INSERT INTO {table} (id, queue, handled_at)
VALUES (CAST(:id AS uuid), :queue, clock_timestamp() AT TIME ZONE 'UTC')
ON CONFLICT (id) DO NOTHING;

-- name: forget_handled
-- The array is built once, so its LIMIT holds. Skips locked rows.
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id FROM {table}
    WHERE queue = :queue AND handled_at < (now() AT TIME ZONE 'UTC') - make_interval(secs => CAST(:seconds AS double precision))
    ORDER BY handled_at
    LIMIT CAST(:limit AS integer)
    FOR UPDATE SKIP LOCKED
));
