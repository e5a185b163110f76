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


def test_arrows_go_from_sender_to_receiver() -> None:
    drawn = sequence_diagram(forest(ORDER))
    sales, web, billing, _shipping = drawn.lanes.values()
    nobody, order, placed, tick, _ = drawn.arrows
    assert order.path.startswith(f"M{web} ")
    assert order.path.endswith(f"H{sales + 5}")
    assert placed.path.startswith(f"M{sales} ")
    assert nobody.path.startswith(f"M{sales - 70} ")
    # a message to itself goes out and comes back on one side
    assert tick.path.endswith(f"h36v14H{tick.bar[0] + 10}")
    assert tick.label_x > billing
    # handling lasts until the last message that it has sent
    assert order.bar[1] + order.bar[2] > drawn.arrows[4].bar[1]


def test_a_cause_stands_left_of_its_effects_and_beside_the_first() -> None:
    drawn = flow_diagram(forest(ORDER))
    _found, order, billing, _tick, shipping = drawn.boxes
    assert order[0] + BOX_WIDTH < billing[0] == shipping[0]
    assert order[1] == billing[1] < shipping[1]
    assert sorted(is_event for _path, is_event in drawn.lines) == [False, True, True]


def test_nothing_is_drawn_of_nothing() -> None:
    assert flow_diagram(forest([])).boxes == []
    assert sequence_diagram(forest([])).arrows == []


@given(talks())
def test_no_box_lies_on_another_and_all_are_inside(told: list[ConversationMessage]) -> None:
    drawn = flow_diagram(forest(told))
    assert len(drawn.boxes) == len(told)
    by_column: dict[int, list[int]] = {}
    for x, y in drawn.boxes:
        assert 0 <= x <= drawn.width - BOX_WIDTH
        assert 0 <= y <= drawn.height - BOX_HEIGHT
        by_column.setdefault(x, []).append(y)
    for column in by_column.values():
        assert all(after - before >= BOX_HEIGHT for before, after in pairwise(sorted(column)))


@given(talks())
def test_every_message_has_a_row_and_every_endpoint_a_lane(told: list[ConversationMessage]) -> None:
    whole = forest(told)
    drawn = sequence_diagram(whole)
    assert {branch.message.receiving for branch in whole.branches} <= set(drawn.lanes)
    tops = [arrow.bar[1] for arrow in drawn.arrows]
    assert len(tops) == len(told)
    assert all(after > before for before, after in pairwise(tops))
    assert all(0 <= arrow.bar[0] <= drawn.width and arrow.bar[1] + arrow.bar[2] <= drawn.height + 1 for arrow in drawn.arrows)
