"""The messages of the shop: the contract between its services, and all that they share.

An order goes web → Sales → Billing → Sales → Shipping → Sales. The name of a command begins with the endpoint that handles it, so
three routes are enough; replies go back to the sender. An event has no route: it goes to its subscribers.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from sqlqueue_app import message_type


@message_type("Sales.PlaceOrder")
@dataclass(frozen=True)
class PlaceOrder:
    """A command: a customer has ordered."""

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
    """The reply to BillOrder."""

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
    """The reply to ShipOrder."""

    order_number: str
    parcel: str


@message_type("Shop.OrderCompleted")
@dataclass(frozen=True)
class OrderCompleted:
    """An event: the order is paid and shipped. Billing, Shipping and Reports are subscribed, because they handle it."""

    order_number: str


@message_type("Sales.ThankCustomer")
@dataclass(frozen=True)
class ThankCustomer:
    """Sent by Sales to itself, with a short delay."""

    order_number: str


@message_type("Sales.RequestReview")
@dataclass(frozen=True)
class RequestReview:
    """Sent by Sales to itself, due once the parcel has arrived."""

    order_number: str


@message_type("Shipping.FindParcel")
@dataclass(frozen=True)
class FindParcel:
    """A request from the web site, which waits for the reply."""

    order_number: str


@message_type("Shipping.ParcelFound")
@dataclass(frozen=True)
class ParcelFound:
    """The reply to FindParcel; without a parcel if there is none yet."""

    order_number: str
    parcel: str | None
