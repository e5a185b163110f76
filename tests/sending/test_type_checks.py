"""Sent values fit the annotations of their class in every kind of call; numbers of a dictionary arrive unchanged."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from sqlqueue_app import publish, send, send_many
from sqlqueue_app.messages.errors import MessageBodyError
from sqlqueue_app.testing import FakeContext
from tests.sending.conftest import Desk
from tests.sending.types import NotRegistered, Pascal, PlaceOrder

WRONG = PlaceOrder(42)  # type: ignore[arg-type]
CALLS: dict[str, Callable[[], object]] = {
    "send": lambda: send(WRONG),
    "send a body beside a name": lambda: send("Sending.PlaceOrder", NotRegistered(42)),  # type: ignore[arg-type]
    "send as .NET names members": lambda: send(Pascal(42)),  # type: ignore[arg-type]
    "send in XML": lambda: send(WRONG, headers={"NServiceBus.ContentType": "text/xml"}),
    "publish": lambda: publish(WRONG),
    "send_many": lambda: send_many([PlaceOrder("1"), WRONG]),
    "reply": lambda: FakeContext().reply(WRONG),
    "send in a handler": lambda: FakeContext().send(WRONG, to="Sales"),
}


@pytest.mark.parametrize("call", CALLS)
def test_value_of_another_type_is_not_sent(sqlite_desk: Desk, call: str) -> None:
    expected = r"order_id: expected str, got int \(42\): convert the value, or change the annotation"

    with pytest.raises(MessageBodyError, match=expected) as caught:
        CALLS[call]()

    assert str(caught.value).startswith("messages[1]: ") == (call == "send_many")
    assert sqlite_desk.rows() == []


def test_numbers_of_a_dictionary_arrive_unchanged(sqlite_desk: Desk) -> None:
    body: dict[str, Any] = {"one": 1.0, "rate": 0.1, "price": Decimal("19.90"), "tax": Decimal("0.1"), "count": 1}

    send("Sending.Numbers", body)

    assert sqlite_desk.only_row().body == b'{"one":1.0e0,"rate":0.1e0,"price":19.90,"tax":0.1,"count":1}'
