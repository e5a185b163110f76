-- Tables and indexes on SQLite: the eight columns of the SQL Server table.

-- name: create_queue
-- Id is 32 hex digits, as Django stores a UUIDField. AUTOINCREMENT never reuses a RowVersion.
CREATE TABLE {table} (
    Id char(32) NOT NULL,
    CorrelationId varchar(255) NULL,
    ReplyToAddress varchar(255) NULL,
    Recoverable bool NOT NULL,
    Expires datetime NULL,
    Headers text NOT NULL,
    Body BLOB NULL,
    RowVersion INTEGER PRIMARY KEY AUTOINCREMENT
);

-- name: create_expires_index
CREATE INDEX {index} ON {table} (Expires) WHERE Expires IS NOT NULL;

-- name: create_delayed
CREATE TABLE {table} (
    Headers text NOT NULL,
    Body BLOB NULL,
    Due datetime NOT NULL,
    RowVersion INTEGER PRIMARY KEY AUTOINCREMENT
);

-- name: create_due_index
CREATE INDEX {index} ON {table} (Due);

-- name: create_subscriptions
CREATE TABLE {table} (
    QueueAddress varchar(200) NOT NULL,
    Endpoint varchar(200) NOT NULL,
    Topic varchar(200) NOT NULL,
    PRIMARY KEY (Endpoint, Topic)
);

-- name: drop_table
DROP TABLE {table};

-- name: any_row
SELECT 1 FROM {table} LIMIT 1;

-- name: table_exists
SELECT count(*) FROM sqlite_master
WHERE type = 'table' AND name = :name COLLATE NOCASE;

-- name: columns
SELECT name, type FROM pragma_table_info(:name) ORDER BY cid;

-- name: indexes
SELECT keys.name, 'NONCLUSTERED'
FROM pragma_index_list(:name) AS indexes, pragma_index_info(indexes.name) AS keys
WHERE keys.seqno = 0;

-- name: clock
-- Wall-clock time in whole seconds since 1970.
SELECT CAST(strftime('%s', 'now') AS integer);
