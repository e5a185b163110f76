"""`request()`: the reply reaches the process that sent the request.

See docs/internals/wire.md#callbacks, docs/internals/decisions.md#callback-queues.
"""

from __future__ import annotations

import asyncio
import enum
import gc
import json
import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.http import HttpRequest, JsonResponse
from django.test import RequestFactory

from sqlqueue_app import close_callbacks, handles, message_type, request
from sqlqueue_app.messages.errors import (
    ConfigurationError,
    MessageBodyError,
    MessageTypeError,
    QueueNotFound,
    ReplyLost,
    WireFormatError,
)
from sqlqueue_app.sending.replies import pending
from tests.support.bench import FAST, Asking, Calls, Running
from tests.support.waiting import join_all, poll_until
from tests.support.worker_processes import address

SECONDS = 60.0


class Status(enum.Enum):
    ACCEPTED = 1
    ON_HOLD = 7


class Right(enum.IntFlag):
    READ = 1
    WRITE = 2


@message_type("Test.Rated")
@dataclass
class Rated:
    order_id: str
    stars: int


@pytest.fixture
def answering(asking: Asking) -> None:
    """A handler that answers `Test.Ask` with the requested kind of reply."""

    @handles("Test.Ask")
    def answer(message: Any, context: Any) -> None:
        if "code" in message:
            context.reply(Status(message["code"]) if message.get("enum") else message["code"])
        elif "stars" in message:
            context.reply(Rated(message["order_id"], message["stars"]))
        else:
            context.reply("Test.Echo", message)


def test_replies_of_every_kind_arrive(asking: Asking, answering: None) -> None:
    with Running(asking.bench, endpoints=["Sales"]):
        assert request("Test.Ask", {"code": 42}).result(SECONDS) == 42
        assert request("Test.Ask", {"code": 7, "enum": True}).result(SECONDS) == 7
        assert request("Test.Ask", {"code": 7}, returns=Status).result(SECONDS) is Status.ON_HOLD
        assert request("Test.Ask", {"order_id": "42", "stars": 5}).result(timedelta(seconds=SECONDS)) == Rated("42", 5)
        assert request("Test.Ask", {"order_id": "42", "stars": 5}, returns=dict).result(SECONDS)["stars"] == 5
        assert request("Test.Ask", {"n": 1}).result(SECONDS) == {"n": 1}
    assert len(pending) == 0


def test_process_without_endpoint_entry_may_send_requests(asking: Asking, answering: None) -> None:
    asking.bench.database.configure(ENDPOINTS={"Sales": FAST}, SEND_AS="Desk")
    asking.bench.install()
    with Running(asking.bench):
        assert request("Test.Ask", {"code": 42}).result(SECONDS) == 42
        held = request("Test.Ask", {"code": 1})
        assert held.queue.startswith("Desk.")
        assert held.result(SECONDS) == 1
    asking.bench.database.configure(SEND_AS="Web")  # a change of the settings releases the queue


def test_request_names_the_callback_queue_as_reply_address(asking: Asking) -> None:
    call = request("Test.Ask", {"n": 1}, message_id="mine")
    (headers,) = asking.bench.headers("Sales")
    assert headers["NServiceBus.ReplyToAddress"] == address(asking.bench, "Web.here")
    assert headers["NServiceBus.MessageId"] == headers["NServiceBus.CorrelationId"] == call.message_id == "mine"
    assert headers["NServiceBus.OriginatingEndpoint"] == "Web"
    assert "NServiceBus.SqlServer.CallbackQueue" not in headers


def test_header_of_transport_2_is_optional(asking: Asking) -> None:
    asking.configure(LEGACY_CALLBACK_HEADER=True)
    held = request("Test.Ask")
    (headers,) = asking.bench.headers("Sales")
    assert headers["NServiceBus.SqlServer.CallbackQueue"] == held.queue == "Web.here"


