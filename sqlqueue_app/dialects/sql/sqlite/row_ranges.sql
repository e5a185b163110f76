-- Statements of the pipeline for many rows of a queue table on SQLite. {table} is the quoted name.

-- name: remove_ranges
-- Deletes these ranges of row versions; {ranges} is a list of (lowest, highest).
-- CROSS JOIN fixes the join order: each range is looked up in the table instead of scanning it.
DELETE FROM {table}
WHERE RowVersion IN (
    SELECT queue.RowVersion
    FROM (SELECT column1 AS lowest, column2 AS highest FROM (VALUES {ranges})) AS wanted
    CROSS JOIN {table} AS queue
    WHERE queue.RowVersion BETWEEN wanted.lowest AND wanted.highest
);

-- name: drawn_row_version
-- The last row version drawn, even if the row is gone; no result row if unknown.
SELECT seq FROM sqlite_sequence WHERE name = :name;

-- name: row_ids
-- The row versions and ids of the first rows after a row version.
SELECT RowVersion, CAST(Id AS blob)
FROM {table}
WHERE RowVersion > :after
ORDER BY RowVersion
LIMIT :limit;
