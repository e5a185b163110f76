"""The message types of these tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple, TypedDict

from sqlqueue_app.messages.types import message_type


@message_type("Sending.Command")
@dataclass
class Command:
    """The base of all commands."""

    order_id: str


@message_type("Sending.PlaceOrder", assembly="Shop.Messages")
@dataclass
class PlaceOrder(Command):
    total: Decimal = Decimal("9.90")
    placed_at: datetime | None = None
    lines: list[str] = field(default_factory=list)


@message_type("Sending.Pascal", names="pascal")
@dataclass
class Pascal:
    order_id: str


@message_type("Sending.AsIs", names="as_is")
@dataclass
class AsIs:
    order_id: str


@message_type("Sending.Pair")
class Pair(NamedTuple):
    """A message that is a tuple of two, the first a text."""

    name: str
    value: int


class Line(TypedDict):
    """A part of an order in a dictionary."""

    unit_price: Decimal


@message_type("Sending.Keys", names="pascal_case")
class Keys(TypedDict, total=False):
    """An order in a dictionary."""

    order_id: str
    lines: list[Line] | None
    by_name: dict[str, Line]
    any_data: object


@dataclass
class NotRegistered:
    order_id: str
