-- Statements of a queue table on PostgreSQL. {table} is the quoted "schema"."table". A row version is a value of `seq`. `expires`
-- is UTC wall-clock time without time zone; clock_timestamp() AT TIME ZONE 'UTC' returns it in a session of any time zone.

-- name: send
INSERT INTO {table} ({columns})
VALUES {rows};

-- name: send_many
-- In binary format: bodies are neither encoded as text nor parsed.
COPY {table} (id, expires, headers, body) FROM STDIN (FORMAT BINARY);

-- name: utc_now
SELECT clock_timestamp() AT TIME ZONE 'UTC';

-- name: receive
-- Starts at a lower bound, so that the index scan does not step over the dead rows below it again. The bound only saves time: rows
-- reappear below it after rollbacks and late commits, so the caller regularly receives from the start of the table.
-- Deletes by ctid. The receive transaction rules out the plans that suit only an empty table (docs/internals/performance.md#query-plans).
-- The array is built once, so its LIMIT holds whatever the plan.
DELETE FROM {table}
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table}
    WHERE seq >= CAST(:lowest AS bigint)
    ORDER BY seq
    LIMIT {limit}
    FOR UPDATE SKIP LOCKED
))
RETURNING
    id,
    NULL,
    NULL,
    CASE WHEN expires <= (clock_timestamp() AT TIME ZONE 'UTC') THEN 1 ELSE 0 END,
    headers,
    body,
    seq;

-- name: peek
-- The first rows after a row version, or the last rows up to and including it. The driver cannot read 'infinity' or years BC.
SELECT
    seq,
    id,
    NULL,
    NULL,
    CASE
        WHEN expires < TIMESTAMP '0001-01-02' THEN TIMESTAMP '0001-01-02'
        WHEN expires > TIMESTAMP '9999-12-30' THEN TIMESTAMP '9999-12-30'
        ELSE expires
    END,
    CASE WHEN expires <= (clock_timestamp() AT TIME ZONE 'UTC') THEN 1 ELSE 0 END,
    headers,
    substring(body FROM 1 FOR CAST(:body_limit AS integer)),
    length(body)
FROM {table}
WHERE seq {compared} CAST(:place AS bigint)
ORDER BY seq {order}
LIMIT CAST(:limit AS integer);

-- name: row_versions
-- The row versions of the first rows after a row version, read from the index.
SELECT seq
FROM {table}
WHERE seq > CAST(:after AS bigint)
ORDER BY seq
LIMIT CAST(:limit AS integer);

-- name: row_version_at
-- The row version at a position, counted from 0.
SELECT seq FROM {table} ORDER BY seq OFFSET CAST(:position AS bigint) LIMIT 1;

-- name: find_ids
-- The rows with these ids, through the primary key, which makes the limit unnecessary. {ids} is a list of quoted ids.
SELECT seq, id
FROM {table}
WHERE id IN ({ids}) AND CAST(:limit AS integer) > 0;

-- name: count
SELECT
    count(*),
    count(head.expires),
    count(*) FILTER (WHERE head.expires <= (clock_timestamp() AT TIME ZONE 'UTC'))
FROM (
    SELECT expires FROM {table}
    ORDER BY seq
    LIMIT CAST(:limit AS integer)
) AS head;

-- name: count_expiring
SELECT
    (
        SELECT count(*) FROM (
            SELECT 1 FROM {table} WHERE expires IS NOT NULL ORDER BY expires LIMIT CAST(:limit AS integer)
        ) AS expiring
    ),
    (
        SELECT count(*) FROM (
            SELECT 1 FROM {table}
            WHERE expires IS NOT NULL AND expires <= (now() AT TIME ZONE 'UTC')
            ORDER BY expires
            LIMIT CAST(:limit AS integer)
        ) AS expired
    );

-- name: estimate
-- Differs from `waiting`, whose row locks need a privilege that a role that only reads the queue may lack.
SELECT max(seq) - min(seq) + 1
FROM {table};

-- name: waiting
-- The peek of the transport since 8.1.5. Skips locked rows: the rows of a long receive do not count as ends of the queue.
SELECT
    (SELECT seq FROM {table} ORDER BY seq DESC LIMIT 1 FOR UPDATE SKIP LOCKED)
    - (SELECT seq FROM {table} ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED) + 1;

-- name: purge
DELETE FROM {table};

-- name: purge_expired
-- The array is built once, so its LIMIT holds. Skips locked rows.
-- With now() and ORDER BY, the planner uses the index on expires. With the time in a subquery, it assumed that a third of the table
-- had expired, and scanned all of it.
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id FROM {table}
    WHERE expires IS NOT NULL AND expires <= (now() AT TIME ZONE 'UTC')
    ORDER BY expires
    LIMIT CAST(:limit AS integer)
    FOR UPDATE SKIP LOCKED
));

-- name: receive_keyed
-- Takes the first of the tried rows that is in the table and whose lock is free. CASE, and the subqueries without a reference to
-- the outer query, which run once: one lock at a time is tried, of rows that exist, and none after the first success.
-- One ctid and no array: planned on an empty table, an array became a scan of the whole table (7 ms with 50,000 rows).
-- The lock comes before the row. A row that its last owner has deleted meanwhile is skipped: then nothing is received.
DELETE FROM {table}
WHERE ctid = (
    SELECT ctid FROM {table}
    WHERE seq = (
        SELECT tried.seq
        FROM unnest(CAST(:rows AS bigint[]), CAST(:locks AS bigint[])) AS tried (seq, lock)
        WHERE
            CASE
                WHEN (SELECT waiting.seq FROM {table} AS waiting WHERE waiting.seq = tried.seq) IS NULL THEN FALSE
                ELSE pg_try_advisory_xact_lock(tried.lock)
            END
        LIMIT 1
    )
    FOR UPDATE SKIP LOCKED
)
RETURNING
    id,
    NULL,
    NULL,
    CASE WHEN expires <= (clock_timestamp() AT TIME ZONE 'UTC') THEN 1 ELSE 0 END,
    headers,
    body,
    seq;
