"""`queue_model("Sales")`: a queue table through Django's ORM and admin."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core import checks
from django.core.management import call_command
from django.db import IntegrityError, models
from django.test import Client
from django.urls import clear_url_caches
from pytest_django import Settings

from sqlqueue_app.dashboard.access import Permission as DashboardPermission
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError, ConfigurationError
from sqlqueue_app.models import Instance, Queue, Schedule, queue_model, queue_models
from sqlqueue_app.tables.receive_transaction import receive_transaction
from tests.installation.offline import offline_connection
from tests.support import urls
from tests.support.databases import ROOT, QueueDatabase
from tests.support.tables import execute, make_table, row

NOON = datetime(2026, 11, 20, 12, 0, 0, 123000, tzinfo=UTC)


def test_sent_message_is_read_by_the_model(queue_database: QueueDatabase) -> None:
    queue = make_table(queue_database)
    sent = row(b"\x00\xff", '{"a": "é"}', time_to_be_received_ms=60_000)
    queue.send([sent, row(b"second")])
    model: Any = queue_model("Sales")
    first, second = model.objects.all()
    assert (first.id, first.headers, bytes(first.body)) == (uuid.UUID(sent.id), sent.headers, b"\x00\xff")
    assert timedelta(seconds=50) < first.expires - datetime.now(UTC) <= timedelta(seconds=60)
    assert first.expires.utcoffset() == timedelta()
    assert second.expires is None
    assert first.row_version < second.row_version
    assert model.objects.filter(expires__gt=datetime.now(UTC)).count() == 1
    assert model.objects.filter(expires__isnull=True).get() == second
    assert model.objects.filter(id=sent.id).exists()
    assert list(model.objects.order_by("-row_version").values_list("row_version", flat=True)) == [second.pk, first.pk]


def test_row_created_by_the_orm_is_received(queue_database: QueueDatabase) -> None:
    queue = make_table(queue_database)
    model: Any = queue_model("Sales")
    created = model.objects.create(headers='{"x": "y"}', body=b"hello", expires=datetime.now(UTC) + timedelta(hours=1))
    assert isinstance(created.row_version, int)
    late = model(body=b"late", expires=datetime.now(UTC) - timedelta(seconds=1))
    late.save()
    receiving = receive_transaction(queue)
    received = receiving.receive()
    receiving.commit()
    assert received is not None
    assert (received.id, received.body, received.expired) == (created.id, b"hello", False)
    assert queue.depth().expired == 1
    late.headers = "{}"
    late.save()
    assert late.delete()[0] == 1
    model.objects.bulk_create([model(body=b"%d" % number) for number in range(3)])
    assert model.objects.all().delete()[0] == 3
    assert queue.depth().waiting == 0


@pytest.mark.parametrize("use_tz", [True, False])
def test_instants_are_utc_with_any_settings(queue_database: QueueDatabase, settings: Settings, use_tz: bool) -> None:
    queue = make_table(queue_database)
    settings.USE_TZ = use_tz
    settings.TIME_ZONE = "America/New_York"
    queue_database.connection.close()
    model: Any = queue_model("Sales")
    elsewhere = NOON.astimezone(timezone(timedelta(hours=9)))
    model.objects.create(expires=elsewhere)
    assert model.objects.get().expires == NOON
    assert queue.peek(1)[0].expires == NOON
    assert model.objects.filter(expires=elsewhere).count() == 1
    assert model.objects.filter(expires__lte=NOON).count() == 1
    assert model.objects.filter(expires__lt=NOON).count() == 0
    assert model.objects.filter(expires__range=(NOON, NOON + timedelta(1))).count() == 1
    assert model.objects.aggregate(at=models.Max("expires"))["at"] == NOON
    queue_database.connection.close()


@pytest.mark.parametrize("name", ["100%", "%s", "a]b\"c'd", "dots.and spaces", "Käse", "select", "a;--"])
def test_queues_with_any_name_have_models(queue_database: QueueDatabase, name: str) -> None:
    queue = make_table(queue_database, name=name)
    model: Any = queue_model(name)
    model.objects.create(body=b"1")
    queue.send([row(b"2")])
    assert [bytes(each.body) for each in model.objects.all()] == [b"1", b"2"]
    assert model.objects.filter(headers__contains="{").count() == 2
    assert model.objects.update(headers="[]") == 2
    model.objects.first().delete()
    assert queue.depth().waiting == 1
    assert checks.run_checks(app_configs=[apps.get_app_config("sqlqueue_queues")]) == []


def test_queues_in_other_schemas_have_models(postgresql_database: QueueDatabase) -> None:
    execute(postgresql_database, 'CREATE SCHEMA "my ops%"')
    postgresql_database.configure(SCHEMA_FOR_QUEUE={"error": "my ops%"})
    there = make_table(postgresql_database, name="error", schema="my ops%")
    here = make_table(postgresql_database, name="error")
    model: Any = queue_model("error")
    model.objects.create(body=b"there")
    assert (there.depth().waiting, here.depth().waiting) == (1, 0)
    assert model.objects.get().body == b"there"
    other: Any = queue_model(QueueAddress("error", "public", form="postgresql"))
    # the setting for the queue takes precedence over an address (docs/internals/wire.md#address-resolution)
    assert other is model


def test_the_same_queue_gives_the_same_class(sqlite_database: QueueDatabase) -> None:
    model = queue_model("Sales")
    assert queue_model("Sales") is model
    sqlite_database.configure(ENDPOINTS={"Sales": {}})
    assert queue_model("Sales") is model
    assert apps.get_model("sqlqueue_queues", "Sales") is model


def test_the_same_name_on_another_database_gives_another_class(queue_database: QueueDatabase, settings: Settings) -> None:
    model = queue_model("Sales")
    settings.SQLQUEUE = {**settings.SQLQUEUE, "DATABASE": "default" if queue_database.vendor != "sqlite" else "postgresql"}
    other = queue_model("Sales")
    assert other is not model
    assert apps.get_model("sqlqueue_queues", "Sales") is other


def test_names_of_classes_are_safe_and_differ(sqlite_database: QueueDatabase) -> None:
    names = ["Sales", "Sales.Priority", "Sales Priority", "__x__", "1st", "日本", "x" * 300, "a__b", "é"]
    made = [queue_model(name) for name in names]
    assert len({model.__name__.lower() for model in made}) == len(names)
    for model in made:
        assert model.__name__.isidentifier()
        assert len(model.__name__) <= 60
        assert checks.run_checks(app_configs=[apps.get_app_config("sqlqueue_queues")]) == []


def test_dumpdata_leaves_out_models_without_a_table(queue_database: QueueDatabase) -> None:
    out = StringIO()
    call_command("dumpdata", "sqlqueue_app", database=queue_database.alias, stdout=out)
    assert "sqlqueue_app.queue" not in {each["model"] for each in json.loads(out.getvalue())}


@pytest.mark.parametrize("form", ["json", "xml"])
def test_fixture_keeps_json(queue_database: QueueDatabase, tmp_path: Path, form: str) -> None:
    alias, file = queue_database.alias, tmp_path / f"rows.{form}"
    rows = Schedule.objects.using(alias)
    bodies = [{"a": ["\0", 1.5, None]}, ["5"], "5", "five", 5, True, None]
    rows.bulk_create(Schedule(name=str(number), body=body) for number, body in enumerate(bodies))
    call_command("dumpdata", "sqlqueue_app.Schedule", database=alias, format=form, output=str(file))
    rows.all().delete()
    call_command("loaddata", str(file), database=alias, verbosity=0)
    assert list(rows.order_by("name").values_list("body", flat=True)) == bodies


@pytest.mark.parametrize("body", ["5", "five", '{"a": 1}', 5, None])
def test_checked_row_keeps_its_json(body: object) -> None:
    row = Schedule(name="x", message_type="Sales", body=body)
    row.clean_fields()
    assert row.body == body
    assert type(row.body) is type(body)


def test_every_queue_of_the_settings_has_its_model(settings: Settings) -> None:
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {"SATELLITES": {"Sales.Priority": {}}, "AUDIT_QUEUE": "audit"}}}
    assert [model._meta.verbose_name for model in queue_models()] == ["Sales", "Sales.Priority", "error", "audit"]


def test_queue_of_send_as_has_its_model(settings: Settings) -> None:
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {}}, "SEND_AS": "Web"}
    assert [model._meta.verbose_name for model in queue_models()] == ["Sales", "Web", "error"]


def test_wrong_names_and_settings_are_refused(settings: Settings) -> None:
    with pytest.raises(AddressError):
        queue_model(" ")
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {"NOPE": 1}}}
    with pytest.raises(ConfigurationError, match="NOPE"):
        queue_model("Sales")


# Django reads the migration history of every alias; the server of the other one is not ready in this test
@pytest.mark.filterwarnings("ignore:Got an error checking a consistent migration history:RuntimeWarning")
def test_makemigrations_finds_no_changes(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={"Sales": {}})
    queue_models()
    out = StringIO()
    call_command("makemigrations", check_changes=True, dry_run=True, stdout=out)
    assert out.getvalue() == "No changes detected\n"


def test_permissions_of_queues_are_made(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={"Sales": {}})
    queue_models()
    call_command("migrate", verbosity=0)
    found = set(Permission.objects.filter(content_type__app_label="sqlqueue_queues").values_list("codename", flat=True))
    assert {"view_sales", "delete_sales", "view_error"} <= found
    anchor = Permission.objects.filter(content_type__app_label="sqlqueue_app", content_type__model="queue")
    assert set(anchor.values_list("codename", flat=True)) == set(DashboardPermission)


@pytest.fixture
def changelist(queue_database: QueueDatabase) -> Iterator[tuple[Client, str]]:
    """A superuser's browser, and the URL of the admin pages for the queue's messages."""
    make_table(queue_database).send([row(b"1", '{"subject": "one"}'), row(b"2")])
    model = queue_model("Sales")
    options = type("MessageAdmin", (admin.ModelAdmin,), {"list_display": ("row_version", "expires"), "search_fields": ("headers",)})
    already = admin.site.is_registered(model)
    if already:
        admin.site.unregister(model)
    admin.site.register(model, options)
    reload_urls()
    # it belongs to another test's database
    ContentType.objects.clear_cache()
    client = Client()
    client.force_login(User.objects.create_superuser("boss", "b@example.com", "x"))
    yield client, "/admin/sqlqueue_queues/sales/"
    admin.site.unregister(model)
    reload_urls()


def reload_urls() -> None:
    importlib.reload(urls)
    clear_url_caches()


def test_admin_lists_shows_and_deletes(changelist: tuple[Client, str]) -> None:
    client, address = changelist
    model: Any = queue_model("Sales")
    first, second = model.objects.all()
    page = client.get(address)
    assert page.status_code == 200
    assert f"{address}{first.pk}/change/" in page.text
    assert [each.pk for each in client.get(address, {"q": "subject"}).context["cl"].result_list] == [first.pk]
    assert client.get(f"{address}{first.pk}/change/").status_code == 200
    answer = client.post(address, {"action": "delete_selected", "_selected_action": [first.pk], "post": "yes"})
    assert answer.status_code == 302
    assert model.objects.get() == second


def test_sql_for_sql_server_is_made_without_a_server(settings: Settings) -> None:
    with offline_connection("sqlserver"):
        settings.SQLQUEUE = {"DATABASE": "offline", "SCHEMA_FOR_QUEUE": {"50%": "sal]es"}, "CATALOG_FOR_QUEUE": {"far": "other"}}
        model: Any = queue_model("50%")
        assert [field.column for field in model._meta.fields] == [
            "RowVersion", "Id", "CorrelationId", "ReplyToAddress", "Recoverable", "Expires", "Headers", "Body",
        ]  # fmt: skip
        sql, parameters = model.objects.filter(expires__lte=NOON, headers__contains="x").query.get_compiler("offline").as_sql()
        table = "[sal]]es].[50%%]"
        assert f"FROM {table} WHERE" in sql
        assert f"{table}.[Expires] <= %s" in sql
        # the database's own catalog is left out, so that the model follows the connection
        assert parameters[0] == NOON.replace(tzinfo=None)
        insert = models.sql.InsertQuery(model)
        insert.insert_values(model._meta.concrete_fields[1:], [model(expires=NOON)])
        compiler = insert.get_compiler("offline")
        compiler.return_results = True
        (statement, values) = compiler.as_sql()[0]
        assert statement.startswith(f"INSERT INTO {table} ([Id], [CorrelationId], [ReplyToAddress], [Recoverable], [Expires]")
        assert NOON.replace(tzinfo=None) in values
        far: Any = queue_model("far")
        assert "FROM [other].[dbo].[far]" in far.objects.all().query.get_compiler("offline").as_sql()[0]
        settings.SQLQUEUE = {"ENDPOINTS": {}}


def test_an_instance_leases_a_callback_queue_alone(queue_database: QueueDatabase) -> None:
    def lease(queue: str | None) -> Instance:
        return Instance.objects.create(
            endpoint="Sales", name="web1", host="web1", pid=1, callback_queue=queue, started_at=NOON, heartbeat_at=NOON
        )

    lease(None)
    lease(None)
    first = lease("Sales.web1")
    with pytest.raises(IntegrityError):
        lease("Sales.web1")
    first.delete()
    assert lease("Sales.web1").threads == {}
    assert Instance.objects.using(queue_database.alias).count() == 3
    assert str(first) == "Sales on web1 (1)"
    assert str(Queue(pk=3)) == "3"


def test_ready_makes_the_known_models_and_opens_no_connection() -> None:
    program = (
        "import sys, threading, django\n"
        "sys.addaudithook(lambda event, _: event in ('socket.connect', 'sqlite3.connect') and sys.exit(9))\n"
        "django.setup()\n"
        "assert threading.active_count() == 1\n"
        "from django.apps import apps\n"
        "print(sorted(model.__name__ for model in apps.get_app_config('sqlqueue_queues').get_models()))\n"
    )
    child = {"DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nonexistent/x"}}}
    for endpoints, expected in (({"Sales": {"CALLBACKS": False}}, ["Sales", "error"]), ({"Sales": {"NOPE": 1}}, [])):
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONPATH": str(ROOT),
            "SQLQUEUE_TEST_CHILD": json.dumps({**child, "SQLQUEUE": {"ENDPOINTS": endpoints}}),
        }
        ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
        assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", f"{expected}\n")
