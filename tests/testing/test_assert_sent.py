"""assert_sent and assert_not_sent: what counts as sent, and the messages of failing tests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from pytest_django import Settings

from sqlqueue_app import handles, message_type, send, send_many
from sqlqueue_app.messages.errors import TableMismatch
from sqlqueue_app.testing import assert_not_sent, assert_sent, drain, sent
from tests.support.bench import Bench


@message_type("Test.Sent.PlaceOrder")
@dataclass
class PlaceOrder:
    order_id: str
    total: Decimal
    lines: list[dict[str, int]] | None = None


@message_type("Test.Sent.PlaceBigOrder", names="pascal")
@dataclass
class PlaceBigOrder(PlaceOrder):
    manager: str = ""


def failure(*arguments: Any, **named: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_sent(*arguments, **named)
    return str(caught.value)


def test_sent_message_is_found_by_class_name_object_and_body(bench: Bench) -> None:
    send(PlaceOrder("1", Decimal("9.90"), [{"a": 1}]))

    message = assert_sent(PlaceOrder)
    assert (message.queue, message.message_type, message.message) == (
        "Sales",
        "Test.Sent.PlaceOrder",
        PlaceOrder("1", Decimal("9.90"), [{"a": 1}]),
    )
    assert message.body == {"order_id": "1", "total": Decimal("9.9"), "lines": [{"a": 1}]}
    assert_sent("Test.Sent.PlaceOrder", {"total": Decimal("9.9"), "lines": [{}]}, to="Sales", count=1)
    assert_sent(PlaceOrder("1", Decimal("9.90"), [{"a": 1}]), count=1)


def test_refused_send_to_a_table_that_is_no_queue_does_not_break_later_assertions(bench: Bench) -> None:
    with pytest.raises(TableMismatch):
        send("Test.Any", {}, to=str(bench.table("Sales.Delayed").address))

    assert_not_sent()


def test_queue_is_listed_once_in_any_case_of_its_name(sqlite_bench: Bench) -> None:
    send("Test.Any", {"number": 1}, to="Sales")
    send("Test.Any", {"number": 2}, to="sales")

    assert [message.queue for message in sent()] == ["Sales", "Sales"]
    assert_sent("Test.Any", to="Sales", count=2)
    assert_sent("Test.Any", to="sales", count=2)


def test_values_are_compared_in_wire_format(bench: Bench) -> None:
    send("Test.Any", {"id": UUID(int=1), "wait": timedelta(seconds=1), "flag": True, "one": 1})
    assert_sent("Test.Any", {"id": UUID(int=1), "wait": timedelta(seconds=1), "flag": True, "one": 1})
    assert 'body["flag"]' not in failure("Test.Any", {"flag": 1})
    assert "body['flag'] is true, expected 1" in failure("Test.Any", {"flag": 1})


@dataclass
class Line:
    sku: str


@message_type("Test.Sent.Delivery")
@dataclass
class Delivery:
    lines: list[Line]
    labels: dict[str, int]
    weight: Decimal
    note: str | None = None


def test_xml_of_a_class_is_compared_by_its_values(bench: Bench) -> None:
    bench.database.configure(SERIALIZER="xml")
    send(Delivery([Line("a")], {"k": 1}, Decimal("1.50"), "fragile"))
    assert_sent(Delivery, {"lines": [{"sku": "a"}], "labels": {"k": 1}, "weight": Decimal("1.5")})
    assert "body['labels']['k'] is 1, expected 2" in failure(Delivery, {"labels": {"k": 2}})
    assert "body['note'] is \"fragile\", expected null" in failure(Delivery, {"note": None})


def test_body_of_another_content_type_is_that_of_the_setting(bench: Bench) -> None:
    bench.database.configure(SERIALIZER="xml")
    send("Test.Any", {"id": "x"}, headers={"NServiceBus.ContentType": "application/vnd.shop"})
    assert assert_sent("Test.Any", {"id": "x"}).body == {"id": "x"}


def test_names_of_members_are_found_as_handlers_find_them(bench: Bench) -> None:
    send(PlaceBigOrder("1", Decimal(1), manager="M"))
    message = assert_sent(PlaceBigOrder, {"order_id": "1", "manager": "M"})
    assert message.body["OrderId"] == "1"
    assert_sent(PlaceBigOrder("1", Decimal(1), manager="M"))
    # it is also a PlaceOrder
    assert_sent(PlaceOrder, {"order_id": "1"})
    assert message.message == PlaceBigOrder("1", Decimal(1), manager="M")


def test_failure_tells_a_number_from_its_text(bench: Bench) -> None:
    send("Test.Other", {"total": "1.50", "lines": [Decimal("2.50")]}, to="Billing")

    text = failure("Test.Other", {"total": Decimal("1.50"), "lines": ["2.50"]})

    assert text.splitlines() == [
        'Test.Other with {"total": 1.50, "lines": ["2.50"]} was not sent; sent were 1:',
        '  Test.Other to Billing: {"total": "1.50", "lines": [2.50]}',
        """    but body['total'] is "1.50", expected 1.50""",
        """    but body['lines'][0] is 2.50, expected "2.50\"""",
    ]


