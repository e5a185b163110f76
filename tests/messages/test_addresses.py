"""Addresses: the tables of docs/internals/wire.md#address-examples, every recorded address, and the forms of old versions."""

from __future__ import annotations

from enum import Enum

import pytest

from sqlqueue_app.messages import QueueAddress
from sqlqueue_app.messages.errors import AddressError
from tests.support.golden import rows

# Input, table, schema, catalog, canonical, qualified; defaults dbo and nsb (docs/internals/wire.md#address-examples).
SQLSERVER_TABLE = [
    ("MyTable", "MyTable", None, None, "MyTable@[dbo]@[nsb]", "[nsb].[dbo].[MyTable]"),
    ("my]table", "my]table", None, None, "my]table@[dbo]@[nsb]", "[nsb].[dbo].[my]]table]"),
    ("[my.table]", "[my.table]", None, None, "[my.table]@[dbo]@[nsb]", "[nsb].[dbo].[[my.table]]]"),
    ("t@my.schema", "t", "my.schema", None, "t@[my.schema]@[nsb]", "[nsb].[my.schema].[t]"),
    ("t@[my.sch@ma]", "t", "my.sch@ma", None, "t@[my.sch@ma]@[nsb]", "[nsb].[my.sch@ma].[t]"),
    ("t@[my.sch[[]ma]", "t", "my.sch[[]ma", None, "t@[my.sch[[]]ma]@[nsb]", "[nsb].[my.sch[[]]ma].[t]"),
    ("t@my.schema@my.cat", "t", "my.schema", "my.cat", "t@[my.schema]@[my.cat]", "[my.cat].[my.schema].[t]"),
    ("t@[my.schema]@[my.c@t]", "t", "my.schema", "my.c@t", "t@[my.schema]@[my.c@t]", "[my.c@t].[my.schema].[t]"),
    ("t@[]@[my.catalog]", "t", None, "my.catalog", "t@[dbo]@[my.catalog]", "[my.catalog].[dbo].[t]"),
    ("t@my]schema", "t", "my]schema", None, "t@[my]]schema]@[nsb]", "[nsb].[my]]schema].[t]"),
    ("t@my]]schema", "t", "my]]schema", None, "t@[my]]]]schema]@[nsb]", "[nsb].[my]]]]schema].[t]"),
    ("t@[my]]schema]", "t", "my]schema", None, "t@[my]]schema]@[nsb]", "[nsb].[my]]schema].[t]"),
    ("t@my[schema", "t", "my[schema", None, "t@[my[schema]@[nsb]", "[nsb].[my[schema].[t]"),
    (
        "my.tb[e@[my.[sch@ma]@[my.c@ta]]og]",
        "my.tb[e",
        "my.[sch@ma",
        "my.c@ta]og",
        "my.tb[e@[my.[sch@ma]@[my.c@ta]]og]",
        "[my.c@ta]]og].[my.[sch@ma].[my.tb[e]",
    ),
    ("t@", "t", None, None, "t@[dbo]@[nsb]", "[nsb].[dbo].[t]"),
    ("t@@cat", "t", "@cat", None, "t@[@cat]@[nsb]", "[nsb].[@cat].[t]"),
    ("t@[sch@cat", "t", "[sch@cat", None, "t@[[sch@cat]@[nsb]", "[nsb].[[sch@cat].[t]"),
    ("t@[a]b@c", "t", "[a]b", "c", "t@[[a]]b]@[c]", "[c].[[a]]b].[t]"),
    ("t@[a]@[b]@[c]", "t", "a", "b", "t@[a]@[b]", "[b].[a].[t]"),
]

# Input, table, schema, canonical; default public (docs/internals/wire.md#postgresql-addresses).
POSTGRESQL_TABLE = [
    ("MyTable", "MyTable", None, '"public"."MyTable"'),
    ('"sales.orders"', "sales.orders", None, '"public"."sales.orders"'),
    ("sales.orders", "orders", "sales", '"sales"."orders"'),
    ('"public"."Sales.Orders"', "Sales.Orders", "public", '"public"."Sales.Orders"'),
    ("a.b.c", "b.c", "a", '"a"."b.c"'),
    ('"a""b"."c.d"', "c.d", 'a"b', '"a""b"."c.d"'),
]


