-- Statements of a queue table on SQLite. {table} is the quoted name. A row version is a RowVersion.
-- Times are UTC text with milliseconds, so that they sort chronologically.

-- name: send
INSERT INTO {table} ({columns})
VALUES {rows};

-- name: receive
-- Runs inside BEGIN IMMEDIATE: SQLite has one writer at a time, so no other transaction can take these rows.
-- No IS NULL: in RETURNING, SQLite 3.40 evaluates it to false if the other columns of the table are NOT NULL.
-- As BLOB: columns hold any bytes, and text that is not UTF-8 could not be fetched, nor any row behind it.
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
-- The first rows after a row version, or the last rows up to and including it.
-- As BLOB: see `receive`. Expires also because Django parses its declared type, and would fail on text written by hand.
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
-- The row versions of the first rows after a row version, read from the index.
SELECT RowVersion
FROM {table}
WHERE RowVersion > :after
ORDER BY RowVersion
LIMIT :limit;

-- name: row_version_at
-- The row version at a position, counted from 0.
SELECT RowVersion FROM {table} ORDER BY RowVersion LIMIT 1 OFFSET :position;

-- name: find_ids
-- The rows with these ids among the first rows, because no index leads to an id. {ids} is a list of quoted ids.
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
-- Two subqueries: with both in one SELECT, SQLite scans the table.
SELECT (SELECT max(RowVersion) FROM {table}) - (SELECT min(RowVersion) FROM {table}) + 1;

-- name: purge
DELETE FROM {table};

-- name: purge_expired
DELETE FROM {table}
WHERE RowVersion IN (
    SELECT RowVersion FROM {table}
    WHERE Expires <= strftime('%Y-%m-%d %H:%M:%f', 'now')
    LIMIT :limit
);
