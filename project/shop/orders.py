"""Placing an order: a row and a message, both or neither."""

from __future__ import annotations

from decimal import Decimal

from django.db import transaction

from project.shop.messages import PlaceOrder
from project.shop.models import Order
from sqlqueue_app import send


def place_order(customer: str, total: Decimal) -> Order:
    """Write the order and tell Sales. Whoever sees the row can rely on the message, and the other way round."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, total=total)
        send(PlaceOrder(order.number, customer, total))
    return order