@pytest.mark.parametrize(("text", "table", "schema", "catalog", "canonical", "qualified"), SQLSERVER_TABLE)
def test_sqlserver_table_of_the_reference(
    text: str, table: str, schema: str | None, catalog: str | None, canonical: str, qualified: str
) -> None:
    address = QueueAddress.parse(text)
    assert (address.table, address.schema, address.catalog) == (table, schema, catalog)
    assert address.full("dbo", "nsb") == canonical
    assert address.qualified("dbo", "nsb") == qualified
    assert QueueAddress.parse(canonical).full("other", "other") == canonical


@pytest.mark.parametrize(("text", "table", "schema", "canonical"), POSTGRESQL_TABLE)
def test_postgresql_table_of_the_reference(text: str, table: str, schema: str | None, canonical: str) -> None:
    address = QueueAddress.parse(text, form="postgresql")
    assert (address.table, address.schema, address.catalog) == (table, schema, None)
    assert address.full("public") == address.qualified("public") == canonical
    assert QueueAddress.parse(canonical, form="postgresql").full("other") == canonical


@pytest.mark.parametrize("form", ["sqlserver", "postgresql"])
def test_every_recorded_address(form: str) -> None:
    for row in rows(f"addresses-{form}"):
        text = row["input"]
        if "error" in row:
            with pytest.raises(AddressError, match="queue address"):
                QueueAddress.parse(text, form)
            continue
        address = QueueAddress.parse(text, form)
        assert (address.table, address.schema, address.catalog) == (row["table"], row["schema"], row.get("catalog")), text
        assert address.full("public" if form == "postgresql" else "dbo", "nsb") == row["address"], text
        assert address.qualified("public" if form == "postgresql" else "dbo", "nsb") == row["qualified"], text
        assert str(address) == row.get("printed", str(address)), text
        assert QueueAddress.parse(str(address), form) == address, text


def test_recorded_files_are_complete() -> None:
    assert len(rows("addresses-sqlserver")) == len(rows("addresses-postgresql")) == 1000


@pytest.mark.parametrize(
    ("address", "printed"),
    [
        (QueueAddress("t", "s"), "t@[s]"),
        (QueueAddress("t", None, "c"), "t@[]@[c]"),
        (QueueAddress("t", "s", "c"), "t@[s]@[c]"),
        (QueueAddress("t", "", " "), "t"),
        (QueueAddress("t", form="postgresql"), "t"),
        (QueueAddress("t.u", form="postgresql"), '"t.u"'),
        (QueueAddress('t"u', form="postgresql"), '"t""u"'),
        (QueueAddress("t", "s", form="postgresql"), '"s"."t"'),
        (QueueAddress("t", "s.x", form="postgresql"), '"s.x"."t"'),
        (QueueAddress("t", "s", form="3.0"), "t@[s]"),
        (QueueAddress("t", form="3.0"), "t"),
        (QueueAddress("t", form="legacy"), "t"),
        (QueueAddress("t.u", form="sqlite"), "t.u"),
        (QueueAddress("t@u", form="sqlite"), '"t@u"'),
        (QueueAddress('"t"', form="sqlite"), '"""t"""'),
    ],
)
def test_short_form(address: QueueAddress, printed: str) -> None:
    assert str(address) == printed


@pytest.mark.parametrize(
    ("text", "table", "schema", "full", "qualified"),
    [
        ("t@my.schema@my.schema", "t", "my.schema", "t@[my.schema]", "[my.schema].[t]"),
        ("[t]@[s]", "[t]", "s", "[t]@[s]", "[s].[[t]]]"),
        ("t@[s]@[c]", "t", "s", "t@[s]", "[s].[t]"),
        ("t@[a]]b]", "t", "a]b", "t@[a]b]", "[a]]b].[t]"),
        ("t@[a@b]", "t", "[a", "t@[[a]", "[[a].[t]"),
        ("t", "t", None, "t@[dbo]", "[dbo].[t]"),
    ],
)
def test_form_3_0(text: str, table: str, schema: str | None, full: str, qualified: str) -> None:
    address = QueueAddress.parse(text, form="3.0")
    assert (address.table, address.schema, address.catalog) == (table, schema, None)
    assert address.full("dbo") == full
    assert address.qualified("dbo") == qualified


