"""The two diagrams of a conversation as numbers: nothing lies on something else, whatever the messages say."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given

from sqlqueue_app.browsing.conversations import ConversationMessage, Kind, forest
from sqlqueue_app.dashboard.conversations import BOX_HEIGHT, BOX_WIDTH, flow_diagram, lanes_of, sequence_diagram
from tests.support.conversations import BEGIN, talks


def talk(name: str, related_to: str, sending: str, receiving: str, kind: Kind = Kind.COMMAND) -> ConversationMessage:
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
    talk("order", "", "Web", "Sales"),
    talk("placed", "order", "Sales", "Billing", Kind.EVENT),
    talk("placed", "order", "Sales", "Shipping", Kind.EVENT),
    talk("tick", "placed", "Billing", "Billing", Kind.TIMEOUT),
    talk("found", "", "", "Sales"),
)


def test_lanes_are_in_the_order_of_their_first_appearance_the_sender_first() -> None:
    whole = forest(ORDER)
    assert [branch.message.message_id for branch in whole.branches] == ["found", "order", "placed", "tick", "placed"]
    assert lanes_of(whole) == ("Sales", "Web", "Billing", "Shipping")


def test_arrows_go_from_sender_to_receiver_and_events_are_dashed() -> None:
    drawn = sequence_diagram(forest(ORDER))
    sales, web, billing, _shipping = (lane.x for lane in drawn.lanes)
    nobody, order, placed, tick, _ = drawn.arrows
    assert order.path.startswith(f"M{web} ")
    assert order.path.endswith(f"H{sales + 5}")
    assert placed.path.startswith(f"M{sales} ")
    assert (placed.is_event, order.is_event) == (True, False)
    assert nobody.path.startswith(f"M{sales - 70} ")
    # a message to itself goes out and comes back on one side
    assert "H" not in tick.path
    assert tick.label_x > billing
    # handling lasts until the last message that it has sent
    assert order.bar[1] + order.bar[2] > drawn.arrows[4].bar[1]


def test_a_cause_stands_left_of_its_effects_and_beside_the_first() -> None:
    drawn = flow_diagram(forest(ORDER))
    _found, order, billing, _tick, shipping = drawn.spots
    assert order.x + BOX_WIDTH < billing.x == shipping.x
    assert order.y == billing.y < shipping.y
    assert sorted(line.is_event for line in drawn.lines) == [False, True, True]


def test_nothing_is_drawn_of_nothing() -> None:
    assert flow_diagram(forest([])).spots == ()
    assert sequence_diagram(forest([])).arrows == ()


@given(talks())
def test_no_box_lies_on_another_and_all_are_inside(told: list[ConversationMessage]) -> None:
    drawn = flow_diagram(forest(told))
    assert len(drawn.spots) == len(told)
    by_column: dict[int, list[int]] = {}
    for spot in drawn.spots:
        assert 0 <= spot.x <= drawn.width - BOX_WIDTH
        assert 0 <= spot.y <= drawn.height - BOX_HEIGHT
        by_column.setdefault(spot.x, []).append(spot.y)
    for column in by_column.values():
        assert all(after - before >= BOX_HEIGHT for before, after in pairwise(sorted(column)))


@given(talks())
def test_every_message_has_a_row_and_every_endpoint_one_lane(told: list[ConversationMessage]) -> None:
    whole = forest(told)
    drawn = sequence_diagram(whole)
    lanes = [lane.endpoint for lane in drawn.lanes]
    assert len(set(lanes)) == len(lanes)
    assert {branch.message.receiving for branch in whole.branches} <= set(lanes)
    tops = [arrow.bar[1] for arrow in drawn.arrows]
    assert len(tops) == len(told)
    assert all(after > before for before, after in pairwise(tops))
    assert all(0 <= arrow.bar[0] <= drawn.width and arrow.bar[1] + arrow.bar[2] <= drawn.height + 1 for arrow in drawn.arrows)
