"""Orders are placed, billed and shipped on every database with the documented commands."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.demo.running import database_url, environment, manage
from tests.support.databases import QueueDatabase
from tests.support.sqlserver import needs


def rows(database: QueueDatabase, statement: str) -> list[tuple[str, ...]]:
    with database.connection.cursor() as cursor:
        cursor.execute(statement)
        return [tuple(row) for row in cursor.fetchall()]


@pytest.fixture
def environ(queue_database: QueueDatabase, tmp_path: Path) -> dict[str, str]:
    """The demo, migrated, on the database of the test."""
    queue_database.connection.close()
    needs(queue_database.vendor, "DROP CONSTRAINT of a default")  # which the migrations of the shop do
    # a worker with --until-empty does not wait for messages that are not due
    found = environment(tmp_path, database_url(queue_database), DELAYED_RETRY_INCREASE="0")
    manage(found, "migrate", "--verbosity", "0")
    return found


def test_all_orders_but_every_tenth_are_billed_and_shipped(queue_database: QueueDatabase, environ: dict[str, str]) -> None:
    manage(environ, "place_orders", "--count", "20", "--per-minute", "60000")
    manage(environ, "run_sqlqueue_worker", "--until-empty")

    statuses = Counter(rows(queue_database, "SELECT customer, status FROM shop_order"))
    assert statuses.pop(("Mallory", "billed")) == 2
    assert {status for _, status in statuses} == {"shipped"}
    assert sum(statuses.values()) == 18
    assert len(rows(queue_database, "SELECT order_number FROM shop_invoice")) == 20
    # the writes of the failed attempts are rolled back
    assert {customer for (customer,) in rows(queue_database, "SELECT customer FROM shop_shipment")}.isdisjoint({"Mallory"})
    shipped = rows(queue_database, "SELECT s.order_number FROM shop_shipment s JOIN shop_order o ON o.number = s.order_number")
    assert len(shipped) == 18


def test_order_that_fails_twice_is_billed_at_the_third_attempt(queue_database: QueueDatabase, environ: dict[str, str]) -> None:
    script = "from project.shop.orders import place_order; place_order('Trudy', 5)"
    manage(environ, "shell", "--no-imports", "-c", script)
    printed = manage(environ, "run_sqlqueue_worker", "--until-empty")

    assert rows(queue_database, "SELECT status FROM shop_order") == [("shipped",)]
    assert len(rows(queue_database, "SELECT order_number FROM shop_invoice")) == 1
    assert [f"attempt {number} to bill" in printed for number in (1, 2, 3)] == [True, True, False]


def test_both_subscribers_receive_the_completed_order(queue_database: QueueDatabase, environ: dict[str, str]) -> None:
    script = "from project.shop.orders import place_order; place_order('Alice', 5)"
    manage(environ, "shell", "--no-imports", "-c", script)
    manage(environ, "run_sqlqueue_worker", "--until-empty")

    for table in ("shop_invoice", "shop_shipment"):
        ((closed,),) = rows(queue_database, f"SELECT closed FROM {table}")
        assert closed
    later = queue_database.connection.ops.quote_name("Sales.Delayed")
    ((thanked,),) = rows(queue_database, "SELECT thanked FROM shop_order")
    # The review is due in ten minutes, the thanks in three seconds: on a slow machine the worker still runs then.
    assert len(rows(queue_database, f"SELECT 1 FROM {later}")) + bool(thanked) == 2


def test_page_reports_a_request_without_a_reply(environ: dict[str, str]) -> None:
    script = (
        "from django.test import Client; from project.shop import views; from project.shop.orders import place_order;"
        "views.ANSWER_SECONDS = 0; order = place_order('Alice', 5);"
        "page = Client(headers={'host': 'localhost'}).get(f'/orders/{order.number}/parcel/');"
        "print(page.status_code, 'Is the worker running?' in page.content.decode())"
    )

    assert "503 True" in manage(environ, "shell", "--no-imports", "-c", script)


def test_failed_message_is_in_the_error_queue_with_its_reason(queue_database: QueueDatabase, environ: dict[str, str]) -> None:
    script = "from project.shop.orders import place_order; place_order('Mallory', 666)"
    manage(environ, "shell", "--no-imports", "-c", script)
    manage(environ, "run_sqlqueue_worker", "--until-empty")

    quote = queue_database.connection.ops.quote_name
    column = quote("headers" if queue_database.vendor == "postgresql" else "Headers")
    ((text,),) = rows(queue_database, f"SELECT {column} FROM {quote('error')}")
    headers = json.loads(text)
    assert headers["NServiceBus.EnclosedMessageTypes"] == "Shipping.ShipOrder"
    assert headers["NServiceBus.ProcessingEndpoint"] == "Shipping"
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"] == "project.shop.handlers.shipping.OutOfStock"


def test_migrations_create_and_drop_the_queues(queue_database: QueueDatabase, environ: dict[str, str]) -> None:
    wanted = {"Sales", "Billing", "Shipping", "error"}
    assert wanted <= set(queue_database.connection.introspection.table_names())

    manage(environ, "migrate", "shop", "zero", "--verbosity", "0")

    names = set(queue_database.connection.introspection.table_names())
    queue_database.connection.close()
    # `migrate` then creates the queues of the settings, empty
    assert {"shop_order", "shop_invoice", "shop_shipment"}.isdisjoint(names)


def test_generator_refuses_an_invalid_rate(tmp_path: Path) -> None:
    output = manage(environment(tmp_path), "place_orders", "--per-minute", "0", code=2)

    assert "expected a number above 0, got '0'" in output