@pytest.mark.parametrize("text", ["Sales", "Sales@MACHINE", "Sales@[dbo]@[nsb]", "Sales@"])
def test_legacy_keeps_the_queue_only(text: str) -> None:
    address = QueueAddress.parse(text, form="legacy")
    assert address == QueueAddress("Sales", form="legacy")
    assert address.full("dbo", "nsb") == str(address) == "Sales"
    assert address.qualified("dbo") == "[dbo].[Sales]"


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("Sales", "Sales"),
        ("Particular.ServiceControl", "Particular.ServiceControl"),
        ("Sales@[dbo]@[nsb]", "Sales"),
        ("Sales@MACHINE", "Sales"),
        ('"public"."Sales"', "Sales"),
        ('"Sales.Orders"', "Sales.Orders"),
        ('"a""b"."c""d"', 'c"d'),
        ('public."Sales"', 'public."Sales"'),
        ('"Sales', '"Sales'),
        ('say "hi"', 'say "hi"'),
        ('""', '""'),
    ],
)
def test_sqlite_keeps_the_table_of_any_form(text: str, table: str) -> None:
    address = QueueAddress.parse(text, form="sqlite")
    assert address == QueueAddress(table, form="sqlite")
    assert QueueAddress.parse(address.full(None), form="sqlite") == address


def test_sqlite_qualified_name_has_no_schema() -> None:
    assert QueueAddress('a"b', form="sqlite").qualified("dbo", "nsb") == '"a""b"'


@pytest.mark.parametrize("default", [None, "", " \t"])
def test_blank_default_schema_is_the_one_of_the_database(default: str | None) -> None:
    assert QueueAddress("t").full(default, "c") == "t@[dbo]@[c]"
    assert QueueAddress("t").qualified(default) == "[dbo].[t]"
    assert QueueAddress("t", form="postgresql").full(default) == '"public"."t"'


def test_unknown_catalog_is_left_out() -> None:
    assert QueueAddress("t").full("dbo") == "t@[dbo]"
    assert QueueAddress("t").qualified("dbo", " ") == "[dbo].[t]"


@pytest.mark.parametrize("form", ["sqlserver", "postgresql", "3.0", "legacy", "sqlite"])
@pytest.mark.parametrize("text", ["", " ", "\t\r\n", "\u3000", "a\0b", "\ud83d"])
def test_bad_text_is_refused_by_every_form(form: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        QueueAddress.parse(text, form)
    assert repr(text) in str(caught.value)


def test_bad_parts_are_refused() -> None:
    with pytest.raises(AddressError, match=r"schema 'a.x00b'"):
        QueueAddress("t", "a\0b")
    with pytest.raises(AddressError, match="unknown form of address 'oracle'"):
        QueueAddress.parse("t", form="oracle")
    with pytest.raises(AddressError, match="unknown form of address 'oracle'"):
        QueueAddress("t", form="oracle")
    with pytest.raises(AddressError, match="expected a queue address as text, got None"):
        QueueAddress.parse(None)  # type: ignore[arg-type]


def test_table_with_at_has_a_quoted_name_but_no_address() -> None:
    address = QueueAddress("a@b")
    assert address.qualified("dbo") == "[dbo].[a@b]"
    with pytest.raises(AddressError, match="'a@b' contains '@'"):
        address.full("dbo")


def test_member_of_an_enum_is_the_name_of_its_value() -> None:
    class Queue(str, Enum):  # noqa: UP042 - common before Python 3.11
        SALES = "Sales"

    assert QueueAddress.parse(Queue.SALES).full("dbo", "nsb") == "Sales@[dbo]@[nsb]"


def test_control_separators_are_no_white_space_for_net() -> None:
    assert QueueAddress.parse("\x1c").table == "\x1c"
    assert QueueAddress.parse("a@[\x1f]").schema == "\x1f"
