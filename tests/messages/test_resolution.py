"""The order in which settings, address and defaults determine schema and catalog."""

from __future__ import annotations

import itertools

import pytest

from sqlqueue_app.messages import QueueAddress
from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.messages.errors import AddressError, ConfigurationError


def full_book(dialect: str) -> AddressBook:
    return AddressBook(
        dialect,
        default_schema="default",
        default_catalog="catalog",
        schema_for_queue={"Sales": "queue"},
        schema_for_endpoint={"Billing": "endpoint", "Sales": "never"},
        catalog_for_queue={"Sales": "queue_c"},
        catalog_for_endpoint={"Billing": "endpoint_c"},
    )


@pytest.mark.parametrize(
    ("queue", "endpoint", "address", "default"), list(itertools.product([None, "q"], [None, "e"], [None, "a"], [None, "d", " "]))
)
def test_order_of_schema_and_catalog(queue: str | None, endpoint: str | None, address: str | None, default: str | None) -> None:
    book = AddressBook(
        "sqlserver",
        default,
        default,
        {"T": queue} if queue else {},
        {"E": endpoint} if endpoint else {},
        {"T": queue} if queue else {},
        {"E": endpoint} if endpoint else {},
    )
    known = [value for value in (queue, endpoint, address, default) if value and value.strip()]
    resolved = book.resolve(QueueAddress("T", address, address), endpoint="E")
    assert resolved.schema == (known[0] if known else "dbo")
    assert resolved.catalog == (known[0] if known else None)
    assert book.resolve(resolved, endpoint="E") == resolved


def test_endpoint_setting_applies_only_to_messages_routed_to_it() -> None:
    book = full_book("sqlserver")
    assert book.of_endpoint("Billing") == QueueAddress("Billing", "endpoint", "endpoint_c")
    assert book.of_queue("Billing") == QueueAddress("Billing", "default", "catalog")
    assert book.parse("Billing@[x]") == QueueAddress("Billing", "x", "catalog")
    assert book.resolve(book.of_endpoint("Billing")) == book.of_endpoint("Billing")
    instance = QueueAddress("Billing.machine-2")
    assert book.resolve(instance, endpoint="Billing").schema == "endpoint"


def test_queue_setting_wins_over_all() -> None:
    book = full_book("sqlserver")
    for address in (book.of_endpoint("Sales"), book.of_queue("Sales"), book.parse("Sales@[x]@[y]")):
        assert address == QueueAddress("Sales", "queue", "queue_c")


def test_look_ups_are_case_sensitive() -> None:
    assert full_book("sqlserver").of_queue("sales").schema == "default"


def test_postgresql_has_no_catalog() -> None:
    book = full_book("postgresql")
    assert book.parse("x.Other") == QueueAddress("Other", "x", None, "postgresql")
    assert book.of_queue("Particular.ServiceControl").table == "Particular.ServiceControl"
    assert book.canonical(book.of_endpoint("Billing")) == '"endpoint"."Billing"'
    assert AddressBook("postgresql").of_queue("t").schema == "public"


def test_sqlite_has_no_schema_and_no_catalog() -> None:
    book = full_book("sqlite")
    assert book.parse("Sales@[dbo]@[nsb]") == QueueAddress("Sales", form="sqlite")
    assert book.of_endpoint("Billing") == QueueAddress("Billing", form="sqlite")
    assert book.canonical(QueueAddress("a.b", "s", "c")) == "a.b"


def test_names_are_never_parsed() -> None:
    assert full_book("sqlserver").of_queue("[x]").table == "[x]"
    assert full_book("postgresql").of_endpoint('a."b"').table == 'a."b"'
    assert full_book("sqlserver").of_queue("a@b").qualified(None) == "[catalog].[default].[a@b]"
    with pytest.raises(AddressError, match="'a@b' contains '@'"):
        full_book("sqlserver").canonical(QueueAddress("a@b"))


def test_canonical_address_is_resolved_first() -> None:
    assert full_book("sqlserver").canonical(QueueAddress("Other")) == "Other@[default]@[catalog]"
    assert full_book("sqlserver").canonical(QueueAddress("Sales", "x")) == "Sales@[queue]@[queue_c]"
    assert AddressBook("sqlserver").canonical(QueueAddress("Other")) == "Other@[dbo]"


def test_address_of_another_database_keeps_its_parts() -> None:
    moved = AddressBook("postgresql").resolve(QueueAddress("t.u", "s", "c"))
    assert moved == QueueAddress("t.u", "s", None, "postgresql")


def test_unknown_dialect_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown dialect 'microsoft'; expected one of sqlserver, postgresql"):
        AddressBook("microsoft")


@pytest.mark.parametrize(
    ("dialect", "text", "cut", "newer"),
    [
        ("sqlserver", "Web", "Web@[dbo]", "Web@[dbo]"),
        ("sqlserver", "Web@OLDBOX", "Web@[dbo]", "Web@[OLDBOX]"),
        ("sqlserver", "Web@[sales]@[nsb]", "Web@[dbo]", "Web@[sales]@[nsb]"),
        ("sqlserver", "Moved@OLDBOX", "Moved@[moved]", "Moved@[moved]"),
        ("postgresql", "Acme.Web@OLDBOX", '"public"."Acme.Web"', '"Acme"."Web@OLDBOX"'),
        ("postgresql", '"sales"."We@b"', '"sales"."We@b"', '"sales"."We@b"'),
        ("sqlite", "Web@OLDBOX", "Web", "Web"),
    ],
)
def test_received_address_is_cut_with_legacy_addresses(dialect: str, text: str, cut: str, newer: str) -> None:
    moved = {"Moved": "moved"}
    for cuts, expected in ((True, cut), (False, newer)):
        book = AddressBook(dialect, schema_for_queue=moved, cuts_received=cuts)
        assert book.canonical(book.received(text)) == expected
