"""The pages need the permission to view queues and are read-only."""

from __future__ import annotations

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Permission, User
from django.test import Client

from sqlqueue_app.browsing.messages import read_page
from sqlqueue_app.dashboard.registration import register
from sqlqueue_app.models import Instance, Queue
from tests.support.databases import QueueDatabase
from tests.support.filling import install, instance, message, table
from tests.support.pages import OVERVIEW, client_of

KINDS = ("anonymous", "staff", "viewer", "superuser")
PAGES = (OVERVIEW, f"{OVERVIEW}Sales/", f"{OVERVIEW}Sales/1/")
# Addresses that would change something if they existed.
NOT_THERE = ("add/", "Sales/delete/", "Sales/change/", "Sales/history/", "1/change/")


@pytest.fixture
def filled(sqlite_database: QueueDatabase) -> QueueDatabase:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message()])
    return sqlite_database


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
@pytest.mark.parametrize(("kind", "status"), [*zip(KINDS, (302, 405, 405, 405), strict=True)])
def test_pages_accept_only_reads(filled: QueueDatabase, page: str, method: str, kind: str, status: int) -> None:
    answer = getattr(client_of(kind), method)(page)

    assert answer.status_code == status
    assert len(read_page(table(filled, "Sales")).messages) == 1


@pytest.mark.parametrize("page", NOT_THERE)
@pytest.mark.parametrize("kind", ["staff", "viewer", "superuser"])
def test_addresses_of_changes_do_not_exist(filled: QueueDatabase, page: str, kind: str) -> None:
    assert client_of(kind).get(OVERVIEW + page).status_code in (403, 404)
    assert client_of(kind).post(OVERVIEW + page).status_code in (403, 404, 405)


@pytest.mark.parametrize("page", PAGES)
def test_denied_user_cannot_distinguish_existing_queues(filled: QueueDatabase, page: str) -> None:
    assert client_of("staff").get(f"{OVERVIEW}nothing/").status_code == 403


def test_menu_shows_queues_only_with_the_permission(filled: QueueDatabase) -> None:
    assert OVERVIEW in client_of("viewer").get("/admin/").content.decode()
    assert OVERVIEW not in client_of("staff").get("/admin/").content.decode()
    superuser = client_of("superuser").get("/admin/").content.decode()
    assert f"{OVERVIEW}add/" not in superuser
    assert "/admin/sqlqueue_app/instance/add/" not in superuser


def test_instances_are_read_only(filled: QueueDatabase) -> None:
    row = instance()
    client = client_of("superuser")
    changelist = "/admin/sqlqueue_app/instance/"

    listed = client.get(changelist)
    seen = client.get(f"{changelist}{row.pk}/change/")

    assert (listed.status_code, seen.status_code) == (200, 200)
    assert "Alive" in listed.content.decode()
    assert 'name="_save"' not in seen.content.decode()
    for address in (f"{changelist}add/", f"{changelist}{row.pk}/delete/"):
        assert client.get(address).status_code == 403
    for address in (f"{changelist}add/", f"{changelist}{row.pk}/change/", f"{changelist}{row.pk}/delete/"):
        assert client.post(address, {"pid": 1, "post": "yes"}).status_code == 403
    assert Instance.objects.get().pid == 4711


def test_instances_have_their_own_permission(filled: QueueDatabase) -> None:
    user = User.objects.create_user("watcher", is_staff=True)
    client = Client()
    client.force_login(user)
    assert client.get("/admin/sqlqueue_app/instance/").status_code == 403

    user.user_permissions.add(Permission.objects.get(codename="view_instance"))

    assert client.get("/admin/sqlqueue_app/instance/").status_code == 200
    assert client.get(OVERVIEW).status_code == 403


def test_another_admin_site_can_register_the_pages() -> None:
    site = AdminSite(name="operators")

    register(site)
    register(site)

    assert site.is_registered(Queue)
    assert site.is_registered(Instance)
