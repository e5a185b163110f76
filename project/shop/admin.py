"""The shop's tables in the admin."""

from __future__ import annotations

from django.contrib import admin

from project.shop.models import Invoice, Order, Shipment


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Orders, by status."""

    list_display = ("number", "customer", "total", "status", "placed_at")
    list_filter = ("status",)
    search_fields = ("number", "customer")


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Invoices."""

    list_display = ("number", "order_number", "amount")
    search_fields = ("number", "order_number")


@admin.register(Shipment)
class ShipmentAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Parcels."""

    list_display = ("parcel", "order_number", "customer")
    search_fields = ("parcel", "order_number")
