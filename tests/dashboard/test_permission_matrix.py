"""Every page of the dashboard: who sees it, who may act on it, and that each attempt is recorded.

The pages are those of the real site, so new pages are tested automatically.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.http import QueryDict
from django.test import Client

from sqlqueue_app.models import CheckResult, NotificationDelivery, NotificationRule, OperatorAction
from sqlqueue_app.monitoring.rules import new_delivery
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import put
from tests.support.failing import fail, failed_row
from tests.support.filling import install, instance, message, subscribe, table
from tests.support.lakes import time_to_search, write
from tests.support.pages import Markup, client_of
from tests.support.roles import VIEWS
from tests.support.site_pages import UNKNOWN, site_pages, site_paths
from tests.support.sqlserver import needs

__all__ = ["time_to_search"]
EVERYBODY = ("anonymous", "staff", "viewer", "reader", "writer", "admin", "superuser")


# Possible answers: the page, a redirect, or a page with an input error, for nothing found or for a conflict.
ANSWERS = {200, 302, 400, 404, 409}


NAMES = sorted(site_pages())

# Unexpected values of all query parameters; each page receives all of them.
QUERIES = (
    *("format=csv", "format=json", "format=pdf", "format=", "format=csv&format=x", "format=csv%00", "format=%00"),
    *("%00=%ff&[]=1", "x=%00", "id=%F0%9F", "ids=%F0%9F", "run=%ff", "name=%00", "name=%27", "tail=&at=&size="),
    *(
        "page=-1&size=9e99&after=x&period=%27",
        "page=x",
        "%00=%ff&page=-1",
        "size=7",
        "period=nothing",
        "period=30d",
        "period=%00&x[]=1",
    ),
    *("at=-1", "at=x", "before=0", "before=-3", "before=x", "before=1", "before=99999999999999999999", "before=x&state=failing"),
    *(
        "before=3c3c90ba-3dda-41bb-b5ab-460449a8f80e",
        "after=1",
        "after=%00",
        "after=%ff",
        "after=~&q[]=1",
        "after=1&before=2&at=3&tail=4",
    ),
    *("after=0001-01-01T00:00:00%2B14:00_00000000-0000-0000-0000-000000000000", "after=99999999999999999999"),
    "after=9999-12-31T23:59:59-14:00_00000000-0000-0000-0000-000000000000",
    *(
        "header=%00",
        "header=%F0%9F",
        "header=%00%27",
        "header=" + "x" * 5000,
        "text=%27%22%3Cb%3E%25_%5C",
        "by=%00",
        "by=%00&q=%00",
    ),
    *(
        "q=%00",
        "q=a&q=b&after=1&after=2",
        "q=" + "a+" * 900,
        "q=" + "status:gone+" * 150,
        "q=failed:-99999w..",
        "orphans=x&q=%F0%9F",
    ),
    "q=failed:0001-01-01T00:00:00%2B14:00..",
    *(
        "state=running",
        "state=nonsense",
        "severity=nonsense&kind=%00",
        "kind=queue_purged&kind=x",
        "subject=%00%ff",
        "subject=%25_%5C",
    ),
    *("since=2026-99-99", "since=0001-01-01&until=9999-12-31", "user=%00&action=x", "result=denied&result=x"),
    *("due=x&after=1", "due=2026-W01&after=%00", "due=%00&after=1", "due[]=1&hex"),
    "ids=" + "%2C".join(str(uuid.UUID(int=number)) for number in range(400)),
)


def merged(queries: Iterable[str]) -> list[str]:
    """The same values in fewer query strings: those that share no parameter become one."""
    found: list[str] = []
    for query in queries:
        for place, joined in enumerate(found):
            if QueryDict(joined).keys().isdisjoint(QueryDict(query)):
                found[place] = f"{joined}&{query}"
                break
        else:
            found.append(query)
    return found


# For the pages of actions, which read few parameters, each independently of the others.
MERGED = merged(QUERIES)


@pytest.fixture
def without_menu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the menu and the badges of the navigation: no query string changes them, and they take half the time of a page."""
    monkeypatch.setattr("sqlqueue_app.dashboard.page._badges", lambda *_: [])
    # The site behind Django's lazy one, from which monkeypatch would remove the attributes instead of restoring them.
    site = admin.site._wrapped  # type: ignore[attr-defined]
    monkeypatch.setattr(site, "enable_nav_sidebar", False)
    monkeypatch.setattr(site, "get_app_list", lambda *_: [])


