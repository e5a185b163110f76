-- Statements for browsing a table of delayed messages and for selected rows of it, on SQLite. A row is identified by its
-- RowVersion. SQLite has one writer at a time, so there are no locked rows to skip. Text is returned as BLOB: see `receive`.

-- name: list_delayed
-- The messages due first: RowVersion, due time, seconds until then, headers, no body, length of the body.
SELECT
    RowVersion,
    CAST(Due AS blob),
    (julianday(Due) - julianday('now')) * 86400.0,
    CAST(Headers AS blob),
    NULL,
    length(CAST(Body AS blob))
FROM {table}
ORDER BY Due, RowVersion
LIMIT :limit;

-- name: list_delayed_after
-- As `list_delayed`, after a given row, through the index on Due.
SELECT
    RowVersion,
    CAST(Due AS blob),
    (julianday(Due) - julianday('now')) * 86400.0,
    CAST(Headers AS blob),
    NULL,
    length(CAST(Body AS blob))
FROM {table}
WHERE Due >= :due AND (Due > :due OR RowVersion > CAST(:place AS integer))
ORDER BY Due, RowVersion
LIMIT :limit;

-- name: read_delayed
-- The rows with these row versions, with the beginning of the body. {ids} is a list of integers.
SELECT
    RowVersion,
    CAST(Due AS blob),
    (julianday(Due) - julianday('now')) * 86400.0,
    CAST(Headers AS blob),
    -- substr() of an empty blob is NULL, which would look like a missing body.
    CASE length(Body) WHEN 0 THEN x'' ELSE substr(CAST(Body AS blob), 1, :body_limit) END,
    length(CAST(Body AS blob))
FROM {table}
WHERE RowVersion IN ({ids})
ORDER BY Due, RowVersion;

-- name: take_delayed
-- Deletes and returns the rows with these row versions, with the whole body.
DELETE FROM {table}
WHERE RowVersion IN ({ids})
RETURNING RowVersion, CAST(Headers AS blob), CAST(Body AS blob);

-- name: remove_delayed
DELETE FROM {table}
WHERE RowVersion IN ({ids})
RETURNING RowVersion;
