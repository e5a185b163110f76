"""The layout of the two diagrams of a conversation: nothing overlaps, for any messages."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given

from sqlqueue_app.browsing.conversations import ConversationMessage, Kind, forest
from sqlqueue_app.dashboard.conversations import BOX_HEIGHT, BOX_WIDTH, flow_diagram, lanes_of, sequence_diagram
from tests.support.conversations import BEGIN, conversation_trees


def conversation(name: str, related_to: str, sending: str, receiving: str, kind: Kind = Kind.COMMAND) -> ConversationMessage:
    return ConversationMessage(
        key=f"{name} {receiving}",
        message_id=name,
        related_to=related_to,
        sending=sending,
        receiving=receiving,
        kind=kind,
        ended=BEGIN,
    )


ORDER = (
    conversation("order", "", "Web", "Sales"),
    conversation("placed", "order", "Sales", "Billing", Kind.EVENT),
    conversation("placed", "order", "Sales", "Shipping", Kind.EVENT),
    conversation("tick", "placed", "Billing", "Billing", Kind.TIMEOUT),
    conversation("found", "", "", "Sales"),
)


def test_lanes_are_in_order_of_first_appearance() -> None:
    whole = forest(ORDER)
    assert [branch.message.message_id for branch in whole.branches] == ["found", "order", "placed", "tick", "placed"]
    assert lanes_of(whole) == ("Sales", "Web", "Billing", "Shipping")


def test_arrows_lead_from_sender_to_receiver() -> None:
    drawn = sequence_diagram(forest(ORDER))
    sales, web, billing, _shipping = drawn.lanes.values()
    anonymous, order, placed, tick, _ = drawn.arrows
    assert order.path.startswith(f"M{web} ")
    assert order.path.endswith(f"H{sales + 5}")
    assert placed.path.startswith(f"M{sales} ")
    assert anonymous.path.startswith(f"M{sales - 70} ")
    # a message to itself leaves and returns on the same side
    assert tick.path.endswith(f"h36v14H{tick.bar[0] + 10}")
    assert tick.label_x > billing
    # handling lasts until its last sent message
    assert order.bar[1] + order.bar[2] > drawn.arrows[4].bar[1]


def test_cause_is_left_of_its_effects() -> None:
    drawn = flow_diagram(forest(ORDER))
    _found, order, billing, _tick, shipping = drawn.boxes
    assert order[0] + BOX_WIDTH < billing[0] == shipping[0]
    assert order[1] == billing[1] < shipping[1]
    assert sorted(is_event for _path, is_event in drawn.lines) == [False, True, True]


def test_empty_conversation_has_empty_diagrams() -> None:
    assert flow_diagram(forest([])).boxes == []
    assert sequence_diagram(forest([])).arrows == []


@given(conversation_trees())
def test_boxes_do_not_overlap_and_stay_inside(members: list[ConversationMessage]) -> None:
    drawn = flow_diagram(forest(members))
    assert len(drawn.boxes) == len(members)
    by_column: dict[int, list[int]] = {}
    for x, y in drawn.boxes:
        assert 0 <= x <= drawn.width - BOX_WIDTH
        assert 0 <= y <= drawn.height - BOX_HEIGHT
        by_column.setdefault(x, []).append(y)
    for column in by_column.values():
        assert all(after - before >= BOX_HEIGHT for before, after in pairwise(sorted(column)))


@given(conversation_trees())
def test_every_message_has_a_row_and_every_endpoint_a_lane(members: list[ConversationMessage]) -> None:
    whole = forest(members)
    drawn = sequence_diagram(whole)
    assert {branch.message.receiving for branch in whole.branches} <= set(drawn.lanes)
    tops = [arrow.bar[1] for arrow in drawn.arrows]
    assert len(tops) == len(members)
    assert all(after > before for before, after in pairwise(tops))
    assert all(0 <= arrow.bar[0] <= drawn.width and arrow.bar[1] + arrow.bar[2] <= drawn.height + 1 for arrow in drawn.arrows)
