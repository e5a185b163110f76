"""Place an order: write a row and send a message, both or neither."""

from __future__ import annotations

from decimal import Decimal

from django.db import transaction

from project.shop.messages import PlaceOrder
from project.shop.models import Order
from sqlqueue_app import send


def place_order(customer: str, total: Decimal) -> Order:
    """Write the order and send it to Sales. If the row exists, so does the message, and vice versa."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, total=total)
        send(PlaceOrder(order.number, customer, total))
    return order
