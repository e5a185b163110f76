-- Statements of a queue table on PostgreSQL. {table} is the quoted "schema"."table".
-- Expiry is a wall clock in UTC without zone; clock_timestamp() AT TIME ZONE 'UTC' gives it in a session of any zone.

-- name: send
INSERT INTO {table} ({columns})
VALUES {rows};

-- name: send_many
-- In the format of the wire: no text of a body is made, and none is read again.
COPY {table} (id, expires, headers, body) FROM STDIN (FORMAT BINARY);

-- name: utc_now
SELECT clock_timestamp() AT TIME ZONE 'UTC';

-- name: receive
-- At most {limit} rows from a lower bound on, with their numbers: what is dead below the bound is not walked through again. The bound
-- only hastens the look: the caller looks from the start again and again, because rows come back or are committed late below it.
-- By ctid, which has no plan but the right one; the array is built once, so its LIMIT holds however the statement is planned
--.
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
-- The first rows after a number, or the last ones at and before it.
SELECT
    seq,
    id,
    NULL,
    NULL,
    expires,
    CASE WHEN expires <= (clock_timestamp() AT TIME ZONE 'UTC') THEN 1 ELSE 0 END,
    headers,
    substring(body FROM 1 FOR CAST(:body_limit AS integer)),
    length(body)
FROM {table}
WHERE seq {compared} CAST(:place AS bigint)
ORDER BY seq {order}
LIMIT CAST(:limit AS integer);

-- name: row_versions
-- The numbers alone of the first rows after one; read from the index.
SELECT seq
FROM {table}
WHERE seq > CAST(:after AS bigint)
ORDER BY seq
LIMIT CAST(:limit AS integer);

-- name: row_version_at
-- The number of the row at a position, counted from 0.
SELECT seq FROM {table} ORDER BY seq OFFSET CAST(:position AS bigint) LIMIT 1;

-- name: find_ids
-- The rows of these ids, that are there; by the primary key, so that limit is not needed. {ids} is a list of quoted ids.
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
-- Not the statement below: that takes row locks, for which whoever only looks at the queue may have no right.
SELECT max(seq) - min(seq) + 1
FROM {table};

-- name: waiting
-- The peek of the transport since 8.1.5: rows that a long receive holds are no ends of the queue.
SELECT
    (SELECT seq FROM {table} ORDER BY seq DESC LIMIT 1 FOR UPDATE SKIP LOCKED)
    - (SELECT seq FROM {table} ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED) + 1;

-- name: purge
DELETE FROM {table};

-- name: purge_expired
-- The array is built once, so its LIMIT holds; rows that a receive holds are stepped over. By now() and in order, because both let
-- the planner see that the index on expires serves: behind a sub-select it took a third of the table for expired and read it all.
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id FROM {table}
    WHERE expires IS NOT NULL AND expires <= (now() AT TIME ZONE 'UTC')
    ORDER BY expires
    LIMIT CAST(:limit AS integer)
    FOR UPDATE SKIP LOCKED
));
