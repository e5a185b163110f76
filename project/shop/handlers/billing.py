"""The endpoint Billing: it writes invoices."""

from __future__ import annotations

from project.shop.messages import BillOrder, OrderBilled
from project.shop.models import Invoice
from sqlqueue_app import handles
from sqlqueue_app.receiving.context import MessageContext


@handles(BillOrder)
def bill_order(message: BillOrder, context: MessageContext) -> None:
    """Write the invoice and answer whoever asked."""
    invoice = Invoice.objects.create(order_number=message.order_number, amount=message.total)
    context.reply(OrderBilled(message.order_number, message.customer, invoice.number))
