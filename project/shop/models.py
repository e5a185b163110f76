"""The tables of the three services. Billing and Shipping identify an order only by its number."""

from __future__ import annotations

import secrets
from typing import ClassVar

from django.db import models


def new_number() -> str:
    """A number for an order, an invoice or a parcel: ten digits from which the next one cannot be guessed."""
    return f"{secrets.randbelow(10**10):010}"


class Order(models.Model):
    """An order, as Sales sees it."""

    class Status(models.TextChoices):
        """The progress of an order."""

        PLACED = "placed", "placed"
        ACCEPTED = "accepted", "accepted"
        BILLED = "billed", "billed"
        SHIPPED = "shipped", "shipped"

    number = models.CharField(max_length=20, unique=True, default=new_number)
    customer = models.CharField(max_length=100)
    total = models.DecimalField(max_digits=10, decimal_places=2)
    status = models.CharField(max_length=10, choices=Status, default=Status.PLACED, db_index=True)
    placed_at = models.DateTimeField(auto_now_add=True)
    thanked = models.BooleanField(default=False)

    class Meta:
        ordering: ClassVar = ["-pk"]

    def __str__(self) -> str:
        return f"{self.number} of {self.customer}"


class Invoice(models.Model):
    """An invoice written by Billing."""

    number = models.CharField(max_length=20, unique=True, default=new_number)
    order_number = models.CharField(max_length=20, unique=True)
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    closed = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"invoice {self.number} for order {self.order_number}"


class Shipment(models.Model):
    """A parcel sent by Shipping."""

    parcel = models.CharField(max_length=20, unique=True, default=new_number)
    order_number = models.CharField(max_length=20, unique=True)
    customer = models.CharField(max_length=100)
    closed = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"parcel {self.parcel} for order {self.order_number}"
