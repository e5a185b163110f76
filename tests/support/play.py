"""The message classes of the recorded play, written as a Python team would."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from uuid import UUID


class OrderStatus(IntEnum):
    Unknown = 0
    Accepted = 1
    Rejected = 2
    OnHold = 7


@dataclass
class Money:
    amount: Decimal
    currency: str


@dataclass
class OrderLine:
    sku: str
    quantity: int
    price: Money | None = None


@dataclass
class PlaceOrder:
    order_id: UUID
    customer: str | None = None
    placed_at: datetime | None = None
    placed_at_offset: datetime | None = None
    patience: timedelta = timedelta(0)
    status: OrderStatus = OrderStatus.Unknown
    previous_status: OrderStatus | None = None
    express: bool = False
    weight: float = 0.0
    points: int = 0
    discount: int | None = None
    signature: bytes | None = None
    lines: list[OrderLine] | None = field(default_factory=list)
    labels: dict[str, str] | None = field(default_factory=dict)
    note: str | None = None


@dataclass
class OrderAccepted:
    order_id: UUID
    status: OrderStatus


@dataclass
class RejectOrder:
    order_id: UUID
    reason: str | None = None


@dataclass
class OrderShippedFast:
    order_id: UUID
    carrier: str | None
    hours: int


@dataclass
class PriceQuoted:
    sku: str
    price: Money


@dataclass
class Ping:
    pass


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)


CLASSES = {
    f"Shop.Messages.{cls.__name__}": cls for cls in (PlaceOrder, OrderAccepted, RejectOrder, OrderShippedFast, PriceQuoted, Ping)
}
