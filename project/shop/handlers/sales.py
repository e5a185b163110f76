"""The endpoint Sales: it takes orders and sees to it that they are billed, then shipped."""

from __future__ import annotations

import logging
from datetime import timedelta

from project.shop.messages import (
    AskForReview,
    BillOrder,
    CountOrders,
    OrderBilled,
    OrderCompleted,
    OrderShipped,
    PlaceOrder,
    ShipOrder,
    ThankCustomer,
)
from project.shop.models import Order
from sqlqueue_app import handles
from sqlqueue_app.receiving.context import MessageContext

logger = logging.getLogger("shop.sales")

THANKS_AFTER = timedelta(seconds=3)
# So long that the admin always shows messages that wait for their time.
REVIEW_AFTER = timedelta(minutes=10)


@handles(PlaceOrder)
def accept_order(message: PlaceOrder, context: MessageContext) -> None:
    """Accept the order and have it billed."""
    set_status(message.order_number, Order.Status.ACCEPTED)
    context.send(BillOrder(message.order_number, message.customer, message.total))


@handles(OrderBilled)
def order_was_billed(message: OrderBilled, context: MessageContext) -> None:
    """The answer of Billing: now it may be shipped."""
    set_status(message.order_number, Order.Status.BILLED)
    context.send(ShipOrder(message.order_number, message.customer))


@handles(OrderShipped)
def order_was_shipped(message: OrderShipped, context: MessageContext) -> None:
    """The answer of Shipping: done. Whoever wants to know is told, and the customer is thanked a little later."""
    set_status(message.order_number, Order.Status.SHIPPED)
    context.publish(OrderCompleted(message.order_number))
    context.send(ThankCustomer(message.order_number), delay=THANKS_AFTER)
    context.send(AskForReview(message.order_number), delay=REVIEW_AFTER)


@handles(ThankCustomer)
def thank_customer(message: ThankCustomer, _context: MessageContext) -> None:
    """What was sent with a delay comes back when it is due."""
    Order.objects.filter(number=message.order_number).update(thanked=True)
    logger.info("the customer of order %s is thanked", message.order_number)


@handles(AskForReview)
def ask_for_review(message: AskForReview, _context: MessageContext) -> None:
    """The customer has had the parcel for a while."""
    logger.info("the customer of order %s is asked for a review", message.order_number)


@handles(CountOrders)
def count_orders(_message: CountOrders, _context: MessageContext) -> None:
    """What comes by itself, from a schedule, or when somebody presses “Run now” in the admin."""
    logger.info("%s orders so far", Order.objects.count())


def set_status(order_number: str, status: Order.Status) -> None:
    """In the transaction of the message: if anything fails behind this, the old status is back."""
    Order.objects.filter(number=order_number).update(status=status)
    logger.info("order %s is %s", order_number, status.value)
