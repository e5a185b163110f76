"""The headers of timeouts, of messages that sagas send, and of replies to sagas are those of real NServiceBus endpoints."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.db import models

from sqlqueue_app import continues, handles, on_timeout, send, send_many, starts
from sqlqueue_app.messages import headers as names
from tests.support.bench import Bench, Calls
from tests.support.databases import ROOT
from tests.support.saga_app import NumberedSaga, OrderSaga, OrderSagas, create_table
from tests.support.worker_processes import address

GOLDEN = ROOT / "tests" / "golden"
SAGA_HEADERS = ("NServiceBus.SagaId", "NServiceBus.IsSagaTimeoutMessage", "NServiceBus.SagaType")


def golden(file: str, table: str) -> dict[str, Any]:
    """The row of the timeout that a real endpoint wrote."""
    rows = (json.loads(line) for line in Path(GOLDEN / file).read_text().splitlines())
    (found,) = (each for each in rows if each["table"] == table and "IsSagaTimeoutMessage" in each.get("headers", ""))
    return found


@pytest.mark.parametrize("file", ["json.jsonl", "newtonsoft.jsonl", "xml.jsonl"])
def test_timeout_has_the_headers_of_a_real_one(bench: Bench, orders: OrderSagas, file: str) -> None:
    real = json.loads(golden(file, "Sales.Delayed")["headers"])
    orders.place("42", expires=60)
    bench.run()
    (saga,) = orders.rows()
    (ours,) = orders.delayed()

    assert tuple(ours)[:3] == tuple(real)[:3] == SAGA_HEADERS
    not_ours = {"NServiceBus.OpenTelemetry.StartNewTrace", "NServiceBus.Metric.InstanceId"}
    assert set(ours) == set(real) - not_ours
    for headers in (real, ours):
        assert headers["NServiceBus.OriginatingSagaId"] == headers["NServiceBus.SagaId"]
        assert headers["NServiceBus.OriginatingSagaType"] == headers["NServiceBus.SagaType"]
        assert headers["NServiceBus.MessageIntent"] == "Send"
        assert headers["NServiceBus.ReplyToAddress"] == headers["NServiceBus.SqlServer.ForwardDestination"]
        assert str(uuid.UUID(headers["NServiceBus.SagaId"])) == headers["NServiceBus.SagaId"]
    assert ours["NServiceBus.SagaId"] == str(saga.pk)
    assert ours["NServiceBus.SagaType"] == "sqlqueue_app.OrderSaga"
    assert ours["NServiceBus.RelatedTo"] == saga.original_message_id
    assert saga.timeouts[0]["id"] == ours["NServiceBus.MessageId"]


def test_timeout_of_a_real_endpoint_arrives(bench: Bench, calls: Calls) -> None:
    """The row that a saga of .NET left behind reaches the saga that has taken its place."""

    class DeliverySaga(NumberedSaga):
        saga_type = "DeliverySaga"

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None: ...

        @on_timeout("Shop.Messages.DeliveryTimeout")
        def late(self, message: Any, context: Any) -> None:
            calls.add(message["Stage"])
            self.complete()

    row = golden("json.jsonl", "Sales")
    headers = json.loads(row["headers"])
    del headers[names.FORWARD_DESTINATION]
    create_table(bench.database.alias, DeliverySaga)
    bench.put_message("Test.Begin", {"number": 1})
    bench.run()
    DeliverySaga._base_manager.using(bench.database.alias).update(id=headers["NServiceBus.SagaId"])
    bench.put(json.dumps(headers), base64.b64decode(row["body_base64"]), row_id=row["id"])
    bench.run()
    assert calls.seen == ["first"]
    assert OrderSagas(bench).rows(DeliverySaga)[0].completed_at is not None


def test_type_of_the_saga_may_name_its_assembly_as_the_header_of_net_does(bench: Bench, calls: Calls) -> None:
    class DeliverySaga(NumberedSaga):
        saga_type = "Shop.DeliverySaga, Shop.Sales"

        @starts("Test.Begin, Shop.Messages")
        def begin(self, message: Any, context: Any) -> None:
            self.request_timeout(context, "Test.Late, Shop.Messages", {}, delay=0)

        @on_timeout("Test.Late")
        def late(self, message: Any, context: Any) -> None:
            calls.add(message)

    create_table(bench.database.alias, DeliverySaga)
    bench.put_message("Test.Begin", {"number": 1})
    bench.run()
    bench.run()
    assert calls.seen == [{}]


def test_everything_that_a_saga_sends_names_it(bench: Bench, orders: OrderSagas) -> None:
    out = address(bench, "out")

    class Sending(NumberedSaga):
        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            context.send("Test.A", {}, to=out)
            send("Test.B", {}, to=out)
            send_many([("Test.C", {}), ("Test.C", {})], to=out)
            context.reply("Test.D", {})

    create_table(bench.database.alias, Sending)
    handles("Test.Begin")(lambda message, context: context.send("Test.E", {}, to=out))
    asked = {"NServiceBus.OriginatingSagaId": "asking", "NServiceBus.OriginatingSagaType": "Shop.Asking, Shop"}
    bench.put_message("Test.Begin", {"number": 1}, **{"NServiceBus.ReplyToAddress": out, **asked})
    bench.run()
    (saga,) = orders.rows(Sending)
    own = {"NServiceBus.OriginatingSagaId": str(saga.pk), "NServiceBus.OriginatingSagaType": "sqlqueue_app.Sending"}
    sent = {each["NServiceBus.EnclosedMessageTypes"]: each for each in bench.headers("out")}
    assert sorted(sent) == ["Test.A", "Test.B", "Test.C", "Test.D", "Test.E"]
    for name in "ABCD":
        assert {key: sent[f"Test.{name}"].get(key) for key in own} == own
    # A plain handler is not a saga.
    assert not set(own) & set(sent["Test.E"])
    assert "NServiceBus.SagaId" not in sent["Test.A"]
    assert (sent["Test.D"]["NServiceBus.SagaId"], sent["Test.D"]["NServiceBus.SagaType"]) == ("asking", "Shop.Asking, Shop")


@pytest.mark.parametrize("reply", [("Test.Answer", {}), (5, None)])
def test_reply_of_a_plain_handler_names_the_asking_saga(bench: Bench, reply: tuple[Any, Any]) -> None:
    """As in NServiceBus, so that the reply of a Python handler finds its .NET saga."""
    handles("Test.Ask")(lambda message, context: context.reply(*reply) if reply[1] is not None else context.reply(reply[0]))
    bench.install_queues("out")
    asking = {"NServiceBus.OriginatingSagaId": "an id", "NServiceBus.OriginatingSagaType": "Shop.Asking, Shop"}
    bench.put_message("Test.Ask", {}, **{"NServiceBus.ReplyToAddress": address(bench, "out"), **asking})
    bench.run()
    (headers,) = bench.headers("out")
    assert (headers["NServiceBus.SagaId"], headers["NServiceBus.SagaType"]) == ("an id", "Shop.Asking, Shop")


def test_reply_finds_the_saga_by_its_headers(bench: Bench) -> None:
    class Asking(NumberedSaga):
        answer = models.CharField(max_length=20, default="")

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            context.send("Test.Ask", {"of": self.number}, to=address(bench, "Sales"))

        @continues("Test.Answer")
        def answered(self, message: Any, context: Any) -> None:
            self.answer = message["text"]
            self.complete()

    handles("Test.Ask")(lambda message, context: context.reply("Test.Answer", {"text": f"of {message['of']}"}))
    create_table(bench.database.alias, Asking)
    for number in (1, 2):
        bench.put_message_of(number, "Test.Begin", {"number": number})
    bench.run()
    assert {each.number: each.answer for each in OrderSagas(bench).rows(Asking)} == {1: "of 1", 2: "of 2"}
    assert bench.rows("error") == []


def test_originator_gets_the_reply(bench: Bench) -> None:
    class Slow(NumberedSaga):
        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None: ...

        @continues("Test.Go")
        def go(self, message: Any, context: Any) -> None:
            self.reply_to_originator(context, "Test.Done", {"number": self.number})

    create_table(bench.database.alias, Slow)
    bench.install_queues("out", "other")
    bench.put_message(
        "Test.Begin", {"number": 1}, **{"NServiceBus.ReplyToAddress": address(bench, "out"), "NServiceBus.MessageId": "first"}
    )
    bench.run()
    bench.put_message("Test.Go", {"number": 1}, **{"NServiceBus.ReplyToAddress": address(bench, "other")})
    bench.run()
    (headers,) = bench.headers("out")
    assert bench.rows("other") == []
    assert headers["NServiceBus.MessageIntent"] == "Reply"
    assert headers["NServiceBus.CorrelationId"] == "first"
    assert "NServiceBus.SagaId" not in headers


def replying(bench: Bench) -> type[NumberedSaga]:
    """A saga that replies to its originator on request."""

    class Replying(NumberedSaga):
        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None: ...

        @continues("Test.Go")
        def go(self, message: Any, context: Any) -> None:
            self.reply_to_originator(context, "Test.Done", {})

    create_table(bench.database.alias, Replying)
    return Replying


def test_originator_of_transport_2_gets_the_reply_in_its_callback_queue(bench: Bench) -> None:
    """The header holds the bare name of a table, which may have dots."""
    replying(bench)
    bench.install_queues("Old", "Old.HOST-1")
    old = {"NServiceBus.ReplyToAddress": "Old", "NServiceBus.SqlServer.CallbackQueue": "Old.HOST-1@HOST-1"}
    bench.put_message("Test.Begin", {"number": 1}, **old)
    bench.run()
    bench.put_message("Test.Go", {"number": 1})
    bench.run()
    assert bench.rows("error") == []
    assert len(bench.rows("Old.HOST-1")) == 1
    assert bench.rows("Old") == []


def test_machine_is_cut_off_the_originator_of_transport_1(bench: Bench) -> None:
    replying(bench)
    bench.configure(LEGACY_ADDRESSES=True)
    bench.install_queues("Old")
    bench.put_message("Test.Begin", {"number": 1}, **{"NServiceBus.ReplyToAddress": "Old@MACHINE"})
    bench.run()
    bench.put_message("Test.Go", {"number": 1})
    bench.run()
    assert bench.rows("error") == []
    assert len(bench.rows("Old")) == 1


def test_originator_as_earlier_versions_stored_it_gets_the_reply(bench: Bench) -> None:
    saga = replying(bench)
    bench.install_queues("out")
    bench.put_message("Test.Begin", {"number": 1})
    bench.run()
    saga._base_manager.using(bench.database.alias).update(originator="out")
    bench.put_message("Test.Go", {"number": 1})
    bench.run()
    assert len(bench.rows("out")) == 1


def test_saga_of_an_originator_without_a_valid_address_fails_only_when_it_replies(bench: Bench) -> None:
    saga = replying(bench)
    bad = {"NServiceBus.ReplyToAddress": "Old", "NServiceBus.SqlServer.CallbackQueue": "@HOST-1"}
    bench.put_message("Test.Begin", {"number": 1}, **bad)
    bench.run()
    (row,) = OrderSagas(bench).rows(saga)
    assert row.originator == "@HOST-1"
    assert bench.rows("error") == []

    bench.put_message("Test.Go", {"number": 1})
    bench.run()
    assert len(bench.rows("error")) == 1


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"NServiceBus.SagaType": "Shop.Other, Shop"}, True),
        ({"NServiceBus.SagaType": "sqlqueue_app.OrderSaga"}, False),
        ({"NServiceBus.SagaType": "sqlqueue_app.OrderSaga", "NServiceBus.MessageIntent": "Publish"}, True),
        ({}, True),
    ],
)
def test_id_of_another_saga_is_ignored(bench: Bench, orders: OrderSagas, headers: dict[str, str], found: bool) -> None:
    """If the id of a saga of this type does not exist, correlation is not tried and no saga starts, as in NServiceBus."""
    orders.place("42")
    bench.run()
    body = {"OrderId": "43", "to": address(bench, "out")}
    orders.put("Test.PlaceOrder", body, **{"NServiceBus.SagaId": str(uuid.uuid4()), **headers})
    bench.run()
    assert len(orders.rows()) == (2 if found else 1)
    assert bench.rows("error") == []


def test_saga_id_that_is_no_guid_fails_at_once(bench: Bench, orders: OrderSagas) -> None:
    orders.put("Test.OrderPaid", {}, **{"NServiceBus.SagaId": "none", "NServiceBus.SagaType": "sqlqueue_app.OrderSaga"})
    bench.run()
    assert "is not a valid UUID" in bench.headers("error")[0]["NServiceBus.ExceptionInfo.Message"]


@pytest.mark.parametrize("saga_type", ["Shop.Other, Shop", "sqlqueue_app.OrderSaga"])
def test_message_of_the_type_of_a_timeout(bench: Bench, orders: OrderSagas, saga_type: str) -> None:
    """Only a timeout of this class of sagas is one; a plain message of the same type is not."""
    orders.place("42")
    bench.run()
    (saga,) = orders.rows()
    marked = {"NServiceBus.SagaId": str(saga.pk), "NServiceBus.SagaType": saga_type}
    body = {"OrderId": "42", "to": address(bench, "out")}
    orders.put("Test.OrderExpired", body, **marked)
    bench.run()
    assert orders.rows()[0].completed_at is None
    orders.put("Test.OrderExpired", body, **marked, **{"NServiceBus.IsSagaTimeoutMessage": "True"})
    bench.run()
    assert (orders.rows()[0].completed_at is None) == (saga_type != "sqlqueue_app.OrderSaga")


def test_any_header_can_be_stored(bench: Bench, orders: OrderSagas) -> None:
    body = {"OrderId": "42", "to": address(bench, "out")}
    odd = {"NServiceBus.MessageId": "a\0b\ud800", "NServiceBus.ConversationId": "c" * 5000}
    orders.put("Test.PlaceOrder", body, **odd)
    bench.run()
    assert bench.rows("error") == []
    (saga,) = orders.rows()
    assert (saga.original_message_id, saga.conversation_id) == ("a\ufffdb\ufffd", "c" * 5000)
    assert saga.history[0]["id"] == "a\0b\ufffd"


def test_label_is_the_type(bench: Bench) -> None:
    assert OrderSaga.type_name() == "sqlqueue_app.OrderSaga"
