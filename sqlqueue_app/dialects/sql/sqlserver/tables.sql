-- Tables and indexes on SQL Server: `classic` as in transport 2.2.2 to 3.0, `modern` as in current versions.

-- name: create_queue_classic
-- Verbatim from these versions, so that a DBA sees no difference.
CREATE TABLE {table}(
    [Id] [uniqueidentifier] NOT NULL,
    [CorrelationId] [varchar](255),
    [ReplyToAddress] [varchar](255),
    [Recoverable] [bit] NOT NULL,
    [Expires] [datetime],
    [Headers] [varchar](max) NOT NULL,
    [Body] [varbinary](max),
    [RowVersion] [bigint] IDENTITY(1,1) NOT NULL
)
ON [PRIMARY];

-- name: create_row_version_index_classic
CREATE CLUSTERED INDEX [Index_RowVersion] ON {table}
(
    [RowVersion] ASC
);

-- name: create_expires_index_classic
CREATE NONCLUSTERED INDEX [Index_Expires] ON {table}
(
    [Expires] ASC
)
INCLUDE
(
    [Id],
    [RowVersion]
);

-- name: create_queue_modern
CREATE TABLE {table}(
    [Id] [uniqueidentifier] NOT NULL,
    [CorrelationId] [varchar](255) NULL,
    [ReplyToAddress] [varchar](255) NULL,
    [Recoverable] [bit] NOT NULL,
    [Expires] [datetime] NULL,
    [Headers] [nvarchar](max) NOT NULL,
    [Body] [varbinary](max) NULL,
    [RowVersion] [bigint] IDENTITY(1,1) NOT NULL
);

-- name: create_row_version_index_modern
CREATE NONCLUSTERED INDEX [Index_RowVersion] ON {table}
(
    [RowVersion] ASC
);

-- name: create_expires_index_modern
CREATE NONCLUSTERED INDEX [Index_Expires] ON {table}
(
    [Expires] ASC
)
INCLUDE
(
    [Id],
    [RowVersion]
)
WHERE [Expires] IS NOT NULL;

-- name: create_delayed
CREATE TABLE {table}(
    [Headers] [nvarchar](max) NOT NULL,
    [Body] [varbinary](max) NULL,
    [Due] [datetime] NOT NULL,
    [RowVersion] [bigint] IDENTITY(1,1) NOT NULL
);

-- name: create_due_index
CREATE NONCLUSTERED INDEX [Index_Due] ON {table}
(
    [Due] ASC
);

-- name: create_subscriptions
CREATE TABLE {table}(
    [QueueAddress] [nvarchar](200) NOT NULL,
    [Endpoint] [nvarchar](200) NOT NULL,
    [Topic] [nvarchar](200) NOT NULL,
    PRIMARY KEY CLUSTERED ([Endpoint] ASC, [Topic] ASC)
);

-- name: drop_table
DROP TABLE {table};

-- name: any_row
-- Locks out all other readers and writers of the table until the transaction ends.
SELECT TOP (1) 1 FROM {table} WITH (TABLOCKX, HOLDLOCK, NOWAIT);

-- name: lock_installation
-- Held until the transaction ends. The resource name is the transport's, so that the installers of both wait for each other.
EXEC sp_getapplock @Resource = :resource, @LockMode = 'Exclusive';

-- name: table_exists
SELECT CASE WHEN OBJECT_ID(CAST(:table AS nvarchar(800)), N'U') IS NULL THEN 0 ELSE 1 END;

-- name: may_use_catalog
SELECT CASE WHEN LEN(CAST(:catalog AS nvarchar(4000))) <= 128 THEN HAS_DBACCESS(CAST(:catalog AS nvarchar(128))) END;

-- name: columns
SELECT columns.name, types.name
FROM {catalog}sys.columns AS columns
INNER JOIN {catalog}sys.types AS types ON types.user_type_id = columns.user_type_id
WHERE columns.object_id = OBJECT_ID(CAST(:table AS nvarchar(800)), N'U')
ORDER BY columns.column_id;

-- name: indexes
-- The first key column and the kind of each index.
SELECT columns.name, indexes.type_desc
FROM {catalog}sys.indexes AS indexes
INNER JOIN {catalog}sys.index_columns AS keys
    ON keys.object_id = indexes.object_id AND keys.index_id = indexes.index_id AND keys.key_ordinal = 1
INNER JOIN {catalog}sys.columns AS columns
    ON columns.object_id = keys.object_id AND columns.column_id = keys.column_id
WHERE indexes.object_id = OBJECT_ID(CAST(:table AS nvarchar(800)), N'U');

-- name: grant
GRANT {rights} ON {table} TO {role};

-- name: grant_existing
-- For managed tables, which may not exist yet because `migrate` creates them.
IF OBJECT_ID(N'{literal}', N'U') IS NOT NULL GRANT {rights} ON {table} TO {role};

-- name: clock
-- Wall-clock time in whole seconds since 1970.
SELECT DATEDIFF_BIG(second, CAST('19700101' AS datetime2), SYSUTCDATETIME());
