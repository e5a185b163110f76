"""The exact DDL of the migration operations, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import MigrationWriter
from pytest_django import Settings

from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.migration_operations import CreateDelayedTable, CreateQueue, CreateSubscriptionTable, DropQueue
from tests.installation.offline import offline_connection

CLASSIC = [
    """CREATE TABLE [shop].[dbo].[Sales](
    [Id] [uniqueidentifier] NOT NULL,
    [CorrelationId] [varchar](255),
    [ReplyToAddress] [varchar](255),
    [Recoverable] [bit] NOT NULL,
    [Expires] [datetime],
    [Headers] [varchar](max) NOT NULL,
    [Body] [varbinary](max),
    [RowVersion] [bigint] IDENTITY(1,1) NOT NULL
)
ON [PRIMARY];""",
    """CREATE CLUSTERED INDEX [Index_RowVersion] ON [shop].[dbo].[Sales]
(
    [RowVersion] ASC
);""",
    """CREATE NONCLUSTERED INDEX [Index_Expires] ON [shop].[dbo].[Sales]
(
    [Expires] ASC
)
INCLUDE
(
    [Id],
    [RowVersion]
);""",
]
MODERN = [
    """CREATE TABLE [shop].[dbo].[Sales](
    [Id] [uniqueidentifier] NOT NULL,
    [CorrelationId] [varchar](255) NULL,
    [ReplyToAddress] [varchar](255) NULL,
    [Recoverable] [bit] NOT NULL,
    [Expires] [datetime] NULL,
    [Headers] [nvarchar](max) NOT NULL,
    [Body] [varbinary](max) NULL,
    [RowVersion] [bigint] IDENTITY(1,1) NOT NULL
);""",
    """CREATE NONCLUSTERED INDEX [Index_RowVersion] ON [shop].[dbo].[Sales]
(
    [RowVersion] ASC
);""",
    """CREATE NONCLUSTERED INDEX [Index_Expires] ON [shop].[dbo].[Sales]
(
    [Expires] ASC
)
INCLUDE
(
    [Id],
    [RowVersion]
)
WHERE [Expires] IS NOT NULL;""",
]


def wake_up_trigger(table: str, digest: str, *, requested: int, sending: int) -> str:
    return f"""CREATE OR REPLACE TRIGGER "sqlqueue_wake_up" AFTER INSERT ON {table}
FOR EACH STATEMENT
WHEN (
    CASE WHEN pg_catalog.pg_try_advisory_xact_lock_shared({sending}) THEN
        CASE WHEN pg_catalog.pg_try_advisory_lock({requested}) THEN NOT pg_catalog.pg_advisory_unlock({requested}) ELSE true END
    ELSE true END
)
EXECUTE FUNCTION "public"."sqlqueue_wake_up"('sqlqueue_{digest}');"""


WAKE_UP_FUNCTION = """DO $sqlqueue_do$ BEGIN
IF pg_catalog.to_regprocedure('"public"."sqlqueue_wake_up"()') IS NULL THEN
CREATE FUNCTION "public"."sqlqueue_wake_up"() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $sqlqueue_function$
BEGIN
    PERFORM pg_catalog.pg_notify(TG_ARGV[0], '');
    RETURN NULL;
END
$sqlqueue_function$;
END IF;
EXCEPTION WHEN duplicate_function OR unique_violation THEN NULL;
END $sqlqueue_do$;"""
POSTGRESQL = [
    """CREATE TABLE "public"."Sales" (
    id uuid PRIMARY KEY,
    expires timestamp without time zone NULL,
    headers text NOT NULL,
    body bytea NULL,
    seq bigserial NOT NULL UNIQUE
);""",
    """CREATE INDEX "Sales_Expires" ON "public"."Sales" (expires) WHERE expires IS NOT NULL;""",
    WAKE_UP_FUNCTION,
    wake_up_trigger(
        '"public"."Sales"', "541dc94ed59d6a61686e9fc83352a9fe", requested=6061222013939051105, sending=7525127709586008574
    ),
]
SQLITE = [
    """CREATE TABLE "Sales" (
    Id char(32) NOT NULL,
    CorrelationId varchar(255) NULL,
    ReplyToAddress varchar(255) NULL,
    Recoverable bool NOT NULL,
    Expires datetime NULL,
    Headers text NOT NULL,
    Body BLOB NULL,
    RowVersion INTEGER PRIMARY KEY AUTOINCREMENT
);""",
    """CREATE INDEX "Sales_Expires" ON "Sales" (Expires) WHERE Expires IS NOT NULL;""",
]
DELAYED = {
    "sqlserver": [
        """CREATE TABLE [shop].[dbo].[Sales.Delayed](
    [Headers] [nvarchar](max) NOT NULL,
    [Body] [varbinary](max) NULL,
    [Due] [datetime] NOT NULL,
    [RowVersion] [bigint] IDENTITY(1,1) NOT NULL
);""",
        """CREATE NONCLUSTERED INDEX [Index_Due] ON [shop].[dbo].[Sales.Delayed]
