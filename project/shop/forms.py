"""The form on the home page."""

from __future__ import annotations

from decimal import Decimal

from django import forms


class OrderForm(forms.Form):
    """The customer and the total of an order."""

    customer = forms.CharField(max_length=100, widget=forms.TextInput(attrs={"autocomplete": "name"}))
    total = forms.DecimalField(min_value=Decimal("0.01"), max_digits=10, decimal_places=2, initial=Decimal("19.90"))
