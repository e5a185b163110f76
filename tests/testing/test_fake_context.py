"""FakeContext offers handlers the whole API of a context and writes nothing. No test here uses a database."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta

import pytest
from pytest_django import Settings

from sqlqueue_app.messages.errors import MessageTypeError
from sqlqueue_app.receiving.context import MessageContext
from sqlqueue_app.testing import FakeContext

# For each new method of the context, add a call here; the test below requires it.
CALLS: dict[str, Callable[[FakeContext], object]] = {
    "send": lambda context: context.send("Test.Ship", {"a": 1}),
    "send_local": lambda context: context.send_local("Test.Ship", {"a": 1}),
    "publish": lambda context: context.publish("Test.Happened", {"a": 1}),
    "reply": lambda context: context.reply("Test.Answer", {"a": 1}),
    "forward": lambda context: context.forward("Elsewhere"),
}
ITS_OWN = {"sent", "replies", "published", "forwarded_to"}


@pytest.fixture(autouse=True)
def project(settings: Settings) -> None:
    settings.SQLQUEUE = {"DATABASE": "postgresql", "ENDPOINTS": {"Sales": {}}, "ROUTES": {"Test.*": "Shipping"}}


def public(face: type) -> set[str]:
    return {name for name in dir(face) if not name.startswith("_")}


def test_fake_context_has_the_real_interface_without_a_database() -> None:
    assert public(FakeContext) - ITS_OWN == public(MessageContext)
    callable_names = {name for name in public(MessageContext) if inspect.isfunction(inspect.getattr_static(MessageContext, name))}
    assert callable_names == CALLS.keys()
    for name in callable_names - {"__init__"}:
        assert inspect.signature(getattr(FakeContext, name)) == inspect.signature(getattr(MessageContext, name))
    for name, call in CALLS.items():
        context = FakeContext()
        call(context)
        assert len(context.sent) == 1, name
    for name in public(MessageContext) - callable_names:
        getattr(FakeContext(), name)


def test_fake_context_returns_the_given_values() -> None:
    connection = object()
    context = FakeContext(endpoint="Sales", headers={"Tenant": "a"}, message_id="m", attempt=3, connection=connection)
    assert (context.endpoint, context.headers["Tenant"], context.message_id, context.attempt) == ("Sales", "a", "m", 3)
    assert context.connection is connection


def test_fake_context_records_sends() -> None:
    context = FakeContext(message_id="m")
    context.send("Test.Ship", {"a": 1}, delay=timedelta(minutes=5))
    context.send("Test.Ship", {"a": 2}, to="Billing", immediate=True)
    context.reply("Test.Answer", {"ok": True})
    context.forward("Elsewhere")

    context.publish("Test.Happened", {"a": 3})

    at_once, later, answer, forwarded, event = context.sent
    assert (event.body, context.published) == ({"a": 3}, [event])
    assert (at_once.body, at_once.queue, at_once.delay) == ({"a": 2}, "Billing", timedelta())
    assert (later.body, later.queue, later.delay) == ({"a": 1}, "Shipping", timedelta(minutes=5))
    assert [(each.body, each.queue) for each in context.replies] == [(answer.body, "Requester")]
    assert (context.forwarded_to, forwarded.message_id) == (["Elsewhere"], "m")
    assert later.headers["NServiceBus.RelatedTo"] == "m"


def test_fake_context_refuses_what_the_real_one_refuses() -> None:
    with pytest.raises(MessageTypeError, match="no route"):
        FakeContext().send("Nowhere.Ship", {})
    with pytest.raises(MessageTypeError, match="reply-to"):
        FakeContext(reply_to=None).reply("Test.Answer", {})
