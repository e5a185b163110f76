-- Two-phase commit on SQLite: the coordinator's log. There are no branches.

-- name: coordinator
SELECT id FROM {table} WHERE number = 1;

-- name: make_coordinator
INSERT INTO {table} (number, id) VALUES (1, :id) ON CONFLICT (number) DO NOTHING;

-- name: record_transaction
INSERT INTO {table} (id, queue, branches, decided_at)
VALUES (:id, :queue, :branches, strftime('%Y-%m-%d %H:%M:%f', 'now'));

-- name: recorded_transaction
SELECT 1 FROM {table} WHERE id = :id;
