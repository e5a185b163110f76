"""The tree of a conversation is built from any headers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, strategies as st

from sqlqueue_app.browsing.conversations import (
    ConversationMessage,
    Forest,
    Kind,
    MessageOutcome,
    causes,
    cut,
    forest,
    message_from_headers,
)
from tests.support.conversations import BEGIN, conversation_trees, sent_headers


def one(
    name: str, related_to: str = "", sending: str = "Web", receiving: str = "Sales", *, copy: int = 0, after: int = 0
) -> ConversationMessage:
    key, ended = f"{name} {receiving} {copy}", BEGIN + timedelta(seconds=after)
    return ConversationMessage(key=key, message_id=name, related_to=related_to, sending=sending, receiving=receiving, ended=ended)


def shape(found: Forest) -> list[tuple[int, str]]:
    return [(branch.depth, branch.message.message_id) for branch in found.branches]


def test_message_is_the_child_of_its_cause() -> None:
    members = [
        one("bill", "order", "Sales", "Billing", after=3),
        one("order", after=1),
        one("ship", "order", "Sales", "Shipping", after=2),
        one("paid", "bill", "Billing", "Sales", after=4),
    ]
    assert shape(forest(members)) == [(0, "order"), (1, "ship"), (1, "bill"), (2, "paid")]


def test_cause_was_handled_by_the_sending_endpoint() -> None:
    event = [replace(one("placed", "", "Sales", at), kind=Kind.EVENT) for at in ("Billing", "Shipping")]
    members = [*event, one("ship", "placed", "Shipping", "Depot")]
    assert causes(members)[2] == [1]
    # Without a match, no copy of an event counts as the cause, because each could be; the copy of a command does.
    assert causes([*event, one("ship", "placed", "Elsewhere", "Depot")])[2] == []
    assert causes([one("order"), one("ship", "order", "Elsewhere", "Depot")])[1] == [0]


def test_message_handled_twice_is_a_cause_twice() -> None:
    members = [one("order", copy=1, after=1), one("order", copy=2, after=2), one("ship", "order", "Sales", "Depot", after=3)]
    found = forest(members)
    assert found.links == ((0, 1), (2, 1))
    assert shape(found) == [(0, "order"), (1, "ship"), (0, "order")]


def test_cycles_and_self_references_are_resolved() -> None:
    alone = [one("a", "a")]
    circle = [one("a", "c", after=1), one("b", "a", after=2), one("c", "b", after=3), one("d", "c", after=4)]
    assert shape(forest(alone)) == [(0, "a")]
    assert shape(forest(circle)) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]


def test_long_chains_and_large_fan_outs_are_resolved() -> None:
    chain = [one(str(number), str(number - 1), after=number) for number in range(5_000)]
    star = [one("root"), *(one(str(number), "root", after=number) for number in range(5_000))]
    copies = [one("x", copy=number) for number in range(2_000)] + [one("y", "x", copy=number) for number in range(2_000)]
    assert [each.depth for each in forest(chain).branches] == list(range(5_000))
    assert {each.depth for each in forest(star).branches[1:]} == {1}
    assert len(forest(copies).links) == 20_000
    assert len(cut(forest(chain), 200, first=range(4_000, 5_000)).branches) == 200


def test_cut_keeps_the_requested_messages() -> None:
    members = [one("root"), *(one(str(number), "root", after=number) for number in range(50)), one("deep", "49", after=99)]
    whole = forest(members)
    place = next(number for number, each in enumerate(whole.branches) if each.message.message_id == "deep")
    assert shape(cut(whole, 5, first=[place])) == [(0, "root"), (1, "0"), (1, "1"), (1, "49"), (2, "deep")]


@given(conversation_trees())
def test_every_message_has_one_place_after_its_parent(members: list[ConversationMessage]) -> None:
    found = forest(members)
    assert sorted(branch.message.key for branch in found.branches) == sorted(message.key for message in members)
    for number, branch in enumerate(found.branches):
        if branch.parent is None:
            assert branch.depth == 0
        else:
            assert branch.parent < number
            assert branch.depth == found.branches[branch.parent].depth + 1
            assert (branch.parent, number) in found.links
            assert found.branches[branch.parent].message.message_id == branch.message.related_to != branch.message.message_id
    assert forest(list(reversed(members))).branches == found.branches


@given(conversation_trees(), st.integers(1, 12), st.sets(st.integers(0, 24)))
def test_cut_keeps_the_path_to_the_root(members: list[ConversationMessage], most: int, wanted: set[int]) -> None:
    whole = forest(members)
    first = sorted(each for each in wanted if each < len(members))
    found = cut(whole, most, first=first)
    assert len(found.branches) == min(most, len(members))
    keys = [branch.message.key for branch in whole.branches]
    places = [keys.index(branch.message.key) for branch in found.branches]
    assert places == sorted(places)
    for branch, place in zip(found.branches, places, strict=True):
        parent = whole.branches[place].parent
        assert (branch.parent is None) == (parent is None)
        assert branch.parent is None or places[branch.parent] == parent
    assert {(places[cause], places[effect]) for cause, effect in found.links} <= set(whole.links)


def test_message_is_read_from_its_headers() -> None:
    headers = sent_headers("order-1", "web-1", NServiceBus_ProcessingStarted="odd")
    found = message_from_headers(headers, "k", native_id="n", receiving="Sales", outcome=MessageOutcome.WAITING)
    assert (found.message_id, found.related_to, found.sending, found.kind) == ("order-1", "web-1", "Web", Kind.COMMAND)
    assert (found.short_type, found.sent, found.processing) == ("Order1", BEGIN, None)
    event = message_from_headers(
        {"NServiceBus.MessageIntent": "2"}, "k", native_id="n", receiving="", outcome=MessageOutcome.HANDLED
    )
    assert (event.message_id, event.kind, event.message_type) == ("n", Kind.EVENT, "")
    timeout = {"NServiceBus.MessageIntent": "Send", "NServiceBus.IsSagaTimeoutMessage": "True"}
    assert message_from_headers(timeout, "k", native_id="n", receiving="", outcome=MessageOutcome.HANDLED).kind is Kind.TIMEOUT
    reply = {"NServiceBus.MessageIntent": "Reply"}
    assert message_from_headers(reply, "k", native_id="n", receiving="", outcome=MessageOutcome.HANDLED).kind is Kind.REPLY
    assert replace(found, message_type="A.B.Page[[C.D, E]]").short_type == "Page[[C.D, E]]"
