"""The endpoint Shipping: sends parcels, unless the shelf is empty."""

from __future__ import annotations

from project.shop.messages import FindParcel, OrderCompleted, OrderShipped, ParcelFound, ShipOrder
from project.shop.models import Shipment
from sqlqueue_app import handles
from sqlqueue_app.receiving.context import MessageContext

# She orders an item that is out of stock, so that the error queue is not empty.
UNLUCKY_CUSTOMER = "Mallory"


class OutOfStock(Exception):
    """The shelf is empty."""


@handles(ShipOrder)
def ship_order(message: ShipOrder, context: MessageContext) -> None:
    """Send the parcel and reply to the sender.

    An exception rolls everything back. The message is retried immediately and once more a little later; after the last attempt it
    goes to the error queue.
    """
    shipment = Shipment.objects.create(order_number=message.order_number, customer=message.customer)
    if message.customer == UNLUCKY_CUSTOMER:
        raise OutOfStock(f"nothing on the shelf for order {message.order_number}")
    context.reply(OrderShipped(message.order_number, shipment.parcel))


@handles(OrderCompleted)
def close_shipment(message: OrderCompleted, _context: MessageContext) -> None:
    """Handle the event as its second subscriber."""
    Shipment.objects.filter(order_number=message.order_number).update(closed=True)


@handles(FindParcel)
def find_parcel(message: FindParcel, context: MessageContext) -> None:
    """Reply to the web site, which waits."""
    found = Shipment.objects.filter(order_number=message.order_number).values_list("parcel", flat=True).first()
    context.reply(ParcelFound(message.order_number, found))
