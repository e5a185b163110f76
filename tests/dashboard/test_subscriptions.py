"""The page of subscriptions: events with their subscribers, orphans, ending one."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import OperatorAction
from sqlqueue_app.sending.subscribers import subscribers_of
from sqlqueue_app.status.queues import address_book_of
from tests.support.databases import QueueDatabase
from tests.support.filling import HOSTILE, install, instance, subscribe
from tests.support.pages import Markup, client_of, page_at

LIST = "/admin/sqlqueue_app/subscription/"
CONFIRMED = {"confirmed": "1"}


@handles("SubscriptionPage.Handled")
def _handler(message: object, context: object) -> None: ...


def page(address: str = LIST, kind: str = "viewer", status: int = 200) -> Markup:
    return page_at(address, kind, status)


def table_of(database: QueueDatabase) -> Any:
    return subscribers_of(database.alias, address_book_of(get_settings())).table


def recorded() -> list[tuple[str, str, str, str]]:
    return [(each.user_name, each.action, each.target, each.result) for each in OperatorAction.objects.order_by("id")]


def test_each_event_lists_its_subscribers_and_problems(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {"CALLBACKS": False}, "Billing": {"CALLBACKS": False}})
    instance(callback_queue=None)
    instance(endpoint="Billing", callback_queue=None, silent=timedelta(minutes=5))
    subscribe(queue_database, "Sales", "SubscriptionPage.Handled")
    subscribe(queue_database, "Billing", "SubscriptionPage.Handled")
    subscribe(queue_database, "Gone", "SubscriptionPage.Handled", "Gone@nowhere")
    subscribe(queue_database, "Sales", "SubscriptionPage.Other")
    found = page()
    text = found.text()
    assert "2 events" in text
    assert "4 subscriptions" in text
    assert "3 without receivers" in text
    assert "SubscriptionPage.Other No handler Sales Sales no handler for it" in text
    assert "Billing Billing no live process" in text
    assert "Gone Gone@nowhere its queue does not exist no live process not in the settings of this site" in text
    assert "Sales Sales Unsubscribe You need the permission" in text, "it has no problem, and a viewer may not remove it"
    assert found.inline == []
    odd = page(f"{LIST}?orphans=1").text()
    assert "Sales Sales Unsubscribe" not in odd
    assert "Gone Gone@nowhere" in odd
    assert "Gone Gone@nowhere" in page(f"{LIST}?q=nowhere").text()
    assert "Billing Billing" not in page(f"{LIST}?q=nowhere").text()
    assert "No matching subscriptions." in page(f"{LIST}?q=nothing").text()


def test_subscription_is_ended(queue_database: QueueDatabase) -> None:
    install(queue_database)
    subscribe(queue_database, "Sales", "SubscriptionPage.Handled")
    subscribe(queue_database, "Sales", "SubscriptionPage.Other")
    address = f"{LIST}SubscriptionPage.Handled/Sales/unsubscribe/"
    assert address in page(kind="admin").links
    assert "subscribes again when it starts" in page(address, "admin").text()
    assert "subscribes again" not in page(f"{LIST}SubscriptionPage.Other/Sales/unsubscribe/", "admin").text()
    assert client_of("writer").post(address, CONFIRMED).status_code == 403
    answer = client_of("admin").post(address, CONFIRMED, follow=True)
    assert "Sales no longer gets SubscriptionPage.Handled." in Markup(answer.content.decode()).text()
    assert [each.topic for each in table_of(queue_database).all()] == ["SubscriptionPage.Other"]
    assert client_of("admin").post(address, CONFIRMED).status_code == 404
    assert client_of("viewer").post(address, CONFIRMED).status_code == 403
    assert recorded() == [
        ("writer", "unsubscribe", "Sales: SubscriptionPage.Handled", "denied"),
        ("admin", "unsubscribe", "Sales: SubscriptionPage.Handled", "done"),
    ]


def test_subscriptions_are_paginated(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    for number in range(120):
        subscribe(sqlite_database, "Sales", f"SubscriptionPage.E{number:03}")
    seen: list[str | None] = []
    address = LIST
    while address:
        found = page(address)
        seen += [str(each["data-key"]).removeprefix("event ") for each in found.find("tr", role="row") if "data-key" in each]
        address = next((LIST + link for link in found.links if "after=" in link and "format" not in link), "")
    assert seen == [f"SubscriptionPage.E{number:03}" for number in range(120)]


def test_list_is_exported(queue_database: QueueDatabase) -> None:
    install(queue_database)
    subscribe(queue_database, "Gone", "SubscriptionPage.Handled", "Gone@nowhere")
    answer: Any = client_of("writer").get(f"{LIST}?format=json")
    (row,) = json.loads(answer.getvalue())
    assert (row["event"], row["endpoint"], row["queue_exists"], row["handled"], row["live_processes"], row["orphan"]) == (
        "SubscriptionPage.Handled", "Gone", False, None, 0, True,
    )  # fmt: skip


@pytest.mark.parametrize("change", ["DROP TABLE {table}", "ALTER TABLE {table} RENAME COLUMN {topic} TO other"])
def test_missing_or_foreign_table_is_reported(queue_database: QueueDatabase, change: str) -> None:
    install(queue_database)
    subscribe(queue_database, "Sales", "Sales")
    table = table_of(queue_database).qualified
    topic = "topic" if queue_database.vendor == "postgresql" else "Topic"
    statement = change.format(table=table, topic=topic)
    if queue_database.vendor == "sqlserver" and "RENAME" in change:
        statement = f"EXEC sp_rename N'{table}.{topic}', N'other', N'COLUMN'"
    with queue_database.connection.cursor() as cursor:
        cursor.execute(statement)
    found = page()
    assert found.find("div", **{"class": "sq-problem"})
    assert "No subscriptions yet." not in found.text()
    assert ("sqlqueue_install" in found.text()) == ("DROP" in change)
    page(f"{LIST}Sales/Sales/unsubscribe/", "admin", status=404)
    with queue_database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {table_of(queue_database).qualified}")


def test_page_without_subscriptions_shows_a_hint(queue_database: QueueDatabase) -> None:
    install(queue_database)
    assert "No subscriptions yet." in page().text()


def test_handlers_that_cannot_be_imported_do_not_hide_subscriptions(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    subscribe(sqlite_database, "Sales", "SubscriptionPage.Handled")
    sqlite_database.configure(ENDPOINTS={"Sales": {"HANDLERS": ["tests.dashboard.broken_handlers"]}})
    assert "SubscriptionPage.Handled Sales Sales no live process" in page().text()


@pytest.mark.parametrize("name", ["A/b", "it's", HOSTILE, "שלום", "a_2Fb", "x@y", "."])
def test_subscription_of_any_name_can_be_ended(sqlite_database: QueueDatabase, name: str) -> None:
    install(sqlite_database)
    subscribe(sqlite_database, name, name, name)
    found = page(kind="admin")
    assert name in found.text()
    assert found.inline == []
    (link,) = [link for link in found.links if link.endswith("/unsubscribe/")]
    assert client_of("admin").post(link, CONFIRMED).status_code == 302
    assert table_of(sqlite_database).all() == []


def test_many_queues_take_few_statements(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, ENDPOINTS={f"Sales{number}": {"CALLBACKS": False} for number in range(60)})
    for number in range(60):
        subscribe(postgresql_database, f"Sales{number}", "SubscriptionPage.Handled")
        subscribe(postgresql_database, f"Gone{number}", "SubscriptionPage.Handled")
    client = client_of("viewer")
    client.get(LIST)
    with CaptureQueriesContext(postgresql_database.connection) as queues, CaptureQueriesContext(connection) as managed:
        assert client.get(LIST).status_code == 200
    assert len(queues) + len(managed) <= 15
