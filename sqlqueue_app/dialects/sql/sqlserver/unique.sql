-- The keys of messages that are sent once, on SQL Server, in a managed table. Times are in whole seconds, as the clock is read elsewhere.

-- name: claim_key
-- Waits and fails as remember_handled does.
INSERT INTO {table} (id, [key], queue, message_id, sent_at, unique_until)
SELECT CAST(:id AS char(32)), :key, :queue, :message_id, clock.now, DATEADD(second, CAST(:seconds AS int), clock.now)
FROM (
    SELECT DATEADD(second, DATEDIFF(second, CAST('20200101' AS datetime2), GETUTCDATE()), CAST('20200101' AS datetime2)) AS now
) AS clock
WHERE NOT EXISTS (SELECT 1 FROM {table} WITH (READCOMMITTEDLOCK) WHERE id = CAST(:id AS char(32)));
