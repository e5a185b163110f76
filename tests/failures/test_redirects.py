"""Redirects of retries: one for each queue, to an existing queue, never chained."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.failures.retrying import RedirectRefused, change_redirect, create_redirect, redirect_id, remove_redirect
from sqlqueue_app.models import Redirect
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.installation import install_tables
from tests.support.databases import QueueDatabase
from tests.support.failing import install_sales

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture
def shop(queue_database: QueueDatabase) -> QueueDatabase:
    install_sales(queue_database)
    book = address_book_of(get_settings())
    install_tables(queue_database.alias, [PlannedTable(TableKind.QUEUE, book.of_queue(name)) for name in ("A", "B")])
    return queue_database


def make(source: str, target: str) -> Redirect:
    return create_redirect(get_settings(), source, target, by="anna", now=lambda: NOW)


def canonical(name: str) -> str:
    book = address_book_of(get_settings())
    return book.canonical(book.of_queue(name))


def test_redirect_stores_canonical_addresses(shop: QueueDatabase) -> None:
    made = make(" Gone ", "A")

    assert Redirect.objects.get() == made
    assert (made.from_address, made.to_address, made.created_by, made.created_at) == (
        canonical("Gone"),
        canonical("A"),
        "anna",
        NOW,
    )
    assert made.pk == redirect_id(canonical("Gone"))


def test_redirect_id_equals_that_of_servicecontrol() -> None:
    assert redirect_id("Message TypeShop.PlaceOrder") == uuid.UUID("876ec959-1e70-3f04-943c-0af496b82403")


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("Gone", "B", "already"),
        ("Gone2", "Gone", "redirected themselves"),
        ("A", "B", "change those redirects first"),
        ("Gone2", "Gone2", "to itself"),
        ("Gone2", "Missing", "does not exist"),
        ("", "A", "address"),
        ("Gone2", " ", "address"),
        ("x" * 401, "A", "at most 400 characters"),
    ],
)
def test_invalid_redirect_is_refused(shop: QueueDatabase, source: str, target: str, reason: str) -> None:
    make("Gone", "A")

    with pytest.raises(RedirectRefused, match=reason):
        make(source, target)
    assert Redirect.objects.count() == 1


def test_redirect_can_be_changed_and_removed(shop: QueueDatabase) -> None:
    made = make("Gone", "A")

    change_redirect(get_settings(), made, "B")
    assert Redirect.objects.get().to_address == canonical("B")
    for target in ("Gone", "Missing"):
        with pytest.raises(RedirectRefused):
            change_redirect(get_settings(), made, target)
    assert remove_redirect(made)
    assert not remove_redirect(made)
    with pytest.raises(RedirectRefused, match="since been removed"):
        change_redirect(get_settings(), made, "B")
