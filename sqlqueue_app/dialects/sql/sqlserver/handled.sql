-- Ids of handled messages on SQL Server, in a managed table. mssql-django stores a UUIDField as char(32), without dashes.

-- name: remember_handled
-- Waits for a transaction that has inserted the same id. If two transactions check at the same moment, both insert: the primary key
-- fails one of them when the other commits. No key range is locked, because unrelated inserts would wait for it.
INSERT INTO {table} (id, queue, handled_at)
SELECT CAST(:id AS char(32)), :queue, GETUTCDATE()
WHERE NOT EXISTS (SELECT 1 FROM {table} WITH (READCOMMITTEDLOCK) WHERE id = CAST(:id AS char(32)));

-- name: forget_handled
DELETE FROM {table}
WHERE id IN (
    SELECT TOP (CAST(:limit AS int)) id
    FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    WHERE queue = :queue AND handled_at < DATEADD(s, -CAST(:seconds AS int), GETUTCDATE())
    ORDER BY handled_at
);
