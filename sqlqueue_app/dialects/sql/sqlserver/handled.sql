-- Ids of handled messages on SQL Server, in a managed table: mssql-django keeps a UUIDField as char(32), bare digits.

-- name: remember_handled
-- Waits for a transaction that has inserted the same id. Two that look at the same moment both insert: the primary key lets one of
-- them through and fails the other, when the first has committed. No range is locked, which would have strangers wait.
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
