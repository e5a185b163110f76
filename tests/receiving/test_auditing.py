"""The audit queue: copies of handled messages, and the acknowledgement of a retry (docs/internals/wire.md#audit-headers)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.tables.rows import NewRow
from tests.support import golden
from tests.support.bench import MODES, Bench, Calls

ADDED = [
    "NServiceBus.ProcessingStarted",
    "NServiceBus.ProcessingEnded",
    "$.diagnostics.hostid",
    "$.diagnostics.hostdisplayname",
    "NServiceBus.ProcessingMachine",
    "NServiceBus.ProcessingEndpoint",
]
# Host and time differ from those of the recording.
OURS = {*ADDED, "NServiceBus.Version", "NServiceBus.TimeSent", "ServiceControl.Retry.Successful"}


def recorded(number: int) -> dict[str, Any]:
    (row,) = [row for row in golden.rows("json") if row["n"] == number]
    return row


@pytest.mark.parametrize("mode", MODES)
def test_handled_message_is_copied(bench: Bench, counting: Callable[..., None], calls: Calls, mode: str) -> None:
    bench.configure(AUDIT_QUEUE="audit", TRANSACTION_MODE=mode)
    sent = {"NServiceBus.EnclosedMessageTypes": "Test.Message", "NServiceBus.MessageId": "no guid", "own": "ö/1"}
    bench.put(json.dumps(sent), b'{"a": 1.50}')
    bench.run()
    (row,) = bench.rows("audit")
    (headers,) = bench.headers("audit")
    assert len(calls.seen) == 1
    assert list(headers) == [*sent, *ADDED]
    assert {name: headers[name] for name in sent} == sent
    assert (row.body, row.expires) == (b'{"a": 1.50}', None)
    assert parse_time(headers["NServiceBus.ProcessingStarted"]) <= parse_time(headers["NServiceBus.ProcessingEnded"])
    assert headers["NServiceBus.ProcessingEndpoint"] == "Sales"
    assert len(headers["$.diagnostics.hostid"]) == 32


def test_message_without_id_is_copied_with_row_id(bench: Bench, counting: Callable[..., None]) -> None:
    bench.configure(AUDIT_QUEUE="audit")
    bench.put_message("Test.Message")
    row_id = str(bench.rows("Sales")[0].id)
    bench.run()
    assert bench.headers("audit")[0]["NServiceBus.MessageId"] == row_id


@pytest.mark.parametrize("batch_size", [1, 10])
def test_every_handled_message_is_copied_and_no_other_row(bench: Bench, batch_size: int) -> None:
    """Failed, poison and expired rows are not copied. Two copies of a message are two. A control message is copied."""
    bench.configure(AUDIT_QUEUE="audit", BATCH_SIZE=batch_size)
    bench.install_queues("Out")

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        context.send("Test.Out", {"number": message["number"]}, to="Out")
        if message["number"] == 2:
            raise ValueError("two")

    for number in (1, 1, 2, 3):
        put_numbered(bench, number)
    bench.put("no headers", b"x", row_id="00000000-0000-0000-0000-000000000009")
    bench.table("Sales").send([NewRow("9" * 32, "{}", b"expired", time_to_be_received_ms=-1_000)])
    bench.put('{"NServiceBus.ControlMessage": "True", "NServiceBus.MessageId": "control"}', b"")
    bench.run()
    copied = [headers["NServiceBus.MessageId"] for headers in bench.headers("audit")]
    assert copied == ["id-1", "id-1", "id-3", "control"]
    assert len(bench.rows("Out")) == 3
    assert len(bench.rows("error")) == 2


def put_numbered(bench: Bench, number: int) -> None:
    headers = {"NServiceBus.EnclosedMessageTypes": "Test.Message", "NServiceBus.MessageId": f"id-{number}"}
    # Each copy needs its own row id: it is a primary key on PostgreSQL.
    seen = len(bench.rows("Sales"))
    bench.put(json.dumps(headers), json.dumps({"number": number}).encode(), row_id=f"00000000-0000-0000-0000-{seen:012}")


def test_copy_commits_with_the_receive(bench: Bench, calls: Calls) -> None:
    """A failed attempt leaves no copy; the successful one leaves exactly one."""
    bench.configure(AUDIT_QUEUE="audit", IMMEDIATE_RETRIES=2)

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        context.headers["changed"] = "by the handler"
        if calls.add(message) < 3:
            raise ValueError("not yet")

    bench.put_message("Test.Message")
    bench.run()
    assert len(bench.rows("audit")) == 1
    assert "changed" not in bench.headers("audit")[0]


def test_missing_audit_queue_is_reported_at_start(bench: Bench) -> None:
    bench.configure(AUDIT_QUEUE="audit")
    table = bench.table("audit")
    with connections[bench.database.alias].cursor() as cursor:
        cursor.execute(f"DROP TABLE {table.qualified}")
    with pytest.raises(QueueNotFound, match=r"endpoint 'Sales' cannot receive: .*audit.*sqlqueue_install"):
        bench.run()


def test_copy_and_acknowledgement_match_those_of_a_real_endpoint(bench: Bench) -> None:
    if bench.database.vendor == "sqlserver":
        pytest.skip("the recorded addresses are quoted as PostgreSQL does it")
    received, audited, acknowledged = recorded(112), recorded(113), recorded(114)
    handles("Shop.Messages.Ping")(lambda message, context: None)
    bench.configure(AUDIT_QUEUE="audit")
    bench.install_queues("Particular.ServiceControl")
    bench.put(received["headers"], base64.b64decode(received["body_base64"]))
    bench.run()
    (copy,) = bench.headers("audit")
    (control,) = bench.headers("Particular.ServiceControl")
    assert_like(copy, json.loads(audited["headers"]))
    assert_like(control, json.loads(acknowledged["headers"]))
    assert [row.body for row in bench.rows("Particular.ServiceControl")] == [b""]


def assert_like(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for name in theirs:
        assert ours[name] == theirs[name] or name in OURS, name


def test_retry_is_acknowledged_without_audit_queue(bench: Bench, counting: Callable[..., None]) -> None:
    bench.install_queues("control")
    retry = {"ServiceControl.Retry.UniqueMessageId": "u", "ServiceControl.Retry.AcknowledgementQueue": "control"}
    bench.put_message("Test.Message", **retry)
    bench.run()
    assert bench.headers("control")[0]["ServiceControl.Retry.UniqueMessageId"] == "u"


def test_setting_turns_off_retry_acknowledgement(bench: Bench, counting: Callable[..., None]) -> None:
    bench.configure(ACKNOWLEDGE_RETRIES=False, AUDIT_QUEUE="audit")
    bench.install_queues("control")
    retry = {"ServiceControl.Retry.UniqueMessageId": "u", "ServiceControl.Retry.AcknowledgementQueue": "control"}
    bench.put_message("Test.Message", {}, **retry)
    bench.run()

    assert bench.headers("control") == []
    # so ServiceControl acknowledges by itself when it reads the copies
    assert "ServiceControl.Retry.AcknowledgementSent" not in bench.headers("audit")[0]


def test_disallowed_acknowledgement_queue_fails_the_message(bench: Bench, counting: Callable[..., None]) -> None:
    bench.install_queues("control")
    bench.database.configure(ALLOWED_DESTINATIONS=["Sales"])
    retry = {"ServiceControl.Retry.UniqueMessageId": "u", "ServiceControl.Retry.AcknowledgementQueue": "control"}
    bench.put_message("Test.Message", **retry)
    bench.put(
        '{"ServiceControl.Retry.UniqueMessageId": "u", "ServiceControl.Retry.AcknowledgementQueue": "x"}', b"", row_id="2" * 32
    )
    bench.run()
    failures = [headers["NServiceBus.ExceptionInfo.Message"] for headers in bench.headers("error")]
    assert len(failures) == 2
    assert all("ALLOWED_DESTINATIONS" in text for text in failures)
    assert bench.rows("control") == []


@pytest.mark.parametrize("queue", ["error", "errors"])
def test_retry_is_acknowledged_in_every_error_queue_of_the_settings(
    bench: Bench, counting: Callable[..., None], queue: str
) -> None:
    """Otherwise no retry could succeed with ALLOWED_DESTINATIONS, which names the queues of the endpoints."""
    bench.database.configure(ENDPOINTS={"Sales": {}, "Billing": {"ERROR_QUEUE": queue}}, ALLOWED_DESTINATIONS=["Sales"])
    bench.install()
    acknowledged_in = get_settings().address_book(bench.database.vendor, bench.database.catalog()).parse(queue)
    retry = {
        "ServiceControl.Retry.UniqueMessageId": "u",
        "ServiceControl.Retry.AcknowledgementQueue": str(acknowledged_in),
    }
    bench.put_message("Test.Message", **retry)
    bench.run(endpoints=["Sales"])
    (acknowledgement,) = bench.headers(queue)
    assert "ServiceControl.Retry.Successful" in acknowledgement


def test_batch_writes_its_copies_with_one_insert(postgresql_bench: Bench) -> None:
    bench = postgresql_bench
    bench.configure(AUDIT_QUEUE="audit", BATCH_SIZE=5)
    inserts: list[str] = []

    handles("Test.Message")(lambda message, context: None)
    for number in range(5):
        put_numbered(bench, number)
    original = type(bench.table("audit")).insert

    def noted(self: Any, rows: Any) -> None:
        inserts.append(self.address.table)
        original(self, rows)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(bench.table("audit")), "insert", noted)
        bench.run()
    assert inserts == ["audit"]
    assert len(bench.rows("audit")) == 5
