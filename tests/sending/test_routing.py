"""The destination of a message: by its type, or by an address; on PostgreSQL with real schemas."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app import send, send_many
from sqlqueue_app.messages.errors import MessageTypeError, QueueNotFound
from sqlqueue_app.sending.composer import Routes
from tests.sending.conftest import Desk
from tests.sending.types import PlaceOrder

NAMES = st.lists(st.sampled_from(["Sales", "Billing", "Sub"]), min_size=1, max_size=4).map(".".join)


def test_exact_name_wins_over_any_pattern() -> None:
    routes = Routes({"Sales.*": "Patterns", "Sales.PlaceOrder": "Exact", "*": "Rest"})

    assert routes.endpoint_for("Sales.PlaceOrder") == "Exact"
    assert routes.endpoint_for("Sales.CancelOrder") == "Patterns"


def test_longest_pattern_wins_in_any_order() -> None:
    wide, narrow, all_of_them = ("Sales.*", "Wide"), ("Sales.Internal.*", "Narrow"), ("*", "Rest")

    for routes in (Routes(dict([wide, narrow, all_of_them])), Routes(dict([all_of_them, narrow, wide]))):
        assert routes.endpoint_for("Sales.Internal.Check") == "Narrow"
        assert routes.endpoint_for("Sales.Check") == "Wide"
        assert routes.endpoint_for("Check") == "Rest"


def test_names_are_case_sensitive_and_namespaces_are_whole_words() -> None:
    routes = Routes({"Sales.*": "Sales"})

    for name in ("sales.PlaceOrder", "SalesTax.Compute", "Sales"):
        with pytest.raises(MessageTypeError):
            routes.endpoint_for(name)


@given(name=NAMES, patterns=st.dictionaries(NAMES, st.just("x")))
def test_type_goes_to_the_most_specific_pattern(name: str, patterns: dict[str, str]) -> None:
    routes = Routes({f"{start}.*": start for start in patterns})
    fitting = [start for start in patterns if name.startswith(f"{start}.")]

    if fitting:
        assert routes.endpoint_for(name) == max(fitting, key=len)
    else:
        with pytest.raises(MessageTypeError, match="has no route"):
            routes.endpoint_for(name)


def test_message_is_sent_to_the_queue_of_its_route(desk: Desk) -> None:
    desk.configure(ROUTES={"Sending.PlaceOrder": "Sales", "Sending.*": "Billing"})

    send(PlaceOrder("42"))
    send("Sending.Bill", {})

    assert [len(desk.rows(name)) for name in ("Sales", "Billing")] == [1, 1]


def test_assembly_after_a_name_is_no_part_of_it(desk: Desk) -> None:
    desk.configure(ROUTES={"Sending.PlaceOrder": "Sales", "Sending.*": "Billing", "Sending.Other": "Sales"})

    send("Sending.PlaceOrder, Shop.Other", {})
    send_many("Sending.Other, Shop.Other", [{}])

    types = [headers["NServiceBus.EnclosedMessageTypes"] for headers in desk.headers()]
    assert types == ["Sending.PlaceOrder, Shop.Other;Sending.Command", "Sending.Other, Shop.Other"]
    assert desk.rows("Billing") == []


def test_missing_route_is_reported_with_type_and_remedy(desk: Desk) -> None:
    desk.configure(ROUTES={})

    with pytest.raises(MessageTypeError) as raised:
        send(PlaceOrder("42"))

    assert str(raised.value) == (
        "message type 'Sending.PlaceOrder' has no route: "
        'add \'Sending.PlaceOrder\': "<endpoint>" to SQLQUEUE["ROUTES"], or name the queue with to='
    )
    assert desk.rows() == []


def test_address_needs_no_route(desk: Desk) -> None:
    desk.configure(ROUTES={})

    send(PlaceOrder("42"), to="Billing")
    send_many("Sending.Anything", [{}], to="Billing")

    assert len(desk.rows("Billing")) == 2


def test_address_wins_over_the_route(desk: Desk) -> None:
    send(PlaceOrder("42"), to="Billing")

    assert [len(desk.rows(name)) for name in ("Sales", "Billing")] == [0, 1]


def test_dot_in_an_endpoint_name_is_part_of_the_name(desk: Desk) -> None:
    desk.install("Shop.Orders")
    desk.configure(ROUTES={"Sending.*": "Shop.Orders"})

    send(PlaceOrder("42"))

    assert len(desk.rows("Shop.Orders")) == 1


def test_missing_queue_is_named(desk: Desk) -> None:
    desk.configure(ROUTES={"Sending.*": "Nowhere"})

    with pytest.raises(QueueNotFound, match=r"Nowhere.*sqlqueue_install"):
        send(PlaceOrder("42"))


def test_dropped_queue_is_named(desk: Desk) -> None:
    """The first send has cached the columns of the queue."""
    send(PlaceOrder("42"))
    with desk.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {desk.table('Sales').qualified}")

    for _ in range(2):
        with pytest.raises(QueueNotFound):
            send(PlaceOrder("43"))


def test_queue_created_after_a_failed_send_is_found(desk: Desk) -> None:
    desk.configure(ROUTES={"Sending.*": "Late"})
    with pytest.raises(QueueNotFound):
        send(PlaceOrder("42"))

    desk.install("Late")
    send(PlaceOrder("42"))

    assert len(desk.rows("Late")) == 1


# --- PostgreSQL: schemas ------------------------------------------------------------------------------------------------------


@pytest.fixture
def schemas(postgresql_desk: Desk) -> Desk:
    """The queue Sales in public and in five other schemas; `where` returns those that have rows."""
    for schema in ("of_queue", "of_endpoint", "of_address", "of_default", "a.b"):
        with postgresql_desk.database.connection.cursor() as cursor:
            cursor.execute(f'CREATE SCHEMA "{schema}"')
        postgresql_desk.install("Sales", schema)
    return postgresql_desk


def where(desk: Desk) -> list[str]:
    found = []
    for schema in ("public", "of_queue", "of_endpoint", "of_address", "of_default", "a.b"):
        with desk.database.connection.cursor() as cursor:
            cursor.execute(f'DELETE FROM "{schema}"."Sales"')
            found += [schema] * cursor.rowcount
    return found


@pytest.mark.parametrize(
    ("address", "schema"),
    [
        ("Sales", "public"),
        ('"Sales"', "public"),
        ("of_address.Sales", "of_address"),
        ('"of_address"."Sales"', "of_address"),
        ('of_address."Sales"', "of_address"),
        ('"a.b".Sales', "a.b"),
        ('"a.b"."Sales"', "a.b"),
    ],
)
def test_address_may_be_bare_dotted_or_quoted(schemas: Desk, address: str, schema: str) -> None:
    send(PlaceOrder("42"), to=address)

    assert where(schemas) == [schema]


@pytest.mark.parametrize(
    ("sqlqueue", "routed", "addressed"),
    [
        ({}, "public", "of_address"),
        ({"DEFAULT_SCHEMA": "of_default"}, "of_default", "of_address"),
        ({"DEFAULT_SCHEMA": "of_default", "SCHEMA_FOR_ENDPOINT": {"Sales": "of_endpoint"}}, "of_endpoint", "of_address"),
        (
            {
                "DEFAULT_SCHEMA": "of_default",
                "SCHEMA_FOR_ENDPOINT": {"Sales": "of_endpoint"},
                "SCHEMA_FOR_QUEUE": {"Sales": "of_queue"},
            },
            "of_queue",
            "of_queue",
        ),
    ],
)
def test_schema_settings_apply_in_the_documented_order(
    schemas: Desk, sqlqueue: dict[str, object], routed: str, addressed: str
) -> None:
    """The order is that of docs/internals/wire.md#address-resolution; the endpoint's setting applies only to routed messages."""
    schemas.configure(**sqlqueue)

    send(PlaceOrder("42"))
    assert where(schemas) == [routed]
    send_many([PlaceOrder("42")])
    assert where(schemas) == [routed]
    send(PlaceOrder("42"), to="of_address.Sales")
    assert where(schemas) == [addressed]


def test_settings_of_another_name_are_ignored(schemas: Desk) -> None:
    schemas.configure(SCHEMA_FOR_QUEUE={"sales": "of_queue"}, SCHEMA_FOR_ENDPOINT={"SALES": "of_endpoint"})

    send(PlaceOrder("42"))

    assert where(schemas) == ["public"]


def test_missing_schema_is_reported_as_a_missing_queue(postgresql_desk: Desk) -> None:
    with pytest.raises(QueueNotFound, match=r'"nowhere"\."Sales"'):
        send(PlaceOrder("42"), to="nowhere.Sales")


def test_name_with_sql_is_quoted(postgresql_desk: Desk) -> None:
    name = 'a"; DROP TABLE "Sales"; --%s\'{}'
    postgresql_desk.install(name)

    send(PlaceOrder("42"), to='"' + name.replace('"', '""') + '"')

    assert len(postgresql_desk.rows(name)) == 1
    assert postgresql_desk.rows("Sales") == []
