"""What `check` reports about the tables, and with which SQL."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core import checks
from django.core.management import call_command
from pytest_django import Settings

from sqlqueue_app import checks as sqlqueue_checks
from sqlqueue_app.checks import check_names, check_router, check_tables
from sqlqueue_app.dialects.dialect import TableShape, dialect
from sqlqueue_app.tables import installation
from sqlqueue_app.tables.installation import migrate_command
from tests.installation.offline import offline_connection
from tests.support.databases import QueueDatabase
from tests.support.tables import execute, golden_statements

ENDPOINTS: dict[str, Any] = {"Sales": {"CALLBACKS": False}}
NEEDED = 4


def ids(messages: list[checks.CheckMessage]) -> list[str | None]:
    return [message.id for message in messages]


def test_each_missing_table_is_a_warning_with_its_sql(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    found = check_tables(databases=[queue_database.alias])
    assert ids(found) == ["sqlqueue.W031"] * NEEDED
    assert all(message.level == checks.WARNING for message in found)
    assert "CREATE TABLE" in str(found[0].hint)
    call_command("sqlqueue_install", stdout=StringIO())
    assert [message for message in check_tables(databases=[queue_database.alias]) if message.level > checks.INFO] == []


def test_one_warning_lists_all_missing_tables_before_the_first_migrate(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    execute(queue_database, "DROP TABLE sqlqueue_app_instance")
    (message,) = check_tables(databases=[queue_database.alias])
    assert message.id == "sqlqueue.W031"
    assert f"the {NEEDED} tables of the endpoints do not exist" in message.msg
    assert "Sales" in message.msg
    assert message.hint == f"run {migrate_command(queue_database.alias)}; sqlqueue_install --sql prints the SQL"


def test_migrate_names_a_database_that_it_would_leave_out() -> None:
    assert migrate_command("default") == "migrate"
    assert migrate_command("queues") == "migrate --database queues"


def test_missing_own_tables_are_a_warning_when_the_queues_exist(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    call_command("sqlqueue_install", stdout=StringIO())
    execute(queue_database, "DROP TABLE sqlqueue_app_instance")
    (message,) = [each for each in check_tables(databases=[queue_database.alias]) if each.level > checks.INFO]
    assert message.id == "sqlqueue.W031"
    assert "the app's own tables do not exist" in message.msg
    assert message.hint == f"run {migrate_command(queue_database.alias)}, which creates the tables of sqlqueue_app"


def test_only_named_databases_are_checked(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    queue_database.connection.close()
    assert check_tables() == []
    assert check_tables(databases=None) == []
    assert check_tables(databases=["other"]) == []
    assert queue_database.connection.connection is None


def test_missing_index_and_foreign_table_are_reported(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS)
    for statement in golden_statements("Sales", 'public."Sales"'):
        execute(postgresql_database, statement)
    execute(postgresql_database, "CREATE TABLE error (id int)")
    found = {message.id: message for message in check_tables(databases=["postgresql"])}
    assert found.keys() == {"sqlqueue.W031", "sqlqueue.W032", "sqlqueue.W033", "sqlqueue.I031"}
    assert '"public"."Sales"' in found.pop("sqlqueue.I031").msg
    assert found["sqlqueue.W032"].hint == 'CREATE INDEX "Sales_Expires" ON "public"."Sales" (expires) WHERE expires IS NOT NULL;'
    assert '"public"."Sales"' in found["sqlqueue.W032"].msg
    assert all(message.level == checks.WARNING for message in found.values())


@pytest.mark.parametrize("layout", ["classic", "modern"])
def test_findings_on_sql_server_are_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """The catalog views of a table with varchar headers and no index, read without a server."""
    names = ("Id", "CorrelationId", "ReplyToAddress", "Recoverable", "Expires", "Headers", "Body", "RowVersion")
    seen = TableShape(tuple((name, "varchar") for name in names), (("RowVersion", "CLUSTERED"),))
    monkeypatch.setattr(installation, "shape_of_table", lambda *_: seen)
    monkeypatch.setattr(sqlqueue_checks, "_migrated", lambda: True)
    with offline_connection("sqlserver"):
        settings.SQLQUEUE = {"DATABASE": "offline", "ENDPOINTS": {"error2": {"CALLBACKS": False}}, "TABLE_LAYOUT": layout}
        found = [message for message in check_tables(databases=["offline"]) if "[error2]" in message.msg]
        settings.SQLQUEUE = {"ENDPOINTS": {}}
    index, headers = found
    assert (index.id, index.level) == ("sqlqueue.W032", checks.WARNING)
    assert str(index.hint).startswith("CREATE NONCLUSTERED INDEX [Index_Expires] ON [shop].[dbo].[error2]")
    assert ("WHERE [Expires] IS NOT NULL" in str(index.hint)) is (layout == "modern")
    assert (headers.id, headers.level) == ("sqlqueue.I030", checks.INFO)
    assert headers.hint == "ALTER TABLE [shop].[dbo].[error2] ALTER COLUMN [Headers] [nvarchar](max) NOT NULL;"


@pytest.fixture(params=["sqlite", "postgresql"])
def unreachable(request: pytest.FixtureRequest, settings: Settings, django_db_blocker: Any) -> Iterator[str]:
    with offline_connection(request.param), django_db_blocker.unblock():
        settings.SQLQUEUE = {"DATABASE": "offline", "ENDPOINTS": ENDPOINTS}
        yield "offline"
        settings.SQLQUEUE = {"ENDPOINTS": {}}


def test_unreachable_database_is_a_warning_with_its_name(unreachable: str) -> None:
    (message,) = check_tables(databases=[unreachable])
    assert (message.id, message.level) == ("sqlqueue.W034", checks.WARNING)
    assert "'offline'" in message.msg
    assert "\n" not in message.msg


def test_wrong_settings_are_left_to_their_own_checks(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={"Sales": {"NOPE": 1}})
    assert check_tables(databases=["default"]) == []
    assert check_names() == []
    assert check_router() == []


def test_project_without_the_setting_is_not_checked(settings: Settings) -> None:
    del settings.SQLQUEUE
    assert check_tables(databases=["default"]) == []
    assert check_names() == []


def test_too_long_names_are_errors(settings: Settings) -> None:
    settings.SQLQUEUE = {
        "DATABASE": "postgresql",
        "ENDPOINTS": {"Sales": {"CALLBACKS": True, "INSTANCE": "m" * 60, "CALLBACK_QUEUES": 1}},
    }
    (message,) = check_names()
    assert (message.id, message.level) == ("sqlqueue.E030", checks.ERROR)
    assert f"'Sales.{'m' * 60}'" in message.msg
    assert "INSTANCE" in str(message.hint)


def test_queues_outside_default_need_the_router(settings: Settings) -> None:
    settings.SQLQUEUE = {"DATABASE": "postgresql", "ENDPOINTS": {}}
    settings.DATABASE_ROUTERS = []
    (message,) = check_router()
    assert message.id == "sqlqueue.W030"
    assert "SqlQueueRouter" in str(message.hint)
    settings.DATABASE_ROUTERS = ["sqlqueue_app.routers.SqlQueueRouter"]
    assert check_router() == []


def test_migrate_continues_after_the_warnings(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    err = StringIO()
    call_command("migrate", database=queue_database.alias, verbosity=0, skip_checks=False, stderr=err)
    tables = queue_database.connection.introspection.table_names()
    assert {"Sales", "error"} <= set(tables)
    assert dialect(queue_database.vendor).name == queue_database.vendor
