"""The endpoint Billing: writes invoices."""

from __future__ import annotations

from project.shop.messages import BillOrder, OrderBilled, OrderCompleted
from project.shop.models import Invoice
from sqlqueue_app import handles
from sqlqueue_app.receiving.context import MessageContext

# Her orders jam the register twice; the third attempt works.
SLOW_CUSTOMER = "Trudy"
JAMS = 2


class RegisterJammed(Exception):
    """A temporary fault that a retry overcomes."""


@handles(BillOrder)
def bill_order(message: BillOrder, context: MessageContext) -> None:
    """Write the invoice and reply to the sender.

    A failed attempt is rolled back and retried immediately.
    """
    invoice = Invoice.objects.create(order_number=message.order_number, amount=message.total)
    if message.customer == SLOW_CUSTOMER and context.attempt <= JAMS:
        raise RegisterJammed(f"attempt {context.attempt} to bill order {message.order_number}")
    context.reply(OrderBilled(message.order_number, message.customer, invoice.number))


@handles(OrderCompleted)
def close_invoice(message: OrderCompleted, _context: MessageContext) -> None:
    """Handle the event as one of its subscribers."""
    Invoice.objects.filter(order_number=message.order_number).update(closed=True)
