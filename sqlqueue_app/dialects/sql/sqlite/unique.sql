-- The keys of messages that are sent once, on SQLite, in a managed table. Times are in whole seconds, as the clock is read elsewhere.

-- name: claim_key
INSERT INTO {table} (id, key, queue, message_id, sent_at, unique_until)
SELECT :id, :key, :queue, :message_id, now, strftime('%Y-%m-%d %H:%M:%f', now, CAST(:seconds AS TEXT) || ' seconds')
FROM (SELECT strftime('%Y-%m-%d %H:%M:%S.000', 'now') AS now)
WHERE TRUE
ON CONFLICT (id) DO NOTHING;
