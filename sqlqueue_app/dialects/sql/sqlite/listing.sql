-- Queries over all tables of the database, for the dashboard. UNION ALL combines one per table; {number} identifies the table.

-- name: list_tables
SELECT NULL, tables.name, columns.cid, columns.name, columns.type
FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
WHERE tables.type = 'table'
    AND (SELECT count(*) FROM pragma_table_info(tables.name) AS needed WHERE lower(needed.name) IN ('headers', 'body')) = 2
UNION ALL
SELECT NULL, tables.name, NULL, keys.name, 'NONCLUSTERED'
FROM sqlite_master AS tables, pragma_index_list(tables.name) AS indexes, pragma_index_info(indexes.name) AS keys
WHERE tables.type = 'table'
    AND keys.seqno = 0
    AND (SELECT count(*) FROM pragma_table_info(tables.name) AS needed WHERE lower(needed.name) IN ('headers', 'body')) = 2
ORDER BY 2, 3;

-- name: snapshot
SELECT
    {number},
    counted.waiting,
    counted.expiring,
    counted.expired,
    (SELECT max(RowVersion) FROM {table}) - (SELECT min(RowVersion) FROM {table}) + 1,
    (SELECT CAST(Headers AS blob) FROM {table} ORDER BY RowVersion LIMIT 1),
    (SELECT seq FROM sqlite_sequence WHERE name = :name),
    NULL,
    NULL
FROM (
    SELECT
        count(*) AS waiting,
        count(head.Expires) AS expiring,
        count(CASE WHEN head.Expires <= strftime('%Y-%m-%d %H:%M:%f', 'now') THEN 1 END) AS expired
    FROM (SELECT Expires FROM {table} ORDER BY RowVersion LIMIT :limit) AS head
) AS counted;

-- name: count_expiries
SELECT
    {number},
    (SELECT count(*) FROM (SELECT 1 FROM {table} WHERE Expires IS NOT NULL LIMIT :limit) AS expiring),
    (
        SELECT count(*) FROM (
            SELECT 1 FROM {table} WHERE Expires <= strftime('%Y-%m-%d %H:%M:%f', 'now') LIMIT :limit
        ) AS expired
    );

-- name: snapshot_delayed
SELECT
    {number},
    (SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT :limit) AS counted),
    (
        SELECT count(*) FROM (
            SELECT 1 FROM {table} WHERE Due <= strftime('%Y-%m-%d %H:%M:%f', 'now') LIMIT :limit
        ) AS overdue
    ),
    ROUND((julianday((SELECT Due FROM {table} ORDER BY Due LIMIT 1)) - julianday('1970-01-01')) * 86400.0, 3);

-- name: find_in_queue
SELECT {number}, NULL, found.RowVersion, CAST(found.Id AS blob), CAST(found.Headers AS blob), NULL
FROM (
    SELECT head.RowVersion, head.Id, head.Headers
    FROM (
        SELECT RowVersion, Id, Headers{body} FROM {table} WHERE RowVersion <= :before ORDER BY RowVersion {order} LIMIT :rows
    ) AS head
    WHERE {holds}
    LIMIT :limit
) AS found
UNION ALL
SELECT {number}, rest.RowVersion, NULL, NULL, NULL, NULL
FROM (SELECT RowVersion FROM {table} WHERE RowVersion <= :before ORDER BY RowVersion {order} LIMIT 1 OFFSET :rows) AS rest;

-- name: find_in_delayed
SELECT
    {number}, NULL, found.RowVersion, NULL, CAST(found.Headers AS blob),
    ROUND((julianday(found.Due) - julianday('1970-01-01')) * 86400.0, 3)
FROM (
    SELECT head.RowVersion, head.Headers, head.Due
    FROM (SELECT RowVersion, Headers, Due{body} FROM {table} ORDER BY Due {order} LIMIT :rows) AS head
    WHERE {holds}
    LIMIT :limit
) AS found
UNION ALL
SELECT {number}, 0, NULL, NULL, NULL, NULL
FROM (SELECT 1 FROM {table} ORDER BY Due {order} LIMIT 1 OFFSET :rows) AS rest;

-- name: holds_in_headers
instr(lower(head.Headers), :text) > 0;

-- name: holds_exactly_in_headers
instr(head.Headers, :text) > 0;

-- name: holds_in_body
instr(lower(CAST(substr(head.Body, 1, :body_limit) AS text)), :text) > 0;

-- name: holds_row_id
head.Id = :row_id;
