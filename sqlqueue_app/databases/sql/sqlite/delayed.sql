-- Statements of a table of delayed messages on SQLite.

-- name: delay
-- In the form that `now` is compared in.
INSERT INTO {table} (Headers, Body, Due)
VALUES (:headers, :body, strftime('%Y-%m-%d %H:%M:%f', :due));

-- name: any_due
SELECT EXISTS (SELECT 1 FROM {table} WHERE Due <= strftime('%Y-%m-%d %H:%M:%f', 'now'));

-- name: take_due
DELETE FROM {table}
WHERE RowVersion IN (
    SELECT RowVersion FROM {table}
    WHERE Due <= strftime('%Y-%m-%d %H:%M:%f', 'now')
    ORDER BY Due
    LIMIT :limit
)
RETURNING Headers, Body;
