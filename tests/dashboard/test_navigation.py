"""The navigation: five groups in order of use, in tabs and menu, limited by permissions, with badges."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import path
from pytest_django import Settings

from sqlqueue_app.models import CheckResult, FailedMessage, FailureStatus
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import install, instance, message, table
from tests.support.pages import Markup, client_of

urlpatterns = [path("übersicht/", admin.site.urls)]

ADMIN = "/admin/sqlqueue_app/"
GROUPS = ["Now", "Failures", "Messages", "Insight", "Settings & log"]
FIRST_PAGES = {
    f"{ADMIN}dashboard/": "Now",
    f"{ADMIN}instance/": "Now",
    f"{ADMIN}failedmessage/pending/": "Failures",
    f"{ADMIN}redirect/": "Failures",
    f"{ADMIN}schedule/": "Messages",
    f"{ADMIN}analytics/map/": "Insight",
    f"{ADMIN}operatoraction/": "Settings & log",
}


def navigation(html: str) -> str:
    (found,) = re.findall(r'<nav class="sq-tabs".*?</nav>', html, re.DOTALL)
    return str(found)


def groups(html: str) -> list[str]:
    found = re.findall(r"<summary>(.*?)</summary>", navigation(html), re.DOTALL)
    return [re.sub(r"<span.*", "", each).strip().replace("&amp;", "&") for each in found]


@pytest.mark.parametrize(("page", "group"), FIRST_PAGES.items())
def test_navigation_has_five_groups_and_marks_the_present_page(sqlite_database: QueueDatabase, page: str, group: str) -> None:
    install(sqlite_database)
    html = client_of("superuser").get(page).content.decode()
    assert groups(html) == GROUPS
    (here,) = re.findall(r'<details name="sq-tabs" class="sq-here">\s*<summary>(.*?)</summary>', navigation(html), re.DOTALL)
    assert here.startswith(group.replace("&", "&amp;"))
    assert Markup(navigation(html)).find("a", **{"aria-current": "true"})[0]["href"] == page
    menu = html.partition('id="nav-sidebar"')[2].partition("</nav>")[0]
    assert [each["href"] for each in Markup(menu).find("a", **{"aria-current": "page"})] == [page]


def test_admin_below_a_path_with_an_umlaut(sqlite_database: QueueDatabase, settings: Settings) -> None:
    settings.ROOT_URLCONF = __name__
    install(sqlite_database)
    (found,) = fail(sqlite_database, [failed_row("m-1")])
    messages = "/%C3%BCbersicht/sqlqueue_app/failedmessage/messages/"

    html = client_of("superuser").get(messages).content.decode()

    assert Markup(navigation(html)).find("a", **{"aria-current": "true"})[0]["href"] == messages
    (back,) = Markup(html).find("input", name="back")
    answer = client_of("superuser").post(
        f"{messages[:-9]}archive/", {"confirmed": "1", "ids": str(found.pk), "back": str(back["value"])}
    )
    assert answer["Location"] == f"{messages}?"


def test_every_link_of_the_navigation_works(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    client = client_of("viewer")
    links = Markup(navigation(client.get(f"{ADMIN}dashboard/").content.decode())).links
    assert len(links) == len(set(links)) > 15
    assert [link for link in links if client.get(link).status_code != 200] == []


def test_page_title_equals_its_link(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    client = client_of("viewer")
    links = re.findall(r'<a href="([^"]+)"[^>]*>([^<]+)</a>', navigation(client.get(f"{ADMIN}dashboard/").content.decode()))
    pages = {url: client.get(url).content.decode() for url, _label in links}
    titles = {url: re.findall(r"<h1[^>]*>(.*?)</h1>", html, re.DOTALL) for url, html in pages.items()}
    different = {(label, *titles[url]) for url, label in links if titles[url] != [label]}
    # The title of the map page differs until its file is renamed.
    assert different <= {("Map", "Map of endpoints")}
    assert all(f"<title>{label} |" in pages[url] for url, label in links if label not in ("Map",))


def checks_ran(ago: timedelta = timedelta()) -> None:
    """The result that workers write at each run of the checks."""
    at = datetime.now(UTC) - ago
    CheckResult.objects.update_or_create(
        name="sqlqueue.instances", subject="", defaults={"since": at, "checked_at": at, "every_seconds": 20}
    )


def test_badges_count_failing_checks_and_unresolved_failures(queue_database: QueueDatabase) -> None:
    install(queue_database)
    checks_ran()
    client, page = client_of("viewer"), f"{ADMIN}redirect/"
    assert "sq-badge" not in client.get(page).content.decode()
    fail(queue_database, [failed_row(), failed_row()])
    client.get(f"{ADMIN}failedmessage/")
    now = datetime.now(UTC)
    CheckResult.objects.create(name="payment gateway", failing=True, since=now, checked_at=now)
    text = Markup(navigation(client.get(page).content.decode())).text()
    assert "1 alert" in text
    assert "2 unresolved failures" in text
    FailedMessage.objects.update(status=FailureStatus.ARCHIVED)
    CheckResult.objects.update(muted_until=now.replace(year=now.year + 1))
    assert "sq-badge" not in client.get(page).content.decode()


def test_badge_shows_that_no_worker_runs_checks(queue_database: QueueDatabase) -> None:
    """Without workers, no process stores the alerts that the overview finds."""
    install(queue_database)
    client, page = client_of("viewer"), f"{ADMIN}redirect/"
    instance(silent=timedelta(minutes=5))
    checks_ran(timedelta(minutes=5))
    assert "(1 alert)" in Markup(navigation(client.get(f"{ADMIN}dashboard/").content.decode())).text()
    text = Markup(navigation(client.get(page).content.decode())).text()
    assert "Now ! (No worker has run checks for two minutes; known alerts: 0)" in text
    checks_ran()
    assert "sq-badge" not in client.get(page).content.decode()


def test_badge_includes_alerts_that_only_the_overview_finds(queue_database: QueueDatabase) -> None:
    install(queue_database)
    checks_ran()
    instance(callback_queue=None)
    table(queue_database, "Sales.here").send([message()])
    client, page = client_of("viewer"), f"{ADMIN}redirect/"
    assert "(1 alert)" in Markup(navigation(client.get(f"{ADMIN}dashboard/").content.decode())).text()
    assert "(1 alert)" in Markup(navigation(client.get(page).content.decode())).text()
    table(queue_database, "Sales.here").purge()
    client.get(f"{ADMIN}dashboard/")
    assert "sq-badge" not in client.get(page).content.decode()


def test_menu_has_the_same_groups(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    index = client_of("superuser").get("/admin/").content.decode()
    found = re.findall(r">\s*SQL queues: ([^<]+?)\s*<", index, re.IGNORECASE)
    assert list(dict.fromkeys(each.replace("&amp;", "&") for each in found)) == GROUPS
    assert client_of("superuser").get(ADMIN).status_code == 200
    assert "SQL queues: " not in client_of("staff").get("/admin/").content.decode()


def test_navigation_shows_only_permitted_pages(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    user = User.objects.create_user("watcher", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_instance"))
    client = Client()
    client.force_login(user)
    html = client.get(f"{ADMIN}instance/").content.decode()
    assert groups(html) == ["Now"]
    assert Markup(navigation(html)).links == [f"{ADMIN}instance/"]
    assert Markup(html).find("form", **{"class": "sq-search"}) == []


def test_search_is_on_the_list_of_instances(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    (found,) = Markup(client_of("reader").get(f"{ADMIN}instance/").content.decode()).find("form", **{"class": "sq-search"})
    assert found["action"] == f"{ADMIN}search/"


def test_page_of_an_instance_has_the_navigation(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    row = instance()
    html = client_of("reader").get(f"{ADMIN}instance/{row.pk}/change/").content.decode()
    assert f"{ADMIN}instance/" in Markup(navigation(html)).links
    assert groups(html) == groups(client_of("reader").get(f"{ADMIN}instance/").content.decode())
