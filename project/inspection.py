"""The checks of `python -m project.demo --check`: the database, and the pages as a browser receives them."""

from __future__ import annotations

from urllib.error import HTTPError

from django.urls import reverse

from project.browser import Browser
from project.shop.models import Invoice, Order, Shipment
from sqlqueue_app.models import queue_model


def problems_found(site: str, name: str, password: str | None) -> list[str]:
    """Describe each deviation from the expected state of a shop in which one order was shipped and another failed."""
    return [*_in_the_database(), *_on_the_pages(site, name, password)]


def _in_the_database() -> list[str]:
    shipped = Order.objects.filter(status=Order.Status.SHIPPED, thanked=True).last()
    if shipped is None:
        return ["no order has the status shipped and a customer who was thanked"]
    problems = []
    for model in (Invoice, Shipment):
        found = model.objects.filter(order_number=shipped.number).count()
        if found != 1:
            problems.append(f"order {shipped.number} has {found} rows in {model._meta.db_table}, expected 1")
        elif not model.objects.filter(order_number=shipped.number, closed=True).exists():
            problems.append(f"{model._meta.db_table} does not show that order {shipped.number} is completed")
    if not queue_model("error")._default_manager.exists():
        problems.append("the error queue is empty")
    return problems


def _on_the_pages(site: str, name: str, password: str | None) -> list[str]:
    browser = Browser(site)
    problems = []
    order = Order.objects.order_by("pk").last()
    try:
        if order is None or "shipped" not in browser.get("/"):
            problems.append("the home page shows no shipped order")
        if order is not None and "Shipping replied" not in browser.get(reverse("parcel", args=[order.number])):
            problems.append("the page about a parcel shows no reply")
        browser.post("/", customer="Check", total="1.00")
        if not Order.objects.filter(customer="Check").exists():
            problems.append("the form on the home page placed no order")
        if password is None:
            return [*problems, "the administrator has another password: the admin was not checked"]
        browser.post(reverse("login"), username=name, password=password)
        page = browser.get(reverse("admin:sqlqueue_app_queue_changelist"))
        problems += [f"the admin page of the queues does not show {queue!r}" for queue in ("Sales", "error") if queue not in page]
    except HTTPError as error:
        problems.append(f"{error.url} answered {error.code}")
    return problems
