"""The endpoint Billing: it writes invoices."""

from __future__ import annotations

from project.shop.messages import BillOrder, OrderBilled, OrderCompleted
from project.shop.models import Invoice
from sqlqueue_app import handles
from sqlqueue_app.receiving.context import MessageContext

# The register jams twice with her orders, and works the third time.
SLOW_CUSTOMER = "Trudy"
JAMS = 2


class RegisterJammed(Exception):
    """It works again if one tries again."""


@handles(BillOrder)
def bill_order(message: BillOrder, context: MessageContext) -> None:
    """Write the invoice and answer whoever asked.

    An attempt that fails is undone, and follows again at once.
    """
    invoice = Invoice.objects.create(order_number=message.order_number, amount=message.total)
    if message.customer == SLOW_CUSTOMER and context.attempt <= JAMS:
        raise RegisterJammed(f"attempt {context.attempt} to bill order {message.order_number}")
    context.reply(OrderBilled(message.order_number, message.customer, invoice.number))


@handles(OrderCompleted)
def close_invoice(message: OrderCompleted, _context: MessageContext) -> None:
    """One of the two who hear that an order is done."""
    Invoice.objects.filter(order_number=message.order_number).update(closed=True)
