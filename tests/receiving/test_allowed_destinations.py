"""`ALLOWED_DESTINATIONS`: headers of received messages reach only the queues that it names, in their own schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.receiving.destinations import AllowedDestinations
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.queue import queue_table
from tests.support.bench import FAST, Bench

SQL_SERVER = AddressBook(
    "sqlserver",
    default_catalog="nsb",
    schema_for_queue={"error": "ops"},
    schema_for_endpoint={"Billing": "bil"},
)
POSTGRESQL = AddressBook("postgresql", schema_for_queue={"error": "ops"}, schema_for_endpoint={"Billing": "bil"})
SQLITE = AddressBook("sqlite")


@pytest.mark.parametrize(
    ("book", "pattern", "text", "allowed"),
    [
        (SQL_SERVER, "Sales*", "Sales", True),
        (SQL_SERVER, "Sales*", "Sales.web1@[dbo]@[nsb]", True),
        (SQL_SERVER, "Sales*", "Sales@[hr]", False),
        (SQL_SERVER, "Sales*", "Sales@[dbo]@[payroll]", False),
        (SQL_SERVER, "*", "Sales@[hr]", False),
        (SQL_SERVER, "Billing", "Billing", True),
        (SQL_SERVER, "Billing", "Billing@[bil]", True),
        (SQL_SERVER, "Billing", "Billing@[hr]", False),
        (SQL_SERVER, "error", "error@[hr]", True),  # SCHEMA_FOR_QUEUE wins: this is ops.error
        (SQL_SERVER, "Sales@[hr]", "Sales@[hr]", True),
        (SQL_SERVER, "Sales@[hr]", "Sales", False),
        (SQL_SERVER, "Sales@[hr]", "Sales@[h]", False),
        (SQL_SERVER, "*@[hr]", "Any thing@hr", True),
        (SQL_SERVER, "*@[hr]", "Sales@[hr]@[payroll]", False),
        (SQL_SERVER, "*@[hr]@[payroll]", "Sales@[hr]@[payroll]", True),
        (SQL_SERVER, "*@[*]@[*]", "Sales@[hr]@[payroll]", True),
        (SQL_SERVER, "@", "Sales", False),
        (SQL_SERVER, "S?les", "Sales", False),
        (SQL_SERVER, "[S]ales", "Sales", False),
        (SQL_SERVER, "sales", "Sales", False),
        (POSTGRESQL, "Sales*", '"public"."Sales"', True),
        (POSTGRESQL, "Sales*", '"hr"."Sales"', False),
        (POSTGRESQL, "*", '"hr"."Sales"', False),
        (POSTGRESQL, "*", "hr.Sales", False),
        (POSTGRESQL, "Acme.*", '"Acme.Sales"', True),
        (POSTGRESQL, "Acme.*", "Acme.Sales", True),  # an address in that schema, in the form of the database
        (POSTGRESQL, "*.Sales", "hr.Sales", False),
        (POSTGRESQL, "*.Sales", '"hr.Sales"', True),
        (POSTGRESQL, '"*"."Sales"', "hr.Sales", True),
        (POSTGRESQL, '"hr"."*"', '"hr"."any. thing"', True),
        (POSTGRESQL, '"hr"."*"', "Sales", False),
        (POSTGRESQL, '"hr.Sales"', '"hr.Sales"', True),
        (POSTGRESQL, '"hr.Sales"', "hr.Sales", False),
        (POSTGRESQL, "Billing", "bil.Billing", True),
        (POSTGRESQL, "error", "hr.error", True),
        (SQLITE, "Sales*", "Sales.web1", True),
        (SQLITE, "Acme.*", "Acme.Sales@[dbo]", True),
        (SQLITE, "Acme.*", '"dbo"."Sales"', False),
        (SQLITE, "Sales", "Sales2", False),
        (SQLITE, "Sal\nes", "Sal\nes", True),
    ],
)
def test_pattern_matches_expected_queues(book: AddressBook, pattern: str, text: str, allowed: bool) -> None:
    destination = book.received(text)
    assert AllowedDestinations((pattern,), book).has(destination) is allowed
    assert AllowedDestinations(("Nowhere", pattern), book).has(destination) is allowed


# Every header that names a queue, and where the message that has it arrives.
HEADERS = {
    "reply": ("Sales", {"NServiceBus.ReplyToAddress": "TO"}),
    "callback": ("Sales", {"NServiceBus.ReplyToAddress": "Sales", "NServiceBus.SqlServer.CallbackQueue": "TO"}),
    "forward": ("Sales", {"NServiceBus.SqlServer.ForwardDestination": "TO"}),
    "acknowledgement": (
        "Sales",
        {
            "NServiceBus.ReplyToAddress": "Sales",
            "ServiceControl.Retry.UniqueMessageId": "u",
            "ServiceControl.Retry.AcknowledgementQueue": "TO",
        },
    ),
    "retry": ("Sales.Retries", {"NServiceBus.FailedQ": "TO"}),
    "timeout": (
        "Sales.Timeouts",
        {"NServiceBus.Timeout.RouteExpiredTimeoutTo": "TO", "NServiceBus.Timeout.Expire": "2020-01-01 00:00:00:000000 Z"},
    ),
    "dispatched": ("Sales.TimeoutsDispatcher", {"NServiceBus.Timeout.RouteExpiredTimeoutTo": "TO"}),
    "subscription": (
        "Sales",
        {
            "NServiceBus.ControlMessage": "True",
            "NServiceBus.MessageIntent": "Subscribe",
            "SubscriptionMessageType": "Test.Happened, Test",
            "NServiceBus.SubscriberAddress": "TO",
            "NServiceBus.SubscriberEndpoint": "Peer",
        },
    ),
}


def test_no_header_reaches_a_schema_that_is_not_allowed(postgresql_bench: Bench) -> None:
    bench = postgresql_bench

    @handles("Test.Ask")
    def answer_request(message: Any, context: Any) -> None:
        context.reply("Test.Answer", {})

    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA hr")
    hidden = QueueAddress("Peer", "hr", form="postgresql")
    bench.database.configure(
        ENDPOINTS={"Sales": {**FAST, "LEGACY_SATELLITES": True, "ACKNOWLEDGE_RETRIES": True}},
        ALLOWED_DESTINATIONS=["Peer", "Sales"],
    )
    bench.install()
    bench.install_queues("Peer")
    install_tables(bench.database.alias, [PlannedTable(TableKind.QUEUE, hidden)])
    for number, to in enumerate(('"hr"."Peer"', "hr.Peer")):
        for place, (name, (queue, headers)) in enumerate(HEADERS.items()):
            all_headers = {"NServiceBus.EnclosedMessageTypes": "Test.Ask", "Case": f"{name} {to}"}
            all_headers |= {key: to if value == "TO" else value for key, value in headers.items()}
            bench.put(json.dumps(all_headers), b"{}", queue=queue, row_id=f"00000000-0000-0000-0000-{number * 100 + place:012}")
    bench.run()

    assert queue_table(bench.database.alias, hidden).peek(10) == []
    failed = {row["Case"]: row["NServiceBus.ExceptionInfo.Message"] for row in bench.headers("error")}
    assert sorted(failed) == sorted(f"{name} {to}" for name in HEADERS for to in ('"hr"."Peer"', "hr.Peer"))
    assert [reason for reason in failed.values() if "ALLOWED_DESTINATIONS" not in reason or "hr" not in reason] == []
    with bench.database.connection.cursor() as cursor:
        cursor.execute('SELECT topic FROM "SubscriptionRouting"')
        assert ("Test.Happened",) not in cursor.fetchall()


def test_letter_case_does_not_bypass_satellite_loop_detection(sqlite_bench: Bench) -> None:
    sqlite_bench.configure(LEGACY_SATELLITES=True)
    sqlite_bench.put(json.dumps({"NServiceBus.FailedQ": "sales.RETRIES"}), b"{}", queue="Sales.Retries")
    sqlite_bench.run()
    (failed,) = sqlite_bench.headers("error")
    assert "satellite queue of the same endpoint" in failed["NServiceBus.ExceptionInfo.Message"]
