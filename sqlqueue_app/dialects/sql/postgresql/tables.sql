-- Tables and indexes on PostgreSQL: columns, names and keys of the NServiceBus PostgreSQL transport, with two differences. `seq` is
-- a bigint (32 bits end after 2,147,483,647 messages), and `expires` has an index, which readers do not notice.

-- name: create_queue
CREATE TABLE {table} (
    id uuid PRIMARY KEY,
    expires timestamp without time zone NULL,
    headers text NOT NULL,
    body bytea NULL,
    seq bigserial NOT NULL UNIQUE
);

-- name: create_expires_index
CREATE INDEX {index} ON {table} (expires) WHERE expires IS NOT NULL;

-- name: create_delayed
CREATE TABLE {table} (
    id uuid DEFAULT gen_random_uuid() PRIMARY KEY,
    headers text NOT NULL,
    body bytea NULL,
    due timestamp with time zone NOT NULL
) WITH (fillfactor = 100);

-- name: create_due_index
CREATE INDEX {index} ON {table} (due);

-- name: create_subscriptions
CREATE TABLE {table} (
    queueaddress varchar(200) NOT NULL,
    endpoint varchar(200) NOT NULL,
    topic varchar(200) NOT NULL,
    PRIMARY KEY (endpoint, topic)
) WITH (fillfactor = 100);

-- name: drop_table
DROP TABLE {table};

-- name: lock_table
LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE NOWAIT;

-- name: any_row
SELECT 1 FROM {table} LIMIT 1;

-- name: lock_installation
-- Held until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended(CAST(:resource AS text), 0));

-- name: table_exists
SELECT CASE WHEN to_regclass(CAST(:table AS text)) IS NULL THEN 0 ELSE 1 END;

-- name: columns
SELECT attname, format_type(atttypid, atttypmod)
FROM pg_attribute
WHERE attrelid = to_regclass(CAST(:table AS text)) AND attnum > 0 AND NOT attisdropped
ORDER BY attnum;

-- name: indexes
SELECT pg_attribute.attname, 'NONCLUSTERED'
FROM pg_index
INNER JOIN pg_attribute ON pg_attribute.attrelid = pg_index.indrelid AND pg_attribute.attnum = pg_index.indkey[0]
WHERE pg_index.indrelid = to_regclass(CAST(:table AS text)) AND pg_index.indisvalid;

-- name: grant
-- SELECT FOR UPDATE needs the UPDATE privilege.
GRANT {rights} ON {table} TO {role};

-- name: grant_sequence
-- An INSERT draws the row version from the sequence.
GRANT USAGE ON SEQUENCE {sequence} TO {role};

-- name: grant_schema
GRANT USAGE ON SCHEMA {schema} TO {role};

-- name: grant_existing
-- For managed tables, which may not exist yet because `migrate` creates them.
DO $sqlqueue$ BEGIN
    IF to_regclass('{literal}') IS NOT NULL THEN
        GRANT {rights} ON {table} TO {role};
    END IF;
END $sqlqueue$;

-- name: clock
-- Wall-clock time in whole seconds since 1970, not the start of the transaction.
SELECT CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp())) AS bigint);
