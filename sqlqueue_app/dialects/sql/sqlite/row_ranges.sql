-- Statements of the pipeline for many rows of a queue table on SQLite. {table} is the quoted name.

-- name: remove_ranges
-- The rows of these numbers; {ranges} is a list of (lowest, highest). CROSS JOIN keeps the order: the table is looked up, not read.
DELETE FROM {table}
WHERE RowVersion IN (
    SELECT queue.RowVersion
    FROM (SELECT column1 AS lowest, column2 AS highest FROM (VALUES {ranges})) AS wanted
    CROSS JOIN {table} AS queue
    WHERE queue.RowVersion BETWEEN wanted.lowest AND wanted.highest
);

-- name: numbers_drawn
-- The last number that was given to a row, also of one that is gone; no row where nothing tells.
SELECT seq FROM sqlite_sequence WHERE name = :name;

-- name: row_ids
-- The numbers and ids of the first rows after a number.
SELECT RowVersion, CAST(Id AS blob)
FROM {table}
WHERE RowVersion > :after
ORDER BY RowVersion
LIMIT :limit;
