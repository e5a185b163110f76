-- Statements of a queue table on SQLite. {table} is the quoted name. Instants are text in UTC to the millisecond, which sorts as time.

-- name: send
INSERT INTO {table} ({columns})
VALUES {rows};

-- name: receive
-- Run inside BEGIN IMMEDIATE: there is one writer at a time, so the lowest rows are nobody else's.
-- No IS NULL here: SQLite 3.40 takes it for false in RETURNING when the table's other columns are NOT NULL.
-- As BLOB: a column holds whatever somebody wrote, and text that is no UTF-8 could not be fetched, so nothing behind it either.
DELETE FROM {table}
WHERE RowVersion IN (SELECT RowVersion FROM {table} ORDER BY RowVersion LIMIT {limit})
RETURNING
    CAST(Id AS blob),
    CAST(CorrelationId AS blob),
    CAST(ReplyToAddress AS blob),
    CASE WHEN Expires <= strftime('%Y-%m-%d %H:%M:%f', 'now') THEN 1 ELSE 0 END,
    CAST(Headers AS blob),
    CAST(Body AS blob),
    RowVersion;

-- name: peek
-- The first rows after a number, or the last ones at and before it.
-- As BLOB: see above; Expires also because its declared type would make Django parse it, and fail on text that somebody wrote by hand.
SELECT
    RowVersion,
    CAST(Id AS blob),
    CAST(CorrelationId AS blob),
    CAST(ReplyToAddress AS blob),
    CAST(Expires AS blob),
    CASE WHEN Expires <= strftime('%Y-%m-%d %H:%M:%f', 'now') THEN 1 ELSE 0 END,
    CAST(Headers AS blob),
    -- substr() of an empty blob is NULL, which would look like a missing body.
    CASE length(Body) WHEN 0 THEN x'' ELSE substr(CAST(Body AS blob), 1, :body_limit) END,
    length(CAST(Body AS blob))
FROM {table}
WHERE RowVersion {compared} :place
ORDER BY RowVersion {order}
LIMIT :limit;

-- name: row_versions
-- The numbers alone of the first rows after one; read from the index.
SELECT RowVersion
FROM {table}
WHERE RowVersion > :after
ORDER BY RowVersion
LIMIT :limit;

-- name: row_version_at
-- The number of the row at a position, counted from 0.
SELECT RowVersion FROM {table} ORDER BY RowVersion LIMIT 1 OFFSET :position;

-- name: find_ids
-- The rows of these ids among the first rows: nothing else leads to an id. {ids} is a list of quoted ids.
SELECT head.RowVersion, head.Id
FROM (
    SELECT RowVersion, Id FROM {table}
    ORDER BY RowVersion
    LIMIT :limit
) AS head
WHERE head.Id IN ({ids});

-- name: count
SELECT
    count(*),
    count(head.Expires),
    count(CASE WHEN head.Expires <= strftime('%Y-%m-%d %H:%M:%f', 'now') THEN 1 END)
FROM (
    SELECT Expires FROM {table}
    ORDER BY RowVersion
    LIMIT :limit
) AS head;

-- name: count_expiring
SELECT
    (
        SELECT count(*) FROM (
            SELECT 1 FROM {table} WHERE Expires IS NOT NULL LIMIT :limit
        ) AS expiring
    ),
    (
        SELECT count(*) FROM (
            SELECT 1 FROM {table}
            WHERE Expires <= strftime('%Y-%m-%d %H:%M:%f', 'now') LIMIT :limit
        ) AS expired
    );

-- name: estimate, waiting
SELECT max(RowVersion) - min(RowVersion) + 1
FROM {table};

-- name: purge
DELETE FROM {table};

-- name: purge_expired
DELETE FROM {table}
WHERE RowVersion IN (
    SELECT RowVersion FROM {table}
    WHERE Expires <= strftime('%Y-%m-%d %H:%M:%f', 'now')
    LIMIT :limit
);
