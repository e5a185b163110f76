-- Ids of handled messages on SQLite, in a managed table.

-- name: remember_handled
INSERT INTO {table} (id, queue, handled_at)
VALUES (:id, :queue, strftime('%Y-%m-%d %H:%M:%f', 'now'))
ON CONFLICT (id) DO NOTHING;

-- name: forget_handled
DELETE FROM {table}
WHERE id IN (
    SELECT id FROM {table}
    WHERE queue = :queue AND handled_at < strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || CAST(:seconds AS TEXT) || ' seconds')
    ORDER BY handled_at
    LIMIT :limit
);
