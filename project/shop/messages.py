"""The messages of the shop: the contract between its services, and the only thing that they share.

One order goes web → Sales → Billing → Sales → Shipping → Sales. The name of a command begins with the endpoint that handles it, so
that three routes are enough; the answers go back to whoever asked. An event has no route: it goes to whoever has subscribed.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from sqlqueue_app import message_type


@message_type("Sales.PlaceOrder")
@dataclass(frozen=True)
class PlaceOrder:
    """A customer has ordered."""

    order_number: str
    customer: str
    total: Decimal


@message_type("Sales.CountOrders")
@dataclass(frozen=True)
class CountOrders:
    """Sent every ten minutes by the schedule of the settings."""


@message_type("Billing.BillOrder")
@dataclass(frozen=True)
class BillOrder:
    """Write an invoice."""

    order_number: str
    customer: str
    total: Decimal


@message_type("Billing.OrderBilled")
@dataclass(frozen=True)
class OrderBilled:
    """The answer to BillOrder."""

    order_number: str
    customer: str
    invoice_number: str


@message_type("Shipping.ShipOrder")
@dataclass(frozen=True)
class ShipOrder:
    """Pack and send."""

    order_number: str
    customer: str


@message_type("Shipping.OrderShipped")
@dataclass(frozen=True)
class OrderShipped:
    """The answer to ShipOrder."""

    order_number: str
    parcel: str


@message_type("Shop.OrderCompleted")
@dataclass(frozen=True)
class OrderCompleted:
    """An event: the order is paid and shipped. Billing, Shipping and Reports have subscribed to it, for they handle it."""

    order_number: str


@message_type("Sales.ThankCustomer")
@dataclass(frozen=True)
class ThankCustomer:
    """What Sales sends to itself, for a little later."""

    order_number: str


@message_type("Sales.AskForReview")
@dataclass(frozen=True)
class AskForReview:
    """What Sales sends to itself, for when the parcel has arrived."""

    order_number: str


@message_type("Shipping.FindParcel")
@dataclass(frozen=True)
class FindParcel:
    """A question of the web site, which waits for the answer."""

    order_number: str


@message_type("Shipping.ParcelFound")
@dataclass(frozen=True)
class ParcelFound:
    """The answer to FindParcel; without a parcel if there is none yet."""

    order_number: str
    parcel: str | None
