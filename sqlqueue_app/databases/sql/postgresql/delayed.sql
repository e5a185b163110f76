-- Statements of a table of delayed messages on PostgreSQL (transport reference 11.1).
-- `due` travels as ISO text in UTC, which every session reads alike.

-- name: delay
INSERT INTO {table} (headers, body, due)
VALUES (:headers, :body, CAST(:due AS timestamp without time zone) AT TIME ZONE 'UTC');

-- name: any_due
SELECT CASE WHEN EXISTS (SELECT 1 FROM {table} WHERE due <= (SELECT clock_timestamp())) THEN 1 ELSE 0 END;

-- name: take_due
-- The array is built once, so its LIMIT holds; rows that another mover holds are stepped over.
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id FROM {table}
    WHERE due <= (SELECT clock_timestamp())
    ORDER BY due
    LIMIT CAST(:limit AS integer)
    FOR UPDATE SKIP LOCKED
))
RETURNING headers, body;
