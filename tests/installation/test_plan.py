"""Which tables the settings require."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django import Settings

from sqlqueue_app.conf import EndpointSettings, Settings as QueueSettings, get_settings
from sqlqueue_app.dialects.schema import PlannedTable
from sqlqueue_app.installation import planned_tables, unusable_names
from sqlqueue_app.messages.errors import AddressError
from tests.installation.shop import ENDPOINTS, TABLES


def plan(settings: Settings, endpoints: dict[str, Any], dialect: str = "sqlite", **more: Any) -> list[PlannedTable]:
    instances = more.pop("instances", None)
    catalog = more.pop("catalog", None)
    settings.SQLQUEUE = {"ENDPOINTS": endpoints, **more}
    return planned_tables(get_settings(), dialect, catalog, instances)


def named(tables: list[PlannedTable]) -> list[tuple[str, str]]:
    return [(table.kind.value, table.address.table) for table in tables]


def test_plan_has_each_table_once_in_settings_order(settings: Settings) -> None:
    assert named(plan(settings, ENDPOINTS)) == TABLES


def test_no_endpoints_need_no_tables(settings: Settings) -> None:
    assert plan(settings, {}) == []


def test_callback_queues_follow_the_named_machines(settings: Settings) -> None:
    def callbacks(instances: list[str] | None, **more: bool) -> list[str]:
        names = [name for _, name in named(plan(settings, {"Web": {"CALLBACK_QUEUES": 2, **more}}, instances=instances))]
        return [name for name in names if name.startswith("Web.") and not name.endswith(".Delayed")]

    assert callbacks(["a", "b"]) == ["Web.a", "Web.a-2", "Web.b", "Web.b-2"]
    assert callbacks([]) == []
    assert callbacks(None) == callbacks(None, CALLBACKS=False) == callbacks(["a"], CALLBACKS=False) == []
    (first, second) = callbacks(None, CALLBACKS=True)
    assert second == f"{first}-2"


def test_sender_gets_tables_for_replies_and_delayed_messages(settings: Settings) -> None:
    sales = {"CALLBACKS": False, "ERROR_QUEUE": "failed"}
    tables = named(plan(settings, {"Sales": sales}, SEND_AS="Web", instances=["here"]))
    callbacks = ["Web.here", *(f"Web.here-{number}" for number in range(2, 9))]
    assert [name for kind, name in tables if kind == "queue"] == ["Sales", "failed", "Web", *callbacks]
    assert [name for kind, name in tables if kind == "delayed"] == ["Sales.Delayed", "Web.Delayed"]
    assert named(plan(settings, {"Web": {}, "Sales": sales}, SEND_AS="Web")) == named(plan(settings, {"Web": {}, "Sales": sales}))


def test_error_and_audit_queues_are_shared(settings: Settings) -> None:
    endpoints = {"A": {"CALLBACKS": False, "AUDIT_QUEUE": "audit"}, "B": {"CALLBACKS": False, "AUDIT_QUEUE": "audit"}}
    names = [name for _, name in named(plan(settings, endpoints))]
    assert sorted(names) == ["A", "A.Delayed", "B", "B.Delayed", "SubscriptionRouting", "audit", "error"]


@pytest.mark.parametrize(("dialect", "both"), [("postgresql", True), ("sqlite", False), ("sqlserver", False)])
def test_names_that_differ_in_case_follow_the_database(settings: Settings, dialect: str, both: bool) -> None:
    endpoints = {"A": {"CALLBACKS": False, "ERROR_QUEUE": "Error"}, "B": {"CALLBACKS": False, "ERROR_QUEUE": "error"}}
    names = [name for _, name in named(plan(settings, endpoints, dialect))]
    assert ("error" in names) is both
    assert "Error" in names


def test_schemas_and_catalogs_are_resolved() -> None:
    endpoint = EndpointSettings(name="Sales", callbacks=False, error_queue="error@[ops]@[logs]")
    known = QueueSettings(endpoints={"Sales": endpoint}, schema_for_queue={"Sales": "sal"}, default_schema="app")
    found = {str(table.address) for table in planned_tables(known, "sqlserver", "shop")}
    assert found == {
        "Sales@[sal]@[shop]",
        "Sales.Delayed@[sal]@[shop]",
        "error@[ops]@[logs]",
        "SubscriptionRouting@[app]@[shop]",
    }


@pytest.mark.parametrize(("dialect", "name"), [("sqlserver", "x" * 121), ("postgresql", "x" * 48)])
def test_too_long_name_is_named(settings: Settings, dialect: str, name: str) -> None:
    """The name of the queue fits; with the suffix `.Delayed` it does not."""
    with pytest.raises(AddressError, match=f"{name}.Delayed"):
        plan(settings, {name: {"CALLBACKS": False}}, dialect)
    (sentence,) = unusable_names(get_settings(), dialect)
    assert f"'{name}.Delayed'" in sentence
    assert unusable_names(get_settings(), "sqlite") == []
