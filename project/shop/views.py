"""The home page: place an order, watch the latest ones; and a page that sends a request to another service."""

from __future__ import annotations

from django.contrib import messages
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from project.shop.forms import OrderForm
from project.shop.messages import FindParcel
from project.shop.models import Order
from project.shop.orders import place_order
from sqlqueue_app import request as sqlqueue_request

LATEST = 20
ANSWER_SECONDS = 5


@require_http_methods(["GET", "HEAD", "POST"])
def home(request: HttpRequest) -> HttpResponse:
    """Show the form and the latest orders; place an order and redirect to the page."""
    form = OrderForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        order = place_order(form.cleaned_data["customer"], form.cleaned_data["total"])
        messages.success(request, f"Order {order.number} is placed.")
        return redirect(reverse("home"))
    found = dict(Order.objects.order_by().values_list("status").annotate(Count("pk")))
    counts = [(status.label, found.get(status.value, 0)) for status in Order.Status]
    context = {"form": form, "orders": Order.objects.all()[:LATEST], "counts": counts}
    return render(request, "shop/home.html", context, status=400 if form.errors else 200)


@require_safe
def parcel(request: HttpRequest, number: str) -> HttpResponse:
    """Ask Shipping where the parcel of an order is, and wait for the reply; 503 if none arrives in time."""
    order = get_object_or_404(Order, number=number)
    try:
        answer = sqlqueue_request(FindParcel(order.number)).result(timeout=ANSWER_SECONDS)
    except TimeoutError:
        answer = None
    context = {"order": order, "answer": answer, "seconds": ANSWER_SECONDS}
    return render(request, "shop/parcel.html", context, status=200 if answer else 503)
