"""Messages in an ordinary queue on their way to another one."""

from __future__ import annotations

import json

import pytest

from sqlqueue_app import handles
from tests.support.bench import FAST, Bench, Calls
from tests.support.delayed_tables import FORWARD, MESSAGE, office_of
from tests.support.tables import refuse_a_second_copy
from tests.support.worker_processes import address


@pytest.fixture
def office(bench: Bench) -> Bench:
    return office_of(bench)


@pytest.mark.parametrize("body", [b"{}", b""])
def test_message_for_another_queue_is_forwarded(office: Bench, calls: Calls, counting: object, body: bytes) -> None:
    office.put(json.dumps({**MESSAGE, FORWARD: address(office, "Billing"), "Own": "é"}), body)
    office.run()
    (headers,) = office.headers("Billing")
    assert headers == {**MESSAGE, "Own": "é"}
    assert (office.rows("Billing")[0].body, calls.seen, office.rows("Sales")) == (body, [], [])


@pytest.mark.parametrize("form", ["canonical", "plain", "empty", "other form"])
def test_arrived_message_is_handled_without_the_header(office: Bench, calls: Calls, form: str) -> None:
    handles("Test.Message")(lambda message, context: calls.add(FORWARD in context.headers) and None)
    canonical = address(office, "Sales")
    to = {"canonical": canonical, "plain": "Sales", "empty": "", "other form": canonical.replace('"', "").strip()}[form]
    office.put(json.dumps({**MESSAGE, FORWARD: to}), b"{}")
    office.run()
    assert calls.seen == [False]


def test_messages_are_not_forwarded_in_circles(office: Bench, calls: Calls) -> None:
    office.database.configure(ENDPOINTS={"Sales": FAST, "Billing": FAST})
    office.install()
    handles("Test.Message")(lambda message, context: calls.add(context.endpoint) and None)
    office.put(json.dumps({**MESSAGE, FORWARD: address(office, "Billing")}), b"{}")
    office.put(json.dumps({**MESSAGE, FORWARD: address(office, "Sales")}), b"{}", queue="Billing")
    office.run()
    assert sorted(calls.seen) == ["Billing", "Sales"]


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("Gone", "on its way to 'Gone'"),
        ("Sales.Retries", "satellite queue of the same endpoint"),
        ("Secret", "ALLOWED_DESTINATIONS"),
    ],
)
@pytest.mark.parametrize("mode", ["transaction_scope", "none"])
def test_undeliverable_message_is_in_error_queue_with_the_reason(office: Bench, to: str, reason: str, mode: str) -> None:
    office.configure(LEGACY_SATELLITES=True, TRANSACTION_MODE=mode)
    office.install_queues("Secret")
    office.database.configure(ALLOWED_DESTINATIONS=["Billing"])
    office.put(json.dumps({**MESSAGE, FORWARD: to}), b"{}")
    office.run()
    (failed,) = office.headers("error")
    assert reason in failed["NServiceBus.ExceptionInfo.Message"]
    assert failed["NServiceBus.FailedQ"] == to
    assert FORWARD not in failed
    assert office.rows("Sales") == office.rows("Secret") == []


@pytest.mark.parametrize("mode", ["transaction_scope", "receive_only", "none"])
def test_message_that_its_destination_refuses_is_in_error_queue(office: Bench, calls: Calls, mode: str) -> None:
    office.configure(TRANSACTION_MODE=mode)
    handles("Test.Message")(lambda message, context: calls.add(message["n"]) and None)
    refuse_a_second_copy(office.database, office.table("Billing"))
    to_billing = json.dumps({**MESSAGE, "NServiceBus.CorrelationId": "c", FORWARD: address(office, "Billing")})
    for number, headers in enumerate([to_billing, to_billing, json.dumps(MESSAGE)], 1):
        office.put(headers, b'{"n": %d}' % number, row_id=f"00000000-0000-0000-0000-{number:012}")
    office.run()
    assert ([row.body for row in office.rows("Billing")], calls.seen) == ([b'{"n": 1}'], [3])
    (failed,) = office.headers("error")
    assert failed["NServiceBus.FailedQ"] == address(office, "Billing")
    assert "on its way to" in failed["NServiceBus.ExceptionInfo.Message"]
    assert [row.body for row in office.rows("error")] == [b'{"n": 2}']
