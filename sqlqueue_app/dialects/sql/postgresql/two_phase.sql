-- Two-phase commit on PostgreSQL: the coordinator's log, and the branches.

-- name: coordinator
SELECT id FROM {table} WHERE number = 1;

-- name: make_coordinator
INSERT INTO {table} (number, id) VALUES (1, CAST(:id AS uuid)) ON CONFLICT (number) DO NOTHING;

-- name: record_transaction
-- Waits for a transaction that has inserted the same id, and fails if it commits.
INSERT INTO {table} (id, queue, branches, decided_at)
VALUES (CAST(:id AS uuid), :queue, :branches, clock_timestamp() AT TIME ZONE 'UTC');

-- name: transaction_has_written
-- A transaction gets an id when it first writes or locks a row.
SELECT pg_catalog.txid_current_if_assigned() IS NOT NULL;

-- name: prepare_transaction
PREPARE TRANSACTION {branch};

-- name: commit_prepared
COMMIT PREPARED {branch};

-- name: rollback_prepared
ROLLBACK PREPARED {branch};

-- name: prepared_branches
SELECT gid, prepared
FROM pg_catalog.pg_prepared_xacts
WHERE database = pg_catalog.current_database() AND gid LIKE :pattern
ORDER BY prepared, gid;

-- name: max_prepared_transactions
SELECT CAST(pg_catalog.current_setting('max_prepared_transactions') AS integer);

-- name: recorded_transaction
SELECT 1 FROM {table} WHERE id = CAST(:id AS uuid);
