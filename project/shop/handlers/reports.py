"""The endpoint Reports: it counts orders that are done. `make demo` pauses it, so that there is a paused endpoint to look at."""

from __future__ import annotations

import logging

from project.shop.messages import OrderCompleted
from project.shop.models import Order
from sqlqueue_app import handles
from sqlqueue_app.receiving.context import MessageContext

logger = logging.getLogger("shop.reports")


@handles(OrderCompleted)
def count_completed_order(_message: OrderCompleted, _context: MessageContext) -> None:
    """Log how many orders have been shipped."""
    logger.info("%s orders shipped so far", Order.objects.filter(status=Order.Status.SHIPPED).count())
