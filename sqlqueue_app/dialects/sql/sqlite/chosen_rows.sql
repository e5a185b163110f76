-- Statements for chosen rows of a queue table on SQLite, which has one writer: nobody else holds a row. {table} is the quoted name.
-- Text comes as BLOB: see the statement `receive`.

-- name: look_at
-- The headers of the rows of these numbers, that are there. {row_versions} is a list of whole numbers.
SELECT
    RowVersion,
    CAST(Headers AS blob)
FROM {table}
WHERE RowVersion IN ({row_versions});

-- name: take
-- With what is left of their lives in milliseconds. Somebody may have written text that is no instant: it counts as none.
DELETE FROM {table}
WHERE RowVersion IN ({row_versions})
RETURNING
    CAST(Id AS blob),
    CAST(CorrelationId AS blob),
    CAST(ReplyToAddress AS blob),
    CAST((julianday(Expires) - julianday('now')) * 86400000 AS integer),
    CAST(Headers AS blob),
    CAST(Body AS blob),
    RowVersion;

-- name: remove
DELETE FROM {table}
WHERE RowVersion IN ({row_versions})
RETURNING RowVersion;
