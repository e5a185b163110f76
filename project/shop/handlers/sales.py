"""The endpoint Sales: accepts orders and has them billed, then shipped."""

from __future__ import annotations

import logging
from datetime import timedelta

from project.shop.messages import (
    BillOrder,
    CountOrders,
    OrderBilled,
    OrderCompleted,
    OrderShipped,
    PlaceOrder,
    RequestReview,
    ShipOrder,
    ThankCustomer,
)
from project.shop.models import Order
from sqlqueue_app import handles
from sqlqueue_app.receiving.context import MessageContext

logger = logging.getLogger("shop.sales")

THANKS_AFTER = timedelta(seconds=3)
# Long enough that the admin always shows delayed messages.
REVIEW_AFTER = timedelta(minutes=10)


@handles(PlaceOrder)
def accept_order(message: PlaceOrder, context: MessageContext) -> None:
    """Accept the order and send it to Billing."""
    set_status(message.order_number, Order.Status.ACCEPTED)
    context.send(BillOrder(message.order_number, message.customer, message.total))


@handles(OrderBilled)
def order_was_billed(message: OrderBilled, context: MessageContext) -> None:
    """Ship the order after the reply from Billing."""
    set_status(message.order_number, Order.Status.BILLED)
    context.send(ShipOrder(message.order_number, message.customer))


@handles(OrderShipped)
def order_was_shipped(message: OrderShipped, context: MessageContext) -> None:
    """Complete the order after the reply from Shipping: publish the event, and thank the customer a little later."""
    set_status(message.order_number, Order.Status.SHIPPED)
    context.publish(OrderCompleted(message.order_number))
    context.send(ThankCustomer(message.order_number), delay=THANKS_AFTER)
    context.send(RequestReview(message.order_number), delay=REVIEW_AFTER)


@handles(ThankCustomer)
def thank_customer(message: ThankCustomer, _context: MessageContext) -> None:
    """Handle a message that was sent with a delay, once it is due."""
    Order.objects.filter(number=message.order_number).update(thanked=True)
    logger.info("the customer of order %s is thanked", message.order_number)


@handles(RequestReview)
def request_review(message: RequestReview, _context: MessageContext) -> None:
    """Ask for a review some time after the parcel was shipped."""
    logger.info("review of order %s requested from the customer", message.order_number)


@handles(CountOrders)
def count_orders(_message: CountOrders, _context: MessageContext) -> None:
    """Handle a message from a schedule, or from the button “Run now” in the admin."""
    logger.info("%s orders so far", Order.objects.count())


def set_status(order_number: str, status: Order.Status) -> None:
    """Set the status in the transaction of the message: a later failure restores the old one."""
    Order.objects.filter(number=order_number).update(status=status)
    logger.info("order %s is %s", order_number, status.value)
