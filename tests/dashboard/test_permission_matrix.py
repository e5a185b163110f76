"""Every page of the dashboard, whatever its address: who sees it, who may act on it, and that each try is recorded.

The pages are those that the site really has, so a new one is tested as soon as it is there.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User

from sqlqueue_app.models import CheckResult, NotificationDelivery, NotificationRule, OperatorAction
from sqlqueue_app.monitoring.rules import new_delivery
from tests.dashboard.pages import client_of
from tests.dashboard.site_pages import UNKNOWN, site_pages, site_paths
from tests.operations.failing import fail, failed_row
from tests.operations.filling import install, instance, message, subscribe, table
from tests.support.databases import QueueDatabase

EVERYBODY = ("anonymous", "staff", "viewer", "reader", "writer", "admin", "superuser")


# What a page may answer: itself, a redirect, a page that says what is wrong with the question, that there is nothing, or not now.
ANSWERS = {200, 302, 400, 404, 409}


NAMES = sorted(site_pages())


@pytest.fixture
def filled(sqlite_database: QueueDatabase) -> QueueDatabase:
    install(sqlite_database, SCHEDULES={"Sales": {"CRON": "0 2 * * *", "SEND": "Sales"}})
    subscribe(sqlite_database, "Sales", "Sales")
    instance()
    table(sqlite_database, "Sales").send([message(), message()])
    fail(sqlite_database, [failed_row(), failed_row()])
    rule = NotificationRule.objects.create(
        pk=1, name="long", kind="queue_longer", threshold=5, channel="mail", target="a@example.com",
        changed_at=datetime.now(UTC),
    )  # fmt: skip
    delivery = new_delivery(rule, {}, datetime.now(UTC))
    delivery.pk, delivery.state = UNKNOWN, "failed"
    delivery.save(force_insert=True)
    now = datetime.now(UTC)
    CheckResult.objects.create(pk=1, name="payment gateway", failing=True, since=now, checked_at=now)
    return sqlite_database


def test_the_site_has_these_pages() -> None:
    assert {"sqlqueue_app_dashboard_changelist", "sqlqueue_app_queue_purge", "sqlqueue_app_failedmessage_retry"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_who_sees_a_page(filled: QueueDatabase, name: str) -> None:
    seen = {kind: client_of(kind).get(site_paths()[name]).status_code for kind in EVERYBODY}
    assert seen["anonymous"] == 302
    assert seen["staff"] == 403
    assert {seen[kind] for kind in ("viewer", "reader", "writer", "admin")} <= ANSWERS | {403}
    assert seen["superuser"] in ANSWERS
    assert seen["admin"] == seen["superuser"], "the group of administrators may do all"


@pytest.mark.parametrize("name", NAMES)
def test_who_may_only_look_changes_nothing(filled: QueueDatabase, name: str) -> None:
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
@pytest.mark.parametrize(
    "query", ["format=csv", "format=json", "%00=%ff&[]=1", "page=-1&size=9e99&after=x&period=%27", "id=%F0%9F"]
)
def test_any_query_string_is_answered(filled: QueueDatabase, name: str, query: str) -> None:
    assert client_of("superuser").get(f"{site_paths()[name]}?{query}").status_code in ANSWERS
