-- The keys of messages that are sent once, on PostgreSQL, in a managed table. Times are in whole seconds, as the clock is read elsewhere.

-- name: claim_key
-- Waits for a transaction that is inserting the same id, and does nothing if it commits.
INSERT INTO {table} (id, key, queue, message_id, sent_at, unique_until)
SELECT CAST(:id AS uuid), :key, :queue, :message_id, now, now + make_interval(secs => CAST(:seconds AS integer))
FROM date_trunc('second', clock_timestamp() AT TIME ZONE 'UTC') AS now
ON CONFLICT (id) DO NOTHING;
