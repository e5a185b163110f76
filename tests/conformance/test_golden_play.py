"""The recorded play, replayed: we receive the rows that real endpoints received, and must write what they wrote.

Headers are compared one by one, in their forms. Differences are listed here and in docs/reference/compatibility.md.
"""

from __future__ import annotations

import base64
import enum
import json
import logging
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sqlqueue_app import handles, message_type, subscribe
from sqlqueue_app.messages.types import registry
from sqlqueue_app.messages.xml import parse_xml
from sqlqueue_app.tables.rows import NewRow
from tests.support import golden
from tests.support.bench import FAST, Bench

SERIALIZERS = ["json", "newtonsoft", "xml"]

# Their headers that we do not write, each with the documented reason.
NOT_OURS = {
    "NServiceBus.Metric.InstanceId",  # with NServiceBus.Metrics only
    "NServiceBus.OpenTelemetry.StartNewTrace",  # with a tracer only
    "NServiceBus.ExceptionInfo.Data.Handler canceled",  # our handlers cannot be canceled
    "NServiceBus.ExceptionInfo.Data.Pipeline canceled",
}
# These differ between runs or machines, so only their form is compared.
FORMS = {
    "NServiceBus.MessageId": "id",
    "NServiceBus.ConversationId": "id",
    "NServiceBus.TimeSent": "time",
    "NServiceBus.ProcessingStarted": "time",
    "NServiceBus.ProcessingEnded": "time",
    "NServiceBus.Retries.Timestamp": "time",
    "NServiceBus.DeliverAt": "time",
    "NServiceBus.TimeOfFailure": "time",
    "ServiceControl.Retry.Successful": "time",
    "NServiceBus.ExceptionInfo.Data.Handler start time": "time",
    "NServiceBus.ExceptionInfo.Data.Handler failure time": "time",
    "$.diagnostics.originating.hostid": "host id",
    "$.diagnostics.hostid": "host id",
}
ANY_TEXT = {
    "NServiceBus.OriginatingMachine", "NServiceBus.ProcessingMachine", "$.diagnostics.hostdisplayname", "NServiceBus.Version",
    "NServiceBus.ExceptionInfo.ExceptionType", "NServiceBus.ExceptionInfo.Message", "NServiceBus.ExceptionInfo.Source",
    "NServiceBus.ExceptionInfo.StackTrace", "NServiceBus.ExceptionInfo.Data.Handler type",
    "NServiceBus.ExceptionInfo.Data.Transport message ID",
}  # fmt: skip
_FORMS = {
    "id": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "time": re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{6} Z"),
    "host id": re.compile("[0-9a-f]{32}"),
}


class Status(enum.IntEnum):
    Unknown = 0
    Accepted = 1
    Rejected = 2
    OnHold = 7


@dataclass
class OrderEvent:
    order_id: uuid.UUID


@dataclass
class OrderPlaced(OrderEvent):
    customer: str


@dataclass
class OrderAccepted:
    order_id: uuid.UUID
    status: Status


@dataclass
class OrderRated:
    order_id: uuid.UUID
    stars: int


@dataclass
class PlaceOrder:
    order_id: uuid.UUID
    customer: str


@dataclass
class CancelOrder:
    order_id: uuid.UUID
    reason: str


@dataclass
class RateOrder:
    order_id: uuid.UUID


TYPES = {
    "IOrderEvent": OrderEvent, "IOrderPlaced": OrderPlaced, "OrderAccepted": OrderAccepted, "OrderRated": OrderRated,
    "PlaceOrder": PlaceOrder, "CancelOrder": CancelOrder, "RateOrder": RateOrder,
}  # fmt: skip