@pytest.fixture
def filled(sqlite_database: QueueDatabase) -> QueueDatabase:
    return fill(sqlite_database)


@pytest.fixture
def filled_anywhere(queue_database: QueueDatabase) -> QueueDatabase:
    return fill(queue_database)


def fill(database: QueueDatabase) -> QueueDatabase:
    """Fill the database with data for each page."""
    install(database, SCHEDULES={"Sales": {"CRON": "0 2 * * *", "SEND": "Sales"}})
    subscribe(database, "Sales", "Sales")
    instance()
    table(database, "Sales").send([message(), message()])
    fail(database, [failed_row(), failed_row()])
    rule = NotificationRule.objects.create(
        pk=1, name="long", kind="queue_longer", threshold=5, channel="mail", target="a@example.com",
        changed_at=datetime.now(UTC),
    )  # fmt: skip
    delivery = new_delivery(rule, {}, datetime.now(UTC))
    delivery.pk, delivery.state = UNKNOWN, "failed"
    delivery.save(force_insert=True)
    now = datetime.now(UTC)
    CheckResult.objects.create(pk=1, name="payment gateway", failing=True, since=now, checked_at=now)
    return database


def test_site_has_the_main_pages() -> None:
    assert {"sqlqueue_app_dashboard_changelist", "sqlqueue_app_queue_purge", "sqlqueue_app_failedmessage_retry"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_permissions_decide_who_sees_a_page(filled: QueueDatabase, name: str) -> None:
    seen = {kind: client_of(kind).get(site_paths()[name]).status_code for kind in EVERYBODY}
    assert seen["anonymous"] == 302
    assert client_of("anonymous").get(site_paths()[name]).headers["Location"].startswith("/admin/login/")
    assert seen["staff"] == 403
    assert {seen[kind] for kind in ("viewer", "reader", "writer", "admin")} <= ANSWERS | {403}
    assert seen["superuser"] in ANSWERS
    assert seen["admin"] == seen["superuser"], "the group of administrators may do all"


@pytest.mark.parametrize("name", NAMES)
def test_reader_cannot_change_anything(filled: QueueDatabase, name: str) -> None:
    path = site_paths()[name]
    allowed = "POST" in client_of("superuser").options(path).headers.get("Allow", "")
    before = (table(filled, "Sales").depth(), table(filled, "error").depth())
    for kind, expected in (("anonymous", {302}), ("staff", {403} if allowed else {403, 405})):
        assert client_of(kind).post(path, {"confirmed": "1", "typed": "Sales"}).status_code in expected
    assert not OperatorAction.objects.exists()
    for kind in ("viewer", "reader"):
        status = client_of(kind).post(path, {"confirmed": "1", "typed": "Sales"}).status_code
        assert status in ({400, 403, 404} if allowed else {405})
        if status == 403:
            denied = OperatorAction.objects.latest("id")
            assert (denied.user_name, denied.result) == (kind, "denied")
            assert denied.permission
    assert (table(filled, "Sales").depth(), table(filled, "error").depth()) == before
    assert NotificationRule.objects.filter(enabled=True).count() == NotificationDelivery.objects.filter(state="failed").count() == 1
    assert User.objects.filter(username="viewer").exists()


@pytest.mark.parametrize("name", NAMES)
def test_any_query_string_is_answered(filled_anywhere: QueueDatabase, without_menu: None, name: str) -> None:
    if name == "sqlqueue_app_delayedmessage_table":
        needs(filled_anywhere.vendor, "TOP WITH TIES")
    client, path = client_of("superuser"), site_paths()[name]
    plain = client.get(path).status_code
    is_view = name.removeprefix("sqlqueue_app_") in VIEWS
    for query in QUERIES if is_view else MERGED:
        answer = client.get(f"{path}?{query}")
        assert answer.status_code in ANSWERS, query
        if plain == 200 and is_view and not answer.streaming:
            # The page of conversations searches for an id.
            assert answer.status_code == (302 if "conversation_changelist" in name and query.startswith("id=") else 200), query
            assert Markup(answer.content.decode()).inline == [], query


# A word that occurs only in bodies, and one of the same length that occurs nowhere.
SECRET, NOTHING = "velocipede", "hippogriff"
TEXT_FILTERS = ("text", "q", "header", "id", "conversation", "type", "endpoint", "name", "subject", "exception", "message_type")


@pytest.fixture
def with_bodies(sqlite_database: QueueDatabase, tmp_path: Path, time_to_search: None) -> QueueDatabase:
    """The word is in the body of a waiting, a delayed and a failed message, and of two in the lake."""
    pytest.importorskip("duckdb")
    install(sqlite_database, PIPELINE={"LAKE": str(tmp_path)})
    table(sqlite_database, "Sales").send([message({"note": SECRET})])
    put(sqlite_database, body={"note": SECRET})
    fail(sqlite_database, [failed_row(body=f'{{"note": "{SECRET}"}}'.encode())])
    row = {"at": datetime.now(UTC) - timedelta(minutes=5), "body": SECRET.encode(), "headers": '{"a": "plain text"}'}
    write(tmp_path, [row])
    write(tmp_path, [row], table="failures", queue="error")
    return sqlite_database


def shown(client: Client, path: str, word: str, name: str, more: dict[str, str]) -> tuple[int, object]:
    """The status and the links of the page or the number of exported objects, ignoring the echoed word."""
    answer = client.get(path, {name: word, **more})
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content  # type: ignore[attr-defined]
    answer.close()
    text = content.decode().replace(word, "")
    return answer.status_code, text.count("{") if answer.streaming else sorted(set(Markup(text).links))


@pytest.mark.parametrize(
    ("name", "more"),
    [*((name, {}) for name in TEXT_FILTERS), *((name, {"format": "json"}) for name in ("text", "q", "header"))],
)
def test_text_filters_do_not_reveal_bodies(with_bodies: QueueDatabase, without_menu: None, name: str, more: dict[str, str]) -> None:
    """Otherwise a user without `view_body` could read bodies letter by letter."""
    client = client_of("viewer")
    pages = [site_paths()[page] for page in NAMES if page.removeprefix("sqlqueue_app_") in VIEWS]
    # A page may change between two requests, but not every time.
    leaks = [path for path in pages if all(_differs(client, path, name, more) for _try in range(3))]
    assert leaks == []


def _differs(client: Client, path: str, name: str, more: dict[str, str]) -> bool:
    return shown(client, path, SECRET, name, more) != shown(client, path, NOTHING, name, more)


def found_in_the_lake(kind: str, word: str) -> bool:
    page = client_of(kind).get("/admin/sqlqueue_app/lakesearch/", {"text": word, "period": "all"}).content.decode()
    return "/lakesearch/messages/" in page and "/lakesearch/failures/" in page


def test_searching_archived_bodies_needs_the_permission(with_bodies: QueueDatabase) -> None:
    for kind in EVERYBODY[2:]:
        assert found_in_the_lake(kind, "plain text"), "every user who may see queues may search headers"
        assert found_in_the_lake(kind, SECRET) == (kind in ("writer", "admin", "superuser")), kind
    page = Markup(client_of("viewer").get("/admin/sqlqueue_app/lakesearch/").content.decode()).text()
    assert "Text in headers" in page
    assert "Text in headers or body" not in page
    assert "Bodies are not searched" in page
    assert "Text in headers or body" in client_of("writer").get("/admin/sqlqueue_app/lakesearch/").content.decode()
