"""The queue tables in the admin's menu: listed, read-only, counted within bounds."""

from __future__ import annotations

import pytest
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.auth.models import Permission, User
from django.test import Client, RequestFactory
from django.urls import URLResolver, clear_url_caches, path

from sqlqueue_app import send_many
from sqlqueue_app.dashboard import registration as queue_model_admin
from sqlqueue_app.dashboard.registration import QueueMessageAdmin, register_tables
from sqlqueue_app.messages.errors import ConnectionLost
from sqlqueue_app.models import queue_model
from tests.support.databases import QueueDatabase
from tests.support.filling import table

site = AdminSite(name="tables")
urlpatterns: list[URLResolver] = []


@pytest.fixture
def filled(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> QueueDatabase:
    from django.core.management import call_command

    queue_database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}}, ROUTES={"T": "Sales"})
    queue_database.settings.ROOT_URLCONF = __name__
    call_command("sqlqueue_install", verbosity=0, stdout=None)
    send_many("T", [{"n": n} for n in range(7)])
    site._registry.clear()
    register_tables(site)
    urlpatterns[:] = [path("tables/", site.urls)]
    clear_url_caches()
    monkeypatch.setattr(queue_model_admin, "EXACT_COUNT_LIMIT", 5)
    return queue_database


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_every_configured_queue_is_in_the_menu_with_its_rows(filled: QueueDatabase) -> None:
    client = client_of(User.objects.create_superuser("root"))
    menu = client.get("/tables/").content.decode()
    assert "/tables/sqlqueue_queues/sales/" in menu
    assert "/tables/sqlqueue_queues/error/" in menu
    page = client.get("/tables/sqlqueue_queues/sales/")
    assert page.status_code == 200
    assert page.context["cl"].result_count == 6  # one more than the limit of exact counts
    row = queue_model("Sales").objects.first()
    assert row is not None
    shown = client.get(f"/tables/sqlqueue_queues/sales/{row.pk}/change/")
    assert shown.status_code == 200
    assert "NServiceBus.MessageId" in shown.content.decode()
    assert queue_model("Sales").objects.count() == 7


def test_tables_are_read_only_and_need_the_permission(filled: QueueDatabase) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    assert client_of(viewer).get("/tables/sqlqueue_queues/sales/").status_code == 403
    viewer.user_permissions.add(Permission.objects.get(codename="view_queue", content_type__app_label="sqlqueue_app"))
    client = client_of(User.objects.get(pk=viewer.pk))
    assert client.get("/tables/sqlqueue_queues/sales/").status_code == 200
    for user in (viewer, User.objects.create_superuser("root")):
        request = RequestFactory().get("/")
        request.user = user
        made = QueueMessageAdmin(queue_model("Sales"), site)
        assert not made.has_add_permission(request)
        assert not made.has_change_permission(request)
        assert not made.has_delete_permission(request)


def test_missing_table_is_not_found(filled: QueueDatabase) -> None:
    client = client_of(User.objects.create_superuser("root"))
    filled.connection.cursor().execute(f"DROP TABLE {table(filled, 'Sales').qualified}")

    assert client.get("/tables/sqlqueue_queues/sales/").status_code == 404
    assert client.get("/tables/sqlqueue_queues/sales/1/change/").status_code == 404
    assert client.get("/tables/sqlqueue_queues/error/").status_code == 200


def test_unavailable_database_returns_503(filled: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(User.objects.create_superuser("root"))

    def refused(*_: object) -> None:
        raise ConnectionLost("the server is gone")

    monkeypatch.setattr(QueueMessageAdmin, "get_queryset", refused)
    for page in ("", "1/change/"):
        answer = client.get(f"/tables/sqlqueue_queues/sales/{page}")
        assert answer.status_code == 503
        assert "The database cannot be reached" in answer.content.decode()


def test_registration_by_a_project_takes_precedence(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}})
    own = AdminSite(name="own")
    own.register(queue_model("Sales"))
    register_tables(own)
    assert type(own._registry[queue_model("Sales")]) is ModelAdmin
    assert type(own._registry[queue_model("error")]) is QueueMessageAdmin


@pytest.mark.parametrize("lookup", ["body", "body__contains", "body__startswith", "body__gt", "body__regex", "body__isnull"])
def test_rows_cannot_be_filtered_by_their_bodies(filled: QueueDatabase, lookup: str) -> None:
    """Otherwise a user without `view_body` could read them letter by letter."""
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_queue"))
    client = client_of(viewer)
    assert client.get("/tables/sqlqueue_queues/sales/", {lookup: "1"}).status_code == 400
    assert client.get("/tables/sqlqueue_queues/sales/", {"headers__contains": "NServiceBus"}).status_code == 200