@pytest.fixture
def message_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the types of the play for one test; other tests have none, or their own classes, for these names."""
    for name in ("_by_name", "_by_class"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    for name, cls in TYPES.items():
        message_type(f"Shop.Messages.{name}", assembly="Shop.Messages", names="pascal")(cls)


class Play:
    """The recorded rows of one serializer, and our three endpoints on empty tables."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench = bench
        self.rows = [{**row, "read": json.loads(row["headers"])} for row in golden.rows(name) if row.get("headers")]
        retries = {"IMMEDIATE_RETRIES": 1, "DELAYED_RETRIES": 1, "DELAYED_RETRY_INCREASE": 3600}
        common = {**FAST, **retries, "AUDIT_QUEUE": "audit", "CALLBACKS": False, "SUBSCRIBE": False}
        bench.database.configure(
            ENDPOINTS={"Sales": common, "Billing": {**common, "HANDLERS": []}, "Web": {**common, "HANDLERS": []}},
            SERIALIZER="xml" if name == "xml" else "json",
        )
        bench.install()
        bench.install_queues("Web.web-1", "Particular.ServiceControl")
        subscribe("Shop.Messages.IOrderPlaced", endpoint="Billing")

    def received(self, kind: str, number: int = 0) -> dict[str, Any]:
        """The n-th recorded row of its type that arrived in Sales."""
        return [row for row in self.rows if row["table"] == "Sales" and _kind(row) == kind][number]

    def theirs(self, table: str, **headers: str) -> dict[str, Any]:
        """The first recorded row in a table with these headers."""
        wanted = {f"NServiceBus.{name}": value for name, value in headers.items()}
        return next(row for row in self.rows if row["table"] == table and wanted.items() <= row["read"].items())

    def receives(self, row: dict[str, Any]) -> str:
        """Insert a recorded row into Sales and run the worker until the queue is empty; returns the message id."""
        body = base64.b64decode(row["body_base64"])
        self.bench.table("Sales").send([NewRow(str(uuid.uuid4()), row["headers"], body)])
        self.bench.run(endpoints=["Sales"])
        return str(row["read"]["NServiceBus.MessageId"])

    def check(self, table: str, theirs: dict[str, Any]) -> None:
        """Assert that our only row in the table equals the recorded one."""
        (ours,) = self.bench.rows(table)
        compare(json.loads(ours.headers or "{}"), theirs["read"])
        assert same_body(ours.body or b"", base64.b64decode(theirs["body_base64"] or ""))


def _kind(row: dict[str, Any]) -> str:
    return str(row["read"].get("NServiceBus.EnclosedMessageTypes", "")).partition(",")[0].rpartition(".")[2]


def compare(ours: dict[str, str], theirs: dict[str, str]) -> None:
    wanted = {name: value for name, value in theirs.items() if name not in NOT_OURS}
    # No reader depends on the order.
    assert sorted(set(ours) - NOT_OURS) == sorted(wanted)
    for name, value in wanted.items():
        found = ours[name]
        if name in FORMS:
            # an id that is passed on may have any form
            assert found == value or _FORMS[FORMS[name]].fullmatch(found), (name, found)
        elif name not in ANY_TEXT:
            # a copy keeps the original value; a new one has no version, culture and key
            assert found in (value, re.sub(r", Version=[^;]*", "", value)), name


def same_body(ours: bytes, theirs: bytes) -> bool:
    if ours.startswith(b"<"):
        # .NET writes the members of a class before those of its parents; no reader depends on the order.
        mine, others = parse_xml(ours), parse_xml(theirs)
        members = [sorted((each.name, each.text) for each in root.children) for root in (mine, others)]
        return mine.type_names == others.type_names and members[0] == members[1]
    if not ours.startswith(b"{"):
        return ours == theirs
    return bool(json.loads(ours) == json.loads(theirs.decode("utf-8-sig")))


@pytest.fixture(params=SERIALIZERS)
def play(postgresql_bench: Bench, message_types: None, request: pytest.FixtureRequest) -> Iterator[Play]:
    @handles(PlaceOrder)
    def place(message: PlaceOrder, context: Any) -> None:
        context.reply(OrderAccepted(message.order_id, Status.Accepted))
        context.publish(OrderPlaced(message.order_id, message.customer))

    @handles(CancelOrder)
    def cancel(message: CancelOrder, context: Any) -> None:
        context.reply(42 if message.reason == "int" else Status.OnHold)

    @handles(RateOrder)
    def rate(message: RateOrder, context: Any) -> None:
        context.reply(OrderRated(message.order_id, 5))

    @handles("Shop.Messages.RejectOrder")
    def reject(message: Any, context: Any) -> None:
        raise ValueError("always fails")

    for name in ("Ping", "RemindCustomer", "DeliveryTimeout", "AttachDocument"):
        handles(f"Shop.Messages.{name}")(_nothing)
    logging.disable(logging.CRITICAL)
    yield Play(postgresql_bench, request.param)
    logging.disable(logging.NOTSET)


