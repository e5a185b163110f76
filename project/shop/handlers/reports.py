"""The endpoint Reports: counts completed orders. `make demo` pauses it, so that the admin shows a paused endpoint."""

from __future__ import annotations

import logging

from project.shop.messages import OrderCompleted
from project.shop.models import Order
from sqlqueue_app import handles
from sqlqueue_app.receiving.context import MessageContext

logger = logging.getLogger("shop.reports")


@handles(OrderCompleted)
def count_completed_order(_message: OrderCompleted, _context: MessageContext) -> None:
    """Log the number of shipped orders."""
    logger.info("%s orders shipped so far", Order.objects.filter(status=Order.Status.SHIPPED).count())
