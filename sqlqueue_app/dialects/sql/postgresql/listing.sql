-- Queries over all tables of the database, for the dashboard. UNION ALL combines one per table; {number} identifies the table.

-- name: list_tables
-- The columns of each readable table with headers and body; then the first key column and the kind of each index.
SELECT
    pg_namespace.nspname,
    pg_class.relname,
    pg_attribute.attnum,
    pg_attribute.attname,
    format_type(pg_attribute.atttypid, pg_attribute.atttypmod)
FROM pg_class
INNER JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
INNER JOIN pg_attribute ON pg_attribute.attrelid = pg_class.oid AND pg_attribute.attnum > 0 AND NOT pg_attribute.attisdropped
WHERE pg_class.relkind IN ('r', 'p')
    AND pg_namespace.nspname <> 'information_schema'
    AND NOT starts_with(CAST(pg_namespace.nspname AS text), 'pg_')
    AND has_schema_privilege(pg_namespace.oid, 'USAGE')
    AND has_table_privilege(pg_class.oid, 'SELECT')
    AND (
        SELECT count(*) FROM pg_attribute AS needed
        WHERE needed.attrelid = pg_class.oid AND needed.attname IN ('headers', 'body') AND NOT needed.attisdropped
    ) = 2
UNION ALL
SELECT pg_namespace.nspname, pg_class.relname, NULL, pg_attribute.attname, 'NONCLUSTERED'
FROM pg_index
INNER JOIN pg_class ON pg_class.oid = pg_index.indrelid
INNER JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
INNER JOIN pg_attribute ON pg_attribute.attrelid = pg_index.indrelid AND pg_attribute.attnum = pg_index.indkey[0]
WHERE pg_index.indisvalid
    AND (
        SELECT count(*) FROM pg_attribute AS needed
        WHERE needed.attrelid = pg_class.oid AND needed.attname IN ('headers', 'body') AND NOT needed.attisdropped
    ) = 2
ORDER BY 1, 2, 3;

-- name: snapshot
-- Rows, rows with an expiry and expired rows, among the first rows; the span of the row versions; the headers of the first row;
-- the last value of the sequence, as the number of rows ever written, or NULL if this role may not read it;
-- dead and live rows from the statistics.
SELECT
    {number},
    counted.waiting,
    counted.expiring,
    counted.expired,
    (SELECT max(seq) - min(seq) + 1 FROM {table}),
    (SELECT headers FROM {table} ORDER BY seq LIMIT 1),
    (
        SELECT CASE WHEN has_sequence_privilege(own.sequence, 'SELECT') THEN pg_sequence_last_value(own.sequence) END
        FROM (SELECT CAST(pg_get_serial_sequence(:table, 'seq') AS regclass) AS sequence) AS own
    ),
    pg_stat_get_dead_tuples(CAST(:table AS regclass)),
    pg_stat_get_live_tuples(CAST(:table AS regclass))
FROM (
    SELECT
        count(*) AS waiting,
        count(head.expires) AS expiring,
        count(*) FILTER (WHERE head.expires <= (clock_timestamp() AT TIME ZONE 'UTC')) AS expired
    FROM (SELECT expires FROM {table} ORDER BY seq LIMIT CAST(:limit AS integer)) AS head
) AS counted;

-- name: count_expiries
SELECT
    {number},
    (
        SELECT count(*) FROM (
            SELECT 1 FROM {table} WHERE expires IS NOT NULL ORDER BY expires LIMIT CAST(:limit AS integer)
        ) AS expiring
    ),
    (
        SELECT count(*) FROM (
            SELECT 1 FROM {table}
            WHERE expires IS NOT NULL AND expires <= (now() AT TIME ZONE 'UTC')
            ORDER BY expires
            LIMIT CAST(:limit AS integer)
        ) AS expired
    );

-- name: snapshot_delayed
-- All delayed messages, and those that are due; each count stops at the limit. Then the earliest due time.
SELECT
    {number},
    (SELECT count(*) FROM (SELECT 1 FROM {table} ORDER BY due LIMIT CAST(:limit AS integer)) AS counted),
    (SELECT count(*) FROM (
        SELECT 1 FROM {table} WHERE due <= (SELECT clock_timestamp()) ORDER BY due LIMIT CAST(:limit AS integer)
    ) AS overdue),
    CAST(EXTRACT(EPOCH FROM (SELECT due FROM {table} ORDER BY due LIMIT 1)) AS double precision);

-- name: find_in_queue
-- The matches among the first or last rows, and the first row that was not searched.
SELECT {number}, CAST(NULL AS bigint), found.seq, found.id, found.headers, CAST(NULL AS double precision)
FROM (
    SELECT head.seq, head.id, head.headers
    FROM (
        SELECT seq, id, headers{body} FROM {table} WHERE seq <= :before ORDER BY seq {order} LIMIT CAST(:rows AS integer)
    ) AS head
    WHERE {holds}
    LIMIT CAST(:limit AS integer)
) AS found
UNION ALL
SELECT {number}, rest.seq, NULL, NULL, NULL, NULL
FROM (SELECT seq FROM {table} WHERE seq <= :before ORDER BY seq {order} LIMIT 1 OFFSET CAST(:rows AS integer)) AS rest;

-- name: find_in_delayed
-- As `find_in_queue`, for delayed messages by due time, which is returned too. They have ids instead of row versions.
SELECT
    {number}, CAST(NULL AS bigint), CAST(0 AS bigint), found.id, found.headers,
    CAST(EXTRACT(EPOCH FROM found.due) AS double precision)
FROM (
    SELECT head.id, head.headers, head.due
    FROM (SELECT id, headers, due{body} FROM {table} ORDER BY due {order} LIMIT CAST(:rows AS integer)) AS head
    WHERE {holds}
    LIMIT CAST(:limit AS integer)
) AS found
UNION ALL
SELECT {number}, CAST(0 AS bigint), NULL, NULL, NULL, NULL
FROM (SELECT 1 FROM {table} ORDER BY due {order} LIMIT 1 OFFSET CAST(:rows AS integer)) AS rest;

-- name: holds_in_headers
-- Ignores the case of ASCII letters only, which is the same in every locale, and much faster than the rules of a locale.
strpos(lower(head.headers COLLATE "C"), :text) > 0;

-- name: holds_exactly_in_headers
-- Reads a row in less than half the time, because it makes no copy of the headers.
strpos(head.headers COLLATE "C", :text) > 0;

-- name: holds_in_body
-- A body may contain bytes that are not text. encode() escapes them, so the search text is escaped too.
strpos(
    lower(encode(substring(head.body FROM 1 FOR CAST(:body_limit AS integer)), 'escape') COLLATE "C"),
    encode(convert_to(:text, 'UTF8'), 'escape')
) > 0;

-- name: holds_row_id
-- A message without an id in its headers has the id of its row.
head.id = CAST(:row_id AS uuid);
