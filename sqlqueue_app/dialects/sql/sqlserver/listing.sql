-- Queries over all tables of a catalog, for the dashboard. UNION ALL combines one per table; {number} identifies the table.

-- name: list_tables
-- The columns of each readable table with headers and body; then the first key column and the kind of each index.
-- The catalog views show only what the login may see. The collation of kinds differs from that of names.
SELECT schemas.name, tables.name, columns.column_id, columns.name, types.name COLLATE DATABASE_DEFAULT
FROM sys.tables AS tables
INNER JOIN sys.schemas AS schemas ON schemas.schema_id = tables.schema_id
INNER JOIN sys.columns AS columns ON columns.object_id = tables.object_id
INNER JOIN sys.types AS types ON types.user_type_id = columns.user_type_id
WHERE (
    SELECT COUNT(*) FROM sys.columns AS needed
    WHERE needed.object_id = tables.object_id AND LOWER(needed.name) IN ('headers', 'body')
) = 2
AND HAS_PERMS_BY_NAME(QUOTENAME(schemas.name) + '.' + QUOTENAME(tables.name), 'OBJECT', 'SELECT') = 1
UNION ALL
SELECT schemas.name, tables.name, NULL, columns.name, indexes.type_desc COLLATE DATABASE_DEFAULT
FROM sys.tables AS tables
INNER JOIN sys.schemas AS schemas ON schemas.schema_id = tables.schema_id
INNER JOIN sys.indexes AS indexes ON indexes.object_id = tables.object_id
INNER JOIN sys.index_columns AS keys
    ON keys.object_id = indexes.object_id AND keys.index_id = indexes.index_id AND keys.key_ordinal = 1
INNER JOIN sys.columns AS columns ON columns.object_id = keys.object_id AND columns.column_id = keys.column_id
WHERE (
    SELECT COUNT(*) FROM sys.columns AS needed
    WHERE needed.object_id = tables.object_id AND LOWER(needed.name) IN ('headers', 'body')
) = 2
ORDER BY 1, 2, 3;

-- name: snapshot
SELECT
    {number},
    counted.waiting,
    counted.expiring,
    counted.expired,
    (SELECT MAX(RowVersion) - MIN(RowVersion) + 1 FROM {table} WITH (READPAST, READCOMMITTEDLOCK)),
    (SELECT TOP (1) Headers FROM {table} WITH (READPAST, READCOMMITTEDLOCK) ORDER BY RowVersion ASC),
    CAST(IDENT_CURRENT(CAST(:table AS nvarchar(800))) AS bigint),
    NULL,
    NULL
FROM (
    SELECT
        COUNT(*) AS waiting,
        COUNT(head.Expires) AS expiring,
        COUNT(CASE WHEN head.Expires <= GETUTCDATE() THEN 1 END) AS expired
    FROM (
        SELECT TOP (CAST(:limit AS int)) Expires FROM {table} WITH (READPAST, READCOMMITTEDLOCK) ORDER BY RowVersion ASC
    ) AS head
) AS counted;

-- name: count_expiries
SELECT
    {number},
    (
        SELECT COUNT(*) FROM (
            SELECT TOP (CAST(:limit AS int)) Expires FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
            WHERE Expires IS NOT NULL ORDER BY Expires ASC
        ) AS expiring
    ),
    (
        SELECT COUNT(*) FROM (
            SELECT TOP (CAST(:limit AS int)) Expires FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
            WHERE Expires <= GETUTCDATE() ORDER BY Expires ASC
        ) AS expired
    );

-- name: snapshot_delayed
SELECT
    {number},
    (SELECT COUNT(*) FROM (SELECT TOP (CAST(:limit AS int)) Due FROM {table} WITH (READPAST, READCOMMITTEDLOCK)) AS counted),
    (
        SELECT COUNT(*) FROM (
            SELECT TOP (CAST(:limit AS int)) Due FROM {table} WITH (READPAST, READCOMMITTEDLOCK) WHERE Due <= GETUTCDATE()
        ) AS overdue
    ),
    (
        SELECT TOP (1) CAST(DATEDIFF_BIG(millisecond, CAST('19700101' AS datetime2), Due) AS float) / 1000.0
        FROM {table} WITH (READPAST, READCOMMITTEDLOCK) ORDER BY Due ASC
    );

-- name: find_in_queue
-- The matches among the first or last rows, and the first row that was not searched.
SELECT {number}, CAST(NULL AS bigint), found.RowVersion, found.Id, found.Headers, CAST(NULL AS float)
FROM (
    SELECT TOP (CAST(:limit AS int)) head.RowVersion, head.Id, head.Headers
    FROM (
        SELECT TOP (CAST(:rows AS int)) RowVersion, Id, Headers{body}
        FROM {table} WITH (READPAST, READCOMMITTEDLOCK) WHERE RowVersion <= :before ORDER BY RowVersion {order}
    ) AS head
    WHERE {holds}
) AS found
UNION ALL
SELECT {number}, rest.RowVersion, NULL, NULL, NULL, NULL
FROM (
    SELECT RowVersion FROM {table} WITH (READPAST, READCOMMITTEDLOCK) WHERE RowVersion <= :before
    ORDER BY RowVersion {order} OFFSET CAST(:rows AS int) ROWS FETCH NEXT 1 ROWS ONLY
) AS rest;

-- name: find_in_delayed
-- As `find_in_queue`, for delayed messages by due time, which is returned too.
SELECT
    {number}, CAST(NULL AS bigint), found.RowVersion, CAST(NULL AS uniqueidentifier), found.Headers,
    CAST(DATEDIFF_BIG(millisecond, CAST('19700101' AS datetime2), found.Due) AS float) / 1000.0
FROM (
    SELECT TOP (CAST(:limit AS int)) head.RowVersion, head.Headers, head.Due
    FROM (
        SELECT TOP (CAST(:rows AS int)) RowVersion, Headers, Due{body}
        FROM {table} WITH (READPAST, READCOMMITTEDLOCK) ORDER BY Due {order}
    ) AS head
    WHERE {holds}
) AS found
UNION ALL
SELECT {number}, CAST(0 AS bigint), NULL, NULL, NULL, NULL
FROM (
    SELECT Due FROM {table} WITH (READPAST, READCOMMITTEDLOCK)
    ORDER BY Due {order} OFFSET CAST(:rows AS int) ROWS FETCH NEXT 1 ROWS ONLY
) AS rest;

-- name: holds_in_headers
CHARINDEX(LOWER(CAST(:text AS nvarchar(4000))), LOWER(head.Headers)) > 0;

-- name: holds_exactly_in_headers
CHARINDEX(CAST(:text AS nvarchar(4000)) COLLATE Latin1_General_BIN2, head.Headers) > 0;

-- name: holds_in_body
-- Compares UTF-8 bytes, read on both sides in the code page of the database: bodies are UTF-8, but text cast to varchar is not.
CHARINDEX(
    LOWER(CAST(CAST(:text_bytes AS varbinary(8000)) AS varchar(8000))),
    LOWER(CAST(SUBSTRING(head.Body, 1, :body_limit) AS varchar(max)))
) > 0;

-- name: holds_row_id
head.Id = CAST(:row_id AS uniqueidentifier);

-- name: keeps_row_versions
-- Whether READ_COMMITTED_SNAPSHOT is on: a query without READPAST then reads the committed version of locked rows, without waiting.
SELECT CAST(is_read_committed_snapshot_on AS int) FROM sys.databases WHERE database_id = DB_ID();
