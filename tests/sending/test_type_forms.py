"""The common parts of messages of one type are cached, but never used when they are outdated."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from sqlqueue_app import message_type, send, send_many
from sqlqueue_app.messages.errors import MessageTypeError
from sqlqueue_app.messages.types import MessageType, registry
from sqlqueue_app.sending.sender import sender
from tests.sending.conftest import Desk

ENCLOSED = "NServiceBus.EnclosedMessageTypes"


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the types that the test registers."""
    for name in ("_by_name", "_by_class"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


@pytest.fixture
def desk(sqlite_desk: Desk) -> Desk:
    return sqlite_desk


def enclosed(desk: Desk) -> list[str]:
    return [headers[ENCLOSED] for headers in desk.headers()]


def test_class_registered_later_is_found_by_its_type_name(desk: Desk) -> None:
    send("Sending.Late", {"order_id": "1"})

    @message_type("Sending.Late", assembly="Late.Messages", names="pascal")
    @dataclass
    class Late:
        order_id: str

    send("Sending.Late", {"order_id": "2"})
    send_many("Sending.Late", [{"order_id": "3"}])
    send(Late("4"))

    assert enclosed(desk) == ["Sending.Late", *["Sending.Late, Late.Messages"] * 3]
    # the keys of a dictionary are data, the members of a class are names
    assert desk.bodies() == [{"order_id": "1"}, {"order_id": "2"}, {"order_id": "3"}, {"OrderId": "4"}]


def test_base_registered_later_is_a_parent_of_the_next_message(desk: Desk) -> None:
    class Base:
        pass

    @message_type("Sending.Child")
    @dataclass
    class Child(Base):
        order_id: str

    send(Child("1"))
    registry.add(MessageType("Sending.Base", Base))
    send(Child("2"))

    assert enclosed(desk) == ["Sending.Child", "Sending.Child;Sending.Base"]


def test_class_registered_again_replaces_the_former_one(desk: Desk) -> None:
    def register(**options: str) -> type[Any]:
        @message_type("Sending.Reloaded", **options)
        @dataclass
        class Reloaded:
            order_id: str

        return Reloaded

    former = register()
    send(former("1"))
    again = register(assembly="Reloaded.Messages", names="pascal")
    send(again("2"))

    assert enclosed(desk) == ["Sending.Reloaded", "Sending.Reloaded, Reloaded.Messages"]
    assert desk.bodies() == [{"order_id": "1"}, {"OrderId": "2"}]


def test_refused_class_can_be_registered_and_sent(desk: Desk) -> None:
    @dataclass
    class Stranger:
        order_id: str

    with pytest.raises(MessageTypeError, match="Stranger is not a message type"):
        send(Stranger("1"))
    message_type("Sending.Stranger")(Stranger)
    send(Stranger("2"))

    assert desk.bodies() == [{"order_id": "2"}]


def test_changed_settings_apply_to_the_next_message(desk: Desk) -> None:
    @message_type("Sending.Spelled")
    @dataclass
    class Spelled:
        order_id: str

    send(Spelled("1"))
    desk.configure(BODY_NAMES="pascal", SEND_AS="Web")
    send(Spelled("2"))
    desk.configure(ROUTES={"Sending.*": "Billing"})
    send(Spelled("3"))

    assert desk.bodies() == [{"order_id": "1"}, {"OrderId": "2"}]
    assert [headers.get("NServiceBus.OriginatingEndpoint") for headers in desk.headers()] == [None, "Web"]
    assert desk.bodies("Billing") == [{"OrderId": "3"}]


def test_headers_of_one_message_do_not_leak_into_the_next(desk: Desk) -> None:
    custom = {"NServiceBus.ContentType": "text/xml", ENCLOSED: "Sending.Other", "Tenant": "acme"}
    send("Sending.Plain", {"a": 1})
    send("Sending.Plain", {"a": 2}, headers=custom)
    send("Sending.Plain", {"a": 3}, headers={"Tenant": "acme"})
    send("Sending.Plain", {"a": 5})

    assert [row.body and row.body[:1] for row in desk.rows()] == [b"{", b"<", b"{", b"{"]
    assert [headers.get("Tenant") for headers in desk.headers()] == [None, "acme", "acme", None]
    assert enclosed(desk) == ["Sending.Plain", "Sending.Other", "Sending.Plain", "Sending.Plain"]


def test_composing_threads_see_each_new_registration(desk: Desk) -> None:
    @dataclass
    class Busy:
        order_id: str

    composer, stop = sender().composer, threading.Event()

    def compose() -> int:
        count = 0
        while not stop.is_set():
            composer.compose("Sending.Busy")
            count += 1
        return count

    with ThreadPoolExecutor() as pool:
        busy = [pool.submit(compose) for _ in range(2)]
        try:
            for number in range(50):
                registry.add(MessageType("Sending.Busy", Busy, f"Assembly{number}"))
                send("Sending.Busy")
        finally:
            stop.set()
        assert all(each.result() for each in busy)

    assert enclosed(desk) == [f"Sending.Busy, Assembly{number}" for number in range(50)]
