-- Two-phase commit on SQL Server: the coordinator's log. There are no branches, because SQL Server prepares transactions only for
-- its own coordinator (MSDTC).

-- name: coordinator
SELECT id FROM {table} WHERE number = 1;

-- name: make_coordinator
-- Fails if there is an id already.
INSERT INTO {table} (number, id) VALUES (1, CAST(:id AS char(32)));

-- name: record_transaction
-- Waits for a transaction that has inserted the same id, and fails if it commits.
INSERT INTO {table} (id, queue, branches, decided_at)
VALUES (CAST(:id AS char(32)), :queue, :branches, GETUTCDATE());

-- name: limit_lock_wait
SET LOCK_TIMEOUT {milliseconds};

-- name: unlimit_lock_wait
SET LOCK_TIMEOUT -1;

-- name: recorded_transaction
SELECT 1 FROM {table} WHERE id = CAST(:id AS char(32));
