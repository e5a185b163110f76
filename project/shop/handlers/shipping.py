"""The endpoint Shipping: it sends parcels, unless there is nothing left to send."""

from __future__ import annotations

from project.shop.messages import FindParcel, OrderCompleted, OrderShipped, ParcelFound, ShipOrder
from project.shop.models import Shipment
from sqlqueue_app import handles
from sqlqueue_app.receiving.context import MessageContext

# She orders what nobody has, so that the error queue is not empty.
UNLUCKY_CUSTOMER = "Mallory"


class OutOfStock(Exception):
    """The shelf is empty."""


@handles(ShipOrder)
def ship_order(message: ShipOrder, context: MessageContext) -> None:
    """Send the parcel and answer whoever asked.

    On an exception all of it is undone and tried again, at once and once more a little later; after the last attempt the message
    goes to the error queue.
    """
    shipment = Shipment.objects.create(order_number=message.order_number, customer=message.customer)
    if message.customer == UNLUCKY_CUSTOMER:
        raise OutOfStock(f"nothing on the shelf for order {message.order_number}")
    context.reply(OrderShipped(message.order_number, shipment.parcel))


@handles(OrderCompleted)
def close_shipment(message: OrderCompleted, _context: MessageContext) -> None:
    """The other one who hears that an order is done."""
    Shipment.objects.filter(order_number=message.order_number).update(closed=True)


@handles(FindParcel)
def find_parcel(message: FindParcel, context: MessageContext) -> None:
    """Answer the web site, which waits."""
    found = Shipment.objects.filter(order_number=message.order_number).values_list("parcel", flat=True).first()
    context.reply(ParcelFound(message.order_number, found))
