-- Statements for selected rows of a queue table on SQLite. {table} is the quoted name.
-- SQLite has one writer at a time, so there are no locked rows to skip. Text is returned as BLOB: see `receive`.

-- name: headers_of_rows
-- The headers of the rows with these row versions. {row_versions} is a list of integers.
SELECT
    RowVersion,
    CAST(Headers AS blob)
FROM {table}
WHERE RowVersion IN ({row_versions});

-- name: take
-- Deletes and returns the rows with these row versions, with their remaining lifetime in milliseconds.
-- Text in Expires that is not a time counts as no expiry.
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

-- name: free_rows
-- A reader sees the last committed rows, also those that the one writer has deleted.
SELECT RowVersion
FROM {table}
WHERE RowVersion IN ({row_versions});
