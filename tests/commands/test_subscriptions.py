"""`sqlqueue_subscriptions` lists and removes subscriptions."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app import subscribe
from sqlqueue_app.conf import get_settings
from sqlqueue_app.receiving.handlers import Handler, registry
from sqlqueue_app.status.subscriptions import read_matrix
from sqlqueue_app.tables.installation import subscription_address
from sqlqueue_app.tables.subscriptions import SubscriptionRow, SubscriptionTable
from tests.support.databases import QueueDatabase
from tests.support.filling import install

KEYS = {"endpoint", "topic", "address", "queue_exists", "handled"}


@pytest.fixture
def table(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> SubscriptionTable:
    install(queue_database)
    book = get_settings().address_book(queue_database.vendor)
    table = SubscriptionTable(queue_database.alias, subscription_address(book))
    monkeypatch.setattr(registry, "all", lambda: [Handler("Commands.Handled", _nothing, None)])
    for topic in ("Commands.Handled", "Commands.Former"):
        subscribe(topic, endpoint="Sales")
    table.subscribe(SubscriptionRow("Legacy", "Commands.Handled", "Gone"))
    return table


def _nothing(message: Any, context: Any) -> None:
    """A handler."""


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("sqlqueue_subscriptions", *arguments, stdout=out)
    return out.getvalue()


def document(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(*arguments, "--format", "json"))["subscriptions"]
    return found


def left(table: SubscriptionTable) -> list[tuple[str, str]]:
    return [(each.endpoint, each.topic) for each in table.all()]


def test_all_subscriptions_are_shown_with_their_problems(table: SubscriptionTable) -> None:
    found = document()

    assert all(set(each) == KEYS for each in found)
    assert [(each["endpoint"], each["topic"], each["queue_exists"], each["handled"]) for each in found] == [
        ("Legacy", "Commands.Handled", False, None),
        ("Sales", "Commands.Former", True, False),
        ("Sales", "Commands.Handled", True, True),
    ]
    lines = run().splitlines()
    assert lines[0].split() == ["Legacy", "Commands.Handled", "Gone", "queue", "missing"]
    assert lines[1].endswith("not handled")
    assert len(document("--endpoint", "Legacy")) == 1
    assert "No subscriptions." in run("--endpoint", "Nobody")


def test_single_subscription_is_removed(table: SubscriptionTable) -> None:
    assert "1 subscription removed" in run("--endpoint", "Legacy", "--remove", "Commands.Handled")

    assert left(table) == [("Sales", "Commands.Former"), ("Sales", "Commands.Handled")]


def test_unhandled_subscriptions_are_removed(table: SubscriptionTable) -> None:
    assert [each["topic"] for each in document("--remove-unhandled")] == ["Commands.Former"]

    assert left(table) == [("Legacy", "Commands.Handled"), ("Sales", "Commands.Handled")]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--remove", "Commands.Handled"], "--remove needs --endpoint"),
        (["--endpoint", "Sales", "--remove", "Commands.Handled", "--remove", "x"], "'Sales' has not subscribed to 'x'"),
        (["--endpoint", "Sales", "--remove", "Commands.Handled", "--remove-unhandled"], "not allowed with argument"),
    ],
)
def test_invalid_arguments_are_refused_and_nothing_is_removed(table: SubscriptionTable, arguments: list[str], reason: str) -> None:
    with pytest.raises(CommandError, match=reason) as caught:
        run(*arguments)

    assert caught.value.returncode == 2
    assert len(left(table)) == 3


def test_spelling_of_type_arguments_does_not_matter(table: SubscriptionTable, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Handler("Commands.Page`1[[Commands.Order, Commands]]", _nothing, None)
    monkeypatch.setattr(registry, "all", lambda: [handler])
    topics = ["Commands.Page`1[[Commands.Order, Commands, Version=2.0.0.0]]", "Commands.Page`1[[Commands.Order]]"]
    for topic in topics:
        subscribe(topic, endpoint="Sales")

    run("--endpoint", "Sales", "--remove-unhandled")

    assert {topic for endpoint, topic in left(table) if endpoint == "Sales"} == set(topics)
    by_topic = {event.topic: event for event in read_matrix(get_settings())}
    assert [by_topic[topic].subscribers[0].handled for topic in topics] == [True, True]
