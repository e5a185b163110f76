"""Every address of the dashboard returns 403 without its permission, and denied actions are recorded.

Rules for all addresses, including those outside of these tables, are in test_permission_matrix.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin import site
from django.urls import reverse
from django.urls.converters import IntConverter, UUIDConverter

from sqlqueue_app.dashboard.page import PageAdmin
from sqlqueue_app.dashboard.registration import ADMINS
from sqlqueue_app.models import (
    ActionResult,
    CheckResult,
    DeliveryState,
    FailedMessage,
    FailureGroup,
    Instance,
    NotificationDelivery,
    NotificationRule,
    Operation,
    OperationState,
    OperatorAction,
    Redirect,
)
from sqlqueue_app.monitoring.rules import RuleValues, create_rule, new_delivery
from sqlqueue_app.monitoring.webhooks import new_secret
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import delayed, put
from tests.support.failing import fail, failed_row
from tests.support.filling import count, install, instance, message, subscribe, table
from tests.support.pages import client_of
from tests.support.roles import ACTIONS, VIEWS, has

FORM = {
    "confirmed": "1",
    "seen": "1",
    "typed": "1",
    "headers": "{}",
    "body": "{}",
    "note": "x",
    "from": "Old",
    "to": "Sales",
    "concurrency": "1",
}
KINDS = ("viewer", "reader", "writer", "admin", "superuser")


def names() -> list[str]:
    """The names of the addresses of our pages, without the app."""
    admins = [site.get_model_admin(model) for model, _ in ADMINS]
    found = [pattern.name or "" for each in admins if isinstance(each, PageAdmin) for pattern in each.get_urls()]
    return [name.removeprefix("sqlqueue_app_") for name in found]


@pytest.fixture
def filled(sqlite_database: QueueDatabase) -> dict[str, object]:
    """Objects of each kind; values for the addresses by their names."""
    install(sqlite_database, SCHEDULES={"Sales": {"CRON": "0 2 * * *", "SEND": "Sales.CloseDay"}})
    table(sqlite_database, "Sales").send([message()])
    (failure,) = fail(sqlite_database, [failed_row(more={"NServiceBus.ContentType": "application/json"})])
    subscribe(sqlite_database, "Sales", "Sales.OrderPlaced")
    row = instance(silent=timedelta(minutes=5))
    now = datetime.now(UTC)
    redirect = Redirect.objects.create(id=uuid.uuid4(), from_address="Gone", to_address="Sales", created_at=now)
    operation = Operation.objects.create(id=uuid.uuid4(), kind="retry", requested_at=now, state=OperationState.RUNNING)
    notified = create_rule(RuleValues("long", "queue_longer", "", 5.0, "webhook", "https://hooks.example.com/"), new_secret())
    delivery = new_delivery(notified, {}, now)
    delivery.state = DeliveryState.FAILED
    delivery.save(force_insert=True)
    check = CheckResult.objects.create(name="payment gateway", failing=True, since=now, checked_at=now)
    return {
        "checkresult": check.pk,
        "name": "Sales",
        "table": "Sales.Delayed",
        "message_type": "Sales.CloseDay",
        "topic": "Sales.OrderPlaced",
        "endpoint": "Sales",
        "key": put(sqlite_database),
        "row_version": 1,
        "instance": row.pk,
        "group": FailureGroup.objects.all()[0].pk,
        "failedmessage": failure.pk,
        "redirect": redirect.pk,
        "operation": operation.pk,
        "notificationrule": notified.pk,
        "delivery": delivery.pk,
    }


def address(name: str, filled: dict[str, object]) -> str:
    """The address of this name with the values of existing objects."""
    model = name.partition("_")[0]
    patterns = (pattern for each in site.get_urls() for pattern in getattr(each, "url_patterns", []))
    pattern = next(each.pattern for each in patterns if each.name == f"sqlqueue_app_{name}")
    values = {}
    for part, converter in pattern.converters.items():
        key = model if part in ("pk", "unique") else part
        key = "delivery" if name == "notificationrule_again" else key
        key = "group" if part == "unique" and "group/" in str(pattern) else key
        values[part] = (
            filled[key] if key in filled else {UUIDConverter: uuid.uuid4(), IntConverter: 1}.get(type(converter), "Sales")
        )
    if name == "queue_remove":
        values["name"] = "Sales.here"
    ids = {"failedmessage": filled["failedmessage"], "delayedmessage": filled["key"]}.get(model)
    query = f"?ids={ids}" if ids else ""
    return reverse(f"admin:sqlqueue_app_{name}", kwargs=values) + query


def test_tables_name_existing_addresses() -> None:
    assert ACTIONS.keys() | VIEWS.keys() <= set(names())


@pytest.mark.parametrize("kind", KINDS)
def test_user_without_the_permission_is_refused(sqlite_database: QueueDatabase, filled: dict[str, object], kind: str) -> None:
    client = client_of(kind)
    for name, codename in (ACTIONS | VIEWS).items():
        answer = client.get(address(name, filled))
        assert (answer.status_code == 403) == (not has(kind, codename)), (name, answer.status_code)
        assert answer.status_code in (200, 403, 409), name
        answer.close()
    refused = [name for name, codename in ACTIONS.items() if not has(kind, codename)]
    for name in refused:
        form = {
            "confirmed": "1",
            "seen": "1",
            "typed": "1",
            "headers": "{}",
            "body": "{}",
            "note": "x",
            "to": "Sales",
            "concurrency": "1",
        }
        assert client.post(address(name, filled), form).status_code == 403, name

    assert OperatorAction.objects.count() == OperatorAction.objects.filter(result=ActionResult.DENIED, user_name=kind).count()
    assert OperatorAction.objects.count() == len(refused)
    assert (count(sqlite_database, "Sales"), count(sqlite_database, "error")) == (1, 1)
    assert delayed(sqlite_database).count(10)[0] == 1
    assert FailedMessage.objects.get().status == 1
    assert Instance.objects.filter(paused=False).count() == Redirect.objects.count() == 1
    assert not Operation.objects.get().cancel_requested
    assert NotificationRule.objects.get().enabled
    assert NotificationDelivery.objects.get().state == DeliveryState.FAILED


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_read_only_pages_accept_no_post(filled: dict[str, object], name: str) -> None:
    assert client_of("superuser").post(address(name, filled), {"confirmed": "1"}).status_code == 405


@pytest.mark.parametrize(("kind", "status"), [("anonymous", 302), ("staff", 403)])
def test_no_page_is_public(filled: dict[str, object], kind: str, status: int) -> None:
    client = client_of(kind)
    for name in ACTIONS | VIEWS:
        page = address(name, filled)
        assert (client.get(page).status_code, client.post(page, {"confirmed": "1"}).status_code) in (
            (status, status),
            (status, 405),
        ), name