def test_failure_lists_the_sent_messages(bench: Bench) -> None:
    send(PlaceOrder("1", Decimal(2)), headers={"Tenant": "a"})
    send("Test.Other", {}, to="Billing", delay=timedelta(hours=1))

    text = failure(PlaceOrder, {"order_id": "2", "missing": None}, to="Billing", headers={"Tenant": "b"}, delay=timedelta(hours=2))

    first, *lines = text.splitlines()
    assert first.startswith("Test.Sent.PlaceOrder with {")
    assert first.endswith("was not sent; sent were 2:")
    assert lines == [
        '  Test.Sent.PlaceOrder to Sales: {"order_id": "1", "total": 2, "lines": null}',
        """    but body['order_id'] is "1", expected "2\"""",
        "    but body has no 'missing'",
        "    but header 'Tenant' is 'a', expected 'b'",
        "    but its delay is 0:00:00, expected 2:00:00",
        "    but it went to Sales, expected Billing",
        "  Test.Other to Billing in 1:00:00: {}",
        "    but its type is 'Test.Other', expected 'Test.Sent.PlaceOrder'",
        "    but body has no 'order_id'",
        "    but body has no 'missing'",
        "    but header 'Tenant' is None, expected 'b'",
        "    but its delay is 1:00:00, expected 2:00:00",
    ]


def test_nothing_was_sent(bench: Bench) -> None:
    assert failure("Test.Any") == "Test.Any was not sent; nothing was sent"
    assert_not_sent()
    assert_not_sent("Test.Any")


def test_counts(bench: Bench) -> None:
    send_many("Test.Any", [{"n": 1}, {"n": 2}])
    assert_sent("Test.Any", count=2)
    assert_sent("Test.Any", {"n": 2}, count=1)
    assert failure("Test.Any", count=3).startswith("Test.Any was sent 2 times, expected 3; sent were 2:")
    assert [each.body["n"] for each in sent("Test.Any")] == [1, 2]
    with pytest.raises(AssertionError, match="was sent 1 time, expected none"):
        assert_not_sent("Test.Any", {"n": 1})
    with pytest.raises(ValueError, match="assert_not_sent"):
        assert_sent("Test.None", count=0)


def test_delays(bench: Bench) -> None:
    send("Test.Later", {}, delay=timedelta(minutes=5))
    send("Test.Now", {})
    assert assert_sent("Test.Later", delay=timedelta(minutes=5), to="Sales").deliver_at is not None
    assert_sent("Test.Now", delay=timedelta())
    assert_not_sent("Test.Later", delay=timedelta())


def test_rolled_back_message_was_not_sent(bench: Bench) -> None:
    with transaction.atomic(using=bench.database.alias):
        send("Test.Any", {})
        assert_sent("Test.Any")
        transaction.set_rollback(True, using=bench.database.alias)
    assert_not_sent()


def test_drained_message_was_sent(bench: Bench) -> None:
    handles("Test.Any")(lambda message, context: context.send("Billing.Pay", {}) and None)
    handles("Billing.Pay")(lambda message, context: None)
    send("Test.Any", {})
    drain()
    assert bench.rows("Billing") == []
    assert_sent("Test.Any", count=1)
    assert_sent("Billing.Pay", to="Billing", count=1)


def test_failures_are_not_sent_again(bench: Bench) -> None:
    handles("Test.Any")(lambda message, context: 1 / 0)
    send("Test.Any", {})
    drain(raise_errors=False, with_delayed=True)
    assert len(bench.rows("error")) == 1
    assert_sent("Test.Any", count=1)


def test_a_queue_that_no_setting_names(bench: Bench) -> None:
    bench.install_queues("Elsewhere")
    send("Test.Any", {}, to="Elsewhere")
    assert assert_sent("Test.Any", to="Elsewhere").queue == "Elsewhere"


def test_failure_shows_the_address_of_a_queue_with_a_dot_in_its_name(postgresql_bench: Bench) -> None:
    postgresql_bench.install_queues("Sales.High")
    send("Test.Any", {}, to='"Sales.High"')
    assert 'but it went to "public"."Sales.High", expected Sales.High' in failure("Test.Any", to="Sales.High")
    assert_sent("Test.Any", to='"Sales.High"')


def test_wrong_arguments_are_refused(bench: Bench) -> None:
    with pytest.raises(TypeError, match="passed with the message PlaceOrder"):
        assert_sent(PlaceOrder("1", Decimal(1)), {"order_id": "1"})


def test_row_of_another_sender_is_reported_as_sent(bench: Bench) -> None:
    bench.put("no headers", b"")
    bench.put("{}", b"no json", row_id="11111111-2222-3333-4444-555555555556")
    (message,) = sent()
    assert (message.message_type, message.body, message.message) == ("", b"no json", b"no json")
    assert "a message without a type to Sales: b'no json'" in failure("Test.Any")


def test_body_of_a_claim_check_is_read_from_its_file(bench: Bench, settings: Settings) -> None:
    memory = {"BACKEND": "django.core.files.storage.InMemoryStorage"}
    settings.STORAGES = {**settings.STORAGES, "bodies": memory}
    settings.SQLQUEUE = {**settings.SQLQUEUE, "CLAIM_CHECK": {"STORAGE": "bodies", "ABOVE": 100}}
    handles("Test.Large")(lambda message, context: None)
    large = {"text": "x" * 500}
    send("Test.Large", large)
    send("Test.Large", large, delay=60)
    assert "SqlQueue.ClaimCheck" in assert_sent("Test.Large", large, to="Sales", count=2).headers
    with pytest.raises(AssertionError, match=r"body\['text'\] is \"x"):
        assert_sent("Test.Large", {"text": "y" * 500})
    drain()
    assert [each.body for each in sent("Test.Large")] == [large, large]