def _nothing(message: Any, context: Any) -> None:
    """Do nothing, like the real handler as far as its rows show."""


@pytest.mark.parametrize("number", [0, 1, 2])
def test_reply_event_and_audit_copy(play: Play, number: int) -> None:
    message_id = play.receives(play.received("PlaceOrder", number))

    play.check("Web", play.theirs("Web", MessageIntent="Reply", RelatedTo=message_id))
    play.check("Billing", play.theirs("Billing", MessageIntent="Publish", RelatedTo=message_id))
    play.check("audit", play.theirs("audit", MessageId=message_id))


def test_replies_to_an_instance_and_to_another_queue(play: Play) -> None:
    to_instance, to_billing = play.received("PlaceOrder", 3), play.received("PlaceOrder", 4)
    play.check("Web.web-1", play.theirs("Web.web-1", RelatedTo=play.receives(to_instance)))

    play.bench.table("Billing").purge()
    message_id = play.receives(to_billing)
    answers = {json.loads(row.headers or "{}")["NServiceBus.MessageIntent"] for row in play.bench.rows("Billing")}
    assert answers == {"Reply", "Publish"}
    (reply,) = [row for row in play.bench.headers("Billing") if row["NServiceBus.MessageIntent"] == "Reply"]
    compare(reply, play.theirs("Billing", MessageIntent="Reply", RelatedTo=message_id)["read"])


@pytest.mark.parametrize("number", [0, 1])
def test_callback_replies_of_an_int_and_an_enum(play: Play, number: int) -> None:
    message_id = play.receives(play.received("CancelOrder", number))

    play.check("Web.web-1", play.theirs("Web.web-1", RelatedTo=message_id))


def test_callback_reply_of_an_object(play: Play) -> None:
    message_id = play.receives(play.received("RateOrder"))

    play.check("Web.web-1", play.theirs("Web.web-1", RelatedTo=message_id))


def test_delayed_retry_and_error_row(play: Play) -> None:
    message_id = play.receives(play.received("RejectOrder"))
    with play.bench.database.connection.cursor() as cursor:
        cursor.execute('SELECT headers, body FROM "Sales.Delayed"')
        ((headers, body),) = cursor.fetchall()
    recorded = play.theirs("Sales.Delayed", MessageId=message_id)
    compare(json.loads(headers), recorded["read"])
    assert bytes(body) == base64.b64decode(recorded["body_base64"])

    second = next(row for row in play.rows if row["table"] == "Sales" and row["read"].get("NServiceBus.Retries") == "1")
    play.receives(second)
    play.check("error", play.theirs("error", MessageId=message_id))


def test_forwarded_message(play: Play) -> None:
    waiting = play.theirs("Web", **{"SqlServer.ForwardDestination": '"public"."Sales"'})
    play.bench.table("Web").send([NewRow(str(uuid.uuid4()), waiting["headers"], base64.b64decode(waiting["body_base64"]))])
    play.bench.run(endpoints=["Web"])

    arrived = play.theirs("Sales", MessageId=waiting["read"]["NServiceBus.MessageId"])
    (ours,) = play.bench.rows("Sales")
    # exactly the same headers
    assert json.loads(ours.headers or "{}") == arrived["read"]
    assert ours.body == base64.b64decode(arrived["body_base64"])


def test_saga_timeout_is_forwarded_and_audited(play: Play) -> None:
    message_id = play.receives(play.received("DeliveryTimeout"))

    play.check("audit", play.theirs("audit", MessageId=message_id))


def test_acknowledgement_of_a_retry(play: Play) -> None:
    retried = next(row for row in play.rows if row["table"] == "Sales" and "ServiceControl.Retry.UniqueMessageId" in row["read"])
    message_id = play.receives(retried)

    play.check("audit", play.theirs("audit", MessageId=message_id))
    play.check("Particular.ServiceControl", play.theirs("Particular.ServiceControl", ControlMessage="True"))
