"""The groups that `migrate` creates: reader, writer, admin."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.test import Client

from sqlqueue_app.dashboard.access import Permission as DashboardPermission
from sqlqueue_app.installation import GROUPS
from tests.support.databases import QueueDatabase
from tests.support.provisioning import point


def permissions_of(group: str) -> set[str]:
    return set(Permission.objects.filter(group__name=group).values_list("codename", flat=True))


def test_migrate_makes_the_groups_with_their_permissions(queue_database: QueueDatabase) -> None:
    Group.objects.filter(name__in=GROUPS).delete()
    call_command("migrate", verbosity=0)
    assert {name: permissions_of(name) for name in GROUPS} == {name: set(wanted) for name, wanted in GROUPS.items()}


def test_this_app_can_be_migrated_before_the_users(sqlite_database: QueueDatabase, tmp_path: Path) -> None:
    point(sqlite_database.alias, NAME=str(tmp_path / "new.sqlite3"))
    call_command("migrate", "sqlqueue_app", verbosity=0)
    assert "auth_group" not in sqlite_database.connection.introspection.table_names()
    call_command("migrate", verbosity=0)
    assert {name: permissions_of(name) for name in GROUPS} == {name: set(wanted) for name, wanted in GROUPS.items()}


def test_each_group_includes_the_previous_and_the_last_has_all() -> None:
    reader, writer, admin = (set(wanted) for wanted in GROUPS.values())
    assert reader < writer < admin
    assert admin == set(DashboardPermission) | {"view_instance"}


def test_changed_group_is_kept(sqlite_database: QueueDatabase) -> None:
    call_command("migrate", verbosity=0)
    group = Group.objects.get(name="sqlqueue reader")
    group.permissions.clear()
    call_command("migrate", verbosity=0)
    assert permissions_of("sqlqueue reader") == set()


@pytest.mark.parametrize(("group", "shown"), [("sqlqueue reader", True), (None, False)])
def test_a_member_sees_the_pages(sqlite_database: QueueDatabase, group: str | None, shown: bool) -> None:
    call_command("migrate", verbosity=0)
    user = User.objects.create_user("operator", is_staff=True)
    if group:
        user.groups.add(Group.objects.get(name=group))
    client = Client()
    client.force_login(user)
    assert client.get("/admin/sqlqueue_app/queue/").status_code == (200 if shown else 403)