(
    [Due] ASC
);""",
    ],
    "postgresql": [
        """CREATE TABLE "public"."Sales.Delayed" (
    id uuid DEFAULT gen_random_uuid() PRIMARY KEY,
    headers text NOT NULL,
    body bytea NULL,
    due timestamp with time zone NOT NULL
) WITH (fillfactor = 100);""",
        """CREATE INDEX "Sales.Delayed_Due" ON "public"."Sales.Delayed" (due);""",
        WAKE_UP_FUNCTION,
        wake_up_trigger(
            '"public"."Sales.Delayed"',
            "520b8ff2e7be7f7f7395627a2306702b",
            requested=5911977209286786943,
            sending=8328671362604757035,
        ),
    ],
    "sqlite": [
        """CREATE TABLE "Sales.Delayed" (
    Headers text NOT NULL,
    Body BLOB NULL,
    Due datetime NOT NULL,
    RowVersion INTEGER PRIMARY KEY AUTOINCREMENT
);""",
        """CREATE INDEX "Sales.Delayed_Due" ON "Sales.Delayed" (Due);""",
    ],
}
SUBSCRIPTIONS = {
    "sqlserver": [
        """CREATE TABLE [shop].[dbo].[SubscriptionRouting](
    [QueueAddress] [nvarchar](200) NOT NULL,
    [Endpoint] [nvarchar](200) NOT NULL,
    [Topic] [nvarchar](200) NOT NULL,
    PRIMARY KEY CLUSTERED ([Endpoint] ASC, [Topic] ASC)
);"""
    ],
    "postgresql": [
        """CREATE TABLE "public"."SubscriptionRouting" (
    queueaddress varchar(200) NOT NULL,
    endpoint varchar(200) NOT NULL,
    topic varchar(200) NOT NULL,
    PRIMARY KEY (endpoint, topic)
) WITH (fillfactor = 100);"""
    ],
    "sqlite": [
        """CREATE TABLE "SubscriptionRouting" (
    QueueAddress varchar(200) NOT NULL,
    Endpoint varchar(200) NOT NULL,
    Topic varchar(200) NOT NULL,
    PRIMARY KEY (Endpoint, Topic)
);"""
    ],
}
DROP = {
    "sqlserver": ["DROP TABLE [shop].[dbo].[Sales];"],
    "postgresql": ['DROP TABLE "public"."Sales";'],
    "sqlite": ['DROP TABLE "Sales";'],
}
VENDORS = ["sqlserver", "postgresql", "sqlite"]
QUEUE = {"sqlserver": CLASSIC, "postgresql": POSTGRESQL, "sqlite": SQLITE}


def collected(vendor: str, settings: Settings, operation: Any, *, backwards: bool = False, **sqlqueue: Any) -> list[str]:
    """The statements that the operation would send to a database of this product."""
    with offline_connection(vendor) as connection:
        settings.SQLQUEUE = {"DATABASE": "offline", "ENDPOINTS": {}, **sqlqueue}
        before, after = ProjectState(), ProjectState()
        operation.state_forwards("shop", after)
        assert after == before
        # not used as a context manager: on entry the editor of SQLite queries the database for its constraints
        editor = connection.schema_editor(collect_sql=True, atomic=False)
        editor.deferred_sql = []
        if backwards:
            operation.database_backwards("shop", editor, after, before)
        else:
            operation.database_forwards("shop", editor, before, after)
        settings.SQLQUEUE = {"ENDPOINTS": {}}
        assert connection.connection is None
        return list(editor.collected_sql)


@pytest.mark.parametrize("vendor", VENDORS)
def test_create_queue(vendor: str, settings: Settings) -> None:
    assert collected(vendor, settings, CreateQueue("Sales")) == QUEUE[vendor]


@pytest.mark.parametrize("given", [{"layout": "modern"}, {}])
def test_create_queue_in_todays_layout(settings: Settings, given: dict[str, str]) -> None:
    by_settings = {} if given else {"TABLE_LAYOUT": "modern"}
    assert collected("sqlserver", settings, CreateQueue("Sales", **given), **by_settings) == MODERN  # type: ignore[arg-type]


@pytest.mark.parametrize("vendor", VENDORS)
def test_create_delayed_table(vendor: str, settings: Settings) -> None:
    assert collected(vendor, settings, CreateDelayedTable("Sales.Delayed")) == DELAYED[vendor]


@pytest.mark.parametrize("vendor", VENDORS)
def test_create_subscription_table(vendor: str, settings: Settings) -> None:
    assert collected(vendor, settings, CreateSubscriptionTable()) == SUBSCRIPTIONS[vendor]


@pytest.mark.parametrize("vendor", VENDORS)
def test_drop_queue(vendor: str, settings: Settings) -> None:
    assert collected(vendor, settings, DropQueue("Sales")) == DROP[vendor]
    assert collected(vendor, settings, DropQueue("Sales"), backwards=True) == QUEUE[vendor]
    assert collected(vendor, settings, CreateQueue("Sales"), backwards=True) == DROP[vendor]


@pytest.mark.parametrize("create", [CreateDelayedTable("Sales.Delayed"), CreateSubscriptionTable()])
@pytest.mark.parametrize("vendor", VENDORS)
def test_dropping_another_kind_of_table_is_the_reverse_of_creating_it(vendor: str, settings: Settings, create: Any) -> None:
    drop = DropQueue(create.name)
    place: dict[str, Any] = {} if vendor == "sqlite" else {"SCHEMA_FOR_QUEUE": {"Sales": "sales"}}
    assert collected(vendor, settings, drop, **place) == collected(vendor, settings, create, backwards=True, **place)
    assert collected(vendor, settings, drop, backwards=True, **place) == collected(vendor, settings, create, **place)


def test_schemas_come_from_the_operation_the_settings_or_the_endpoint(settings: Settings) -> None:
    def first_line(operation: Any, vendor: str = "sqlserver", **sqlqueue: Any) -> str:
        return collected(vendor, settings, operation, **sqlqueue)[0].splitlines()[0]

    for_queue: dict[str, Any] = {"SCHEMA_FOR_QUEUE": {"Sales": "sal]es"}, "DEFAULT_SCHEMA": "app"}
    assert first_line(CreateQueue("Sales"), **for_queue) == "CREATE TABLE [shop].[sal]]es].[Sales]("
    assert first_line(CreateDelayedTable("Sales.Delayed"), **for_queue) == "CREATE TABLE [shop].[sal]]es].[Sales.Delayed]("
    assert first_line(CreateSubscriptionTable(), **for_queue) == "CREATE TABLE [shop].[app].[SubscriptionRouting]("
    assert first_line(CreateQueue("error", schema="ops"), "postgresql", **for_queue) == 'CREATE TABLE "ops"."error" ('
    assert first_line(CreateQueue("error", catalog="other"), **for_queue) == "CREATE TABLE [other].[app].[error]("
    assert first_line(CreateQueue("100%"), "sqlite") == 'CREATE TABLE "100%" ('


def test_other_databases_are_left_alone(settings: Settings) -> None:
    assert collected("postgresql", settings, CreateQueue("Sales"), DATABASE="default") == []
    assert collected("postgresql", settings, DropQueue("Sales"), DATABASE="default") == []


@pytest.mark.parametrize(("vendor", "name"), [("postgresql", "ü" * 28), ("sqlserver", "x" * 129)])
def test_names_over_the_limit_are_refused(settings: Settings, vendor: str, name: str) -> None:
    with pytest.raises(AddressError, match="choose a shorter name"):
        collected(vendor, settings, CreateQueue(name))


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (CreateQueue("Sales"), "Create queue table 'Sales'"),
        (CreateDelayedTable("Sales.Delayed"), "Create delayed table 'Sales.Delayed'"),
        (CreateSubscriptionTable(), "Create subscriptions table 'SubscriptionRouting'"),
        (DropQueue("Sales"), "Drop queue table 'Sales'"),
        (DropQueue("Sales.Delayed", schema="ops"), "Drop delayed table 'Sales.Delayed'"),
        (CreateQueue("error", schema="ops", layout="modern"), "Create queue table 'error'"),
    ],
)
def test_operations_are_written_into_files_and_read_back(operation: Any, text: str) -> None:
    assert operation.describe() == text
    written, imports = MigrationWriter.serialize(operation)
    read: dict[str, Any] = {}
    exec("\n".join(sorted(imports)) + f"\nread = {written}", read)
    assert type(read["read"]) is type(operation)
    assert read["read"].deconstruct() == operation.deconstruct()