def test_each_of_many_threads_gets_its_own_reply(asking: Asking, answering: None) -> None:
    got: dict[int, Any] = {}

    def send_request(number: int) -> None:
        try:
            got[number] = request("Test.Ask", {"code": number}).result(SECONDS)
        finally:
            connections.close_all()

    with Running(asking.bench, endpoints=["Sales"]):
        threads = [threading.Thread(target=send_request, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        join_all(threads)
    assert got == {number: number for number in range(10)}
    assert len(asking.bench.rows("Web.here")) == 0


def test_request_times_out_and_a_late_reply_is_only_logged(asking: Asking, events: Any, caplog: pytest.LogCaptureFixture) -> None:
    call = request("Test.Ask")
    with pytest.raises(TimeoutError, match=r"no reply to message '.*' \(Test.Ask\) within 0.01 s"):
        call.result(0.01)
    assert len(pending) == 0
    assert call.done()
    asking.answer(call.message_id)
    poll_until(lambda: events().count("reply_unclaimed") == 1)
    assert f"no request waits for the reply to message {call.message_id!r}" in caplog.text
    with pytest.raises(TimeoutError, match="no reply to message"):
        call.result()
    assert isinstance(call.exception(), TimeoutError)
    assert asking.bench.rows("error") == []


def test_cancelled_request_stops_waiting(asking: Asking, events: Any) -> None:
    call = request("Test.Ask")
    assert call.cancel()
    assert len(pending) == 0
    with pytest.raises(CancelledError):
        call.result(SECONDS)
    asking.answer(call.message_id)
    poll_until(lambda: events().count("reply_unclaimed") == 1)


def test_unreferenced_request_is_forgotten_unless_it_has_a_callback(asking: Asking) -> None:
    dropped = request("Test.Ask").message_id
    results: list[Any] = []
    called = request("Test.Ask")
    called.add_done_callback(lambda done: results.append(done.result()))
    kept = called.message_id
    del called
    gc.collect()
    assert pending.find(dropped) is None
    asking.answer(kept, b'{"n": 1}')
    poll_until(lambda: results == [{"n": 1}])


def test_callback_that_exits_ends_neither_other_callbacks_nor_other_requests(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = request("Test.Ask"), request("Test.Ask")
    called: list[Any] = []

    def leave(_request: Any) -> None:
        raise SystemExit(3)

    first.add_done_callback(leave)
    first.add_done_callback(called.append)
    asking.answer(first.message_id, b'{"n": 1}', row=1)
    assert first.result(SECONDS) == {"n": 1}
    asking.answer(second.message_id, b'{"n": 2}', row=2)
    assert second.result(SECONDS) == {"n": 2}
    assert called == [first]
    assert "a callback of a request raised SystemExit" in caplog.text


def test_first_reply_wins(asking: Asking, events: Any) -> None:
    call = request("Test.Ask")
    asking.answer(call.message_id, b'{"n": 1}', row=1)
    asking.answer(call.message_id, b'{"n": 2}', row=2)
    assert call.result(SECONDS) == {"n": 1}
    poll_until(lambda: events().count("reply_unclaimed") == 1)


def test_reply_of_old_core_has_another_intent(asking: Asking) -> None:
    call = request("Test.Ask")
    asking.answer(call.message_id, b'{"n": 1}', {"NServiceBus.MessageIntent": "Send", "NServiceBus.Version": "4.7.12"})
    assert call.result(SECONDS) == {"n": 1}


@pytest.mark.parametrize(
    ("returns", "text", "expected"),
    [
        (None, "OnHold", "OnHold"),
        (Status, "OnHold", Status.ON_HOLD),
        (Right, "3", Right.READ | Right.WRITE),
        (Right, "Read, Write", Right.READ | Right.WRITE),
    ],
)
def test_enum_is_returned_by_its_name(asking: Asking, returns: Any, text: str, expected: object) -> None:
    call = request("Test.Ask", returns=returns)
    asking.answer(call.message_id, b"", {"NServiceBus.ReturnMessage.ErrorCode": text, "NServiceBus.ControlMessage": "True"})
    assert call.result(SECONDS) == expected


@pytest.mark.parametrize(
    ("returns", "code", "body", "error"),
    [
        (Status, "3", b"", r"return code is 3; expected one of Status: ACCEPTED = 1"),
        (int, "OnHold", b"", r"return code is 'OnHold'; expected a number"),
        (int, None, b"{}", r"the reply is Test.Echo; expected a return code"),
        (Rated, "3", b"", r"the reply is the return code '3'; expected an object"),
        (Rated, None, b'{"stars": "many"}', r"does not fit Rated"),
        (None, None, b"{", r"not JSON"),
    ],
)
def test_reply_of_another_kind_is_an_error_and_kept_in_error_queue(
    asking: Asking, returns: Any, code: str | None, body: bytes, error: str
) -> None:
    call = request("Test.Ask", returns=returns)
    sent = {} if code is None else {"NServiceBus.ReturnMessage.ErrorCode": code}
    asking.answer(call.message_id, body, {"NServiceBus.EnclosedMessageTypes": "Test.Echo", **sent})
    with pytest.raises((WireFormatError, MessageBodyError), match=error):
        call.result(SECONDS)
    (headers,) = asking.bench.headers("error")
    assert headers["NServiceBus.CorrelationId"] == call.message_id


@pytest.mark.parametrize("mode", ["receive_only", "none"])
def test_requests_work_in_other_transaction_modes(asking: Asking, answering: None, mode: str) -> None:
    asking.configure(sales={"TRANSACTION_MODE": mode}, TRANSACTION_MODE=mode)
    with Running(asking.bench, endpoints=["Sales"]):
        assert request("Test.Ask", {"code": 42}).result(SECONDS) == 42
    bad = request("Test.Ask", returns=int)
    asking.answer(bad.message_id, b"{}")
    with pytest.raises(WireFormatError):
        bad.result(SECONDS)
    assert len(asking.bench.rows("error")) == 1


@pytest.mark.parametrize("model", ["fixed", "monitor"])
def test_requests_work_in_other_concurrency_models(asking: Asking, answering: None, model: str) -> None:
    asking.configure(CONCURRENCY_MODEL=model, CALLBACK_CONCURRENCY=2)
    with Running(asking.bench, endpoints=["Sales"]):
        assert request("Test.Ask", {"code": 42}).result(SECONDS) == 42


def test_coroutine_may_await_requests(asking: Asking, answering: None) -> None:
    async def send_request() -> Any:
        return await asyncio.gather(request("Test.Ask", {"code": 1}), request("Test.Ask", {"code": 2}, returns=int))

    with Running(asking.bench, endpoints=["Sales"]):
        assert async_to_sync(send_request)() == [1, 2]


def test_coroutine_gets_errors_and_time_outs(asking: Asking) -> None:
    async def wrong() -> None:
        with pytest.raises(MessageTypeError, match="has no route"):
            await request("Nowhere.Ask")
        call = request("Test.Ask")
        with pytest.raises(RuntimeError, match="must be awaited"):
            call.result()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.01)
        assert call.cancelled()

    async_to_sync(wrong)()
    assert len(pending) == 0
    close_callbacks()


def test_replies_are_audited_with_and_without_a_waiting_request(asking: Asking, events: Any) -> None:
    asking.configure(AUDIT_QUEUE="audit")
    call = request("Test.Ask")
    asking.answer(call.message_id, row=1)
    asking.answer("nobody's", row=2)
    assert call.result(SECONDS) == {}
    poll_until(lambda: events().count("reply_unclaimed") == 1)
    audited = asking.bench.headers("audit")
    assert [headers["NServiceBus.CorrelationId"] for headers in audited] == [call.message_id, "nobody's"]
    assert all("NServiceBus.ProcessingEnded" in headers for headers in audited)


def test_view_may_send_a_request(asking: Asking, answering: None) -> None:
    @transaction.non_atomic_requests
    def view(http_request: HttpRequest, number: int) -> JsonResponse:
        try:
            return JsonResponse({"code": request("Test.Ask", {"code": number}).result(timeout=SECONDS)})
        except TimeoutError:
            return JsonResponse({}, status=503)

    with Running(asking.bench, endpoints=["Sales"]):
        assert json.loads(view(RequestFactory().get("/"), 42).content) == {"code": 42}


def test_request_is_refused_inside_a_transaction(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    alias = asking.bench.database.alias
    with transaction.atomic(using=alias), pytest.raises(ConfigurationError, match=r"inside a transaction on .*atomic\(\) block"):
        request("Test.Ask")
    monkeypatch.setitem(connections[alias].settings_dict, "ATOMIC_REQUESTS", True)
    with (
        transaction.atomic(using=alias),
        pytest.raises(ConfigurationError, match=rf"@transaction.non_atomic_requests\(using='{alias}'\)"),
    ):
        request("Test.Ask")
    assert asking.bench.rows("Sales") == []
    assert asking.instances() == []


def test_request_is_refused_inside_a_handler(asking: Asking, calls: Calls) -> None:
    @handles("Test.Ask")
    def send_request(message: Any, context: Any) -> None:
        try:
            request("Test.Ask")
        except ConfigurationError as error:
            calls.add(str(error))

    asking.bench.put_message("Test.Ask")
    asking.bench.run(endpoints=["Sales"])
    assert "request() was called in the handler of message" in calls.seen[0]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"SEND_AS": None}, r'set SQLQUEUE\["SEND_AS"\]'),
        ({"SEND_AS": "New"}, r"New.Delayed. does not exist; run sqlqueue_install"),
        ({"ENDPOINTS": {"Web": {"CALLBACKS": False}}}, r"\['Web'\]\[\"CALLBACKS\"\] is False"),
    ],
)
def test_missing_prerequisite_is_named(asking: Asking, changes: dict[str, Any], error: str) -> None:
    asking.bench.database.configure(**changes)
    with pytest.raises((ConfigurationError, QueueNotFound), match=error):
        request("Test.Ask", to="Sales")
    assert asking.bench.rows("Sales") == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"headers": {"NServiceBus.ReplyToAddress": "Sales"}}, "names 'NServiceBus.ReplyToAddress', which identifies the reply"),
        ({"headers": {"NServiceBus.MessageId": "mine"}}, "names 'NServiceBus.MessageId', which identifies the reply"),
        ({"returns": "int"}, "returns='int' is not a class"),
        # a class on some versions of Python, a function on others
        ({"returns": threading.Lock}, "returns="),
        ({"returns": object}, "returns=object: the class object has no annotations"),
        ({"message": "Unrouted.Ask"}, "has no route"),
    ],
)
def test_wrong_arguments_are_refused(asking: Asking, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        request(**{"message": "Test.Ask", **arguments})
    assert len(pending) == 0


def test_value_of_another_type_is_not_sent(asking: Asking) -> None:
    with pytest.raises(
        MessageBodyError, match=r"order_id: expected str, got int \(7\): convert the value, or change the annotation"
    ):
        request(Rated(7, 5))  # type: ignore[arg-type]
    assert asking.bench.rows("Sales") == []
    assert len(pending) == 0


def test_message_id_can_wait_only_once(asking: Asking) -> None:
    first = request("Test.Ask", message_id="same")
    with pytest.raises(ConfigurationError, match="'same' belongs to another request that waits"):
        request("Test.Ask", message_id="same")
    assert pending.find("same") is first


def test_closing_ends_waiting_requests(asking: Asking) -> None:
    call = request("Test.Ask")
    assert [row.callback_queue for row in asking.instances()] == ["Web.here"]
    close_callbacks()
    with pytest.raises(ReplyLost, match=r"no longer receives from 'Web.here'"):
        call.result(SECONDS)
    again = request("Test.Ask")
    asking.answer(again.message_id)
    assert again.result(SECONDS) == {}


def test_ordinary_message_in_callback_queue_is_handled(asking: Asking, calls: Calls) -> None:
    asking.configure(HANDLERS=[__name__])
    handles("Test.Order")(lambda_of(calls))
    held = request("Test.Ask")
    asking.bench.put(json.dumps({"NServiceBus.EnclosedMessageTypes": "Test.Order"}), b'{"n": 1}', queue="Web.here")
    poll_until(lambda: calls.seen == [{"n": 1}])
    assert not held.done()


def lambda_of(calls: Calls) -> Any:
    def count(message: Any, context: Any) -> None:
        calls.add(message)

    return count
