-- Statements for rows of a table of delayed messages that somebody looks at or has chosen, on SQLite, which has one writer: nobody
-- else holds a row. A row is told by its RowVersion. Text comes as BLOB: see the statement `receive`.

-- name: list_delayed
-- The first that will be due: RowVersion, due, in how many seconds, headers, length of the body.
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
-- The same after one of them, by the index on Due.
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
-- Those of these numbers that are there, with the begin of the body. {ids} is a list of whole numbers.
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
-- The same with the whole body, taken out.
DELETE FROM {table}
WHERE RowVersion IN ({ids})
RETURNING RowVersion, CAST(Headers AS blob), CAST(Body AS blob);

-- name: remove_delayed
DELETE FROM {table}
WHERE RowVersion IN ({ids})
RETURNING RowVersion;
