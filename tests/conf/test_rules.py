"""Settings that are valid alone and wrong together."""

# ruff: noqa: E501 (one row for each case, with its whole message)

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from sqlqueue_app.conf import settings_problems
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.tables.installation import SUBSCRIPTION_TABLE

S = 'SQLQUEUE["ENDPOINTS"]["Sales"]'


def endpoints(*names: str, **sales: Any) -> dict[str, Any]:
    return {"ENDPOINTS": {"Sales": sales, **{name: {} for name in names}}}


RULES: list[tuple[str, dict[str, Any], str, str]] = [
    ("sqlite", {"DATABASE": "deflaut"}, "E012", 'SQLQUEUE["DATABASE"] is \'deflaut\', expected an alias of DATABASES: did you mean \'default\'?'),
    ("sqlite", {"DATABASE": "x"}, "E012", 'SQLQUEUE["DATABASE"] is \'x\', expected an alias of DATABASES'),
    ("sqlite", {"CATALOG_FOR_QUEUE": {"a": "b"}}, "E014", 'SQLQUEUE["CATALOG_FOR_QUEUE"] is set, but only SQL Server has catalogs and the queues are on SQLite'),
    ("postgresql", {"CATALOG_FOR_ENDPOINT": {"a": "b"}}, "E014", 'SQLQUEUE["CATALOG_FOR_ENDPOINT"] is set, but only SQL Server has catalogs and the queues are on PostgreSQL'),
    ("sqlite", {"DEFAULT_SCHEMA": "dbo"}, "E015", 'SQLQUEUE["DEFAULT_SCHEMA"] is \'dbo\', but SQLite has no schemas and the queues are on SQLite'),
    ("sqlite", {"SCHEMA_FOR_QUEUE": {"a": "b"}}, "E015", "SQLQUEUE[\"SCHEMA_FOR_QUEUE\"] is {'a': 'b'}, but SQLite has no schemas and the queues are on SQLite"),
    ("sqlite", {"SCHEMA_FOR_ENDPOINT": {"a": "b"}}, "E015", "SQLQUEUE[\"SCHEMA_FOR_ENDPOINT\"] is {'a': 'b'}, but SQLite has no schemas and the queues are on SQLite"),
    ("sqlserver", endpoints(WAKE_UP=True), "W004", f"{S}[\"WAKE_UP\"] is True, but the queues are on SQL Server, which cannot wake receivers: they are polled"),
    ("sqlserver", {**endpoints(), "SCHEMA_FOR_ENDPOINT": {"Sales": "s"}}, "E016", 'SQLQUEUE["SCHEMA_FOR_ENDPOINT"]["Sales"] names an endpoint of this process (SQLQUEUE["ENDPOINTS"]), expected another one'),
    ("postgresql", {"SEND_AS": "Web", "SCHEMA_FOR_ENDPOINT": {"Web": "web"}}, "E016", 'SQLQUEUE["SCHEMA_FOR_ENDPOINT"]["Web"] names an endpoint of this process (SQLQUEUE["SEND_AS"]), expected another one'),
    ("sqlserver", {**endpoints(), "CATALOG_FOR_ENDPOINT": {"Sales": "c"}}, "E016", 'SQLQUEUE["CATALOG_FOR_ENDPOINT"]["Sales"] names an endpoint of this process (SQLQUEUE["ENDPOINTS"]), expected another one'),
    ("sqlite", {**endpoints(), "PRIORITY_ENDPOINTS": ["Sales"]}, "E016", 'SQLQUEUE["PRIORITY_ENDPOINTS"][0] names an endpoint of this process (SQLQUEUE["ENDPOINTS"]), expected another one'),
    ("sqlite", endpoints(PRIORITIES=True, SATELLITES={"Sales.Low": {}}), "E017", f"{S}[\"SATELLITES\"][\"Sales.Low\"] uses the queue 'Sales.Low', which is the queue 'Sales.Low' for a priority of endpoint 'Sales' already"),
    ("postgresql", endpoints("Billing", SATELLITES={"Billing": {}}), "E017", f"{S}[\"SATELLITES\"][\"Billing\"] uses the queue 'Billing', which is the queue of endpoint 'Billing' already"),
    ("postgresql", endpoints(SATELLITES={"Sales": {}}), "E017", f"{S}[\"SATELLITES\"][\"Sales\"] uses the queue 'Sales', which is the queue of endpoint 'Sales' already"),
    ("postgresql", {"ENDPOINTS": {"Sales": {"SATELLITES": {"Fast": {}}}, "Billing": {"SATELLITES": {"Fast": {}}}}}, "E017", "SQLQUEUE[\"ENDPOINTS\"][\"Billing\"][\"SATELLITES\"][\"Fast\"] uses the queue 'Fast', which is the satellite 'Fast' of endpoint 'Sales' already"),
    ("sqlserver", endpoints("SALES"), "E017", "SQLQUEUE[\"ENDPOINTS\"][\"SALES\"] uses the queue 'SALES', which is the queue of endpoint 'Sales' already"),
    ("sqlite", endpoints(SATELLITES={"Fast": {}, "fast": {}}), "E017", f"{S}[\"SATELLITES\"][\"fast\"] uses the queue 'fast', which is the satellite 'Fast' of endpoint 'Sales' already"),
    ("sqlite", endpoints(SATELLITES={"Sales.Delayed": {}}), "E017", f"{S}[\"SATELLITES\"][\"Sales.Delayed\"] uses the queue 'Sales.Delayed', which is the table of delayed messages of endpoint 'Sales' already"),
    ("sqlite", endpoints("Sales.web-2", INSTANCE="web"), "E017", f"{S}[\"INSTANCE\"] uses the queue 'Sales.web-2', which is the queue of endpoint 'Sales.web-2' already"),
    ("postgresql", {**endpoints(), "SEND_AS": "Sales.Delayed"}, "E017", "SQLQUEUE[\"SEND_AS\"] uses the queue 'Sales.Delayed', which is the table of delayed messages of endpoint 'Sales' already"),
    ("sqlserver", {**endpoints(), "SEND_AS": "SALES"}, "E017", "SQLQUEUE[\"SEND_AS\"] uses the queue 'SALES', which is the queue of endpoint 'Sales' already"),
    ("sqlite", {**endpoints("Web.Delayed"), "SEND_AS": "Web"}, "E017", "SQLQUEUE[\"SEND_AS\"] uses the queue 'Web.Delayed', which is the queue of endpoint 'Web.Delayed' already"),
    ("sqlite", {"SEND_AS": SUBSCRIPTION_TABLE}, "E017", f"SQLQUEUE[\"SEND_AS\"] uses the queue '{SUBSCRIPTION_TABLE}', which is the subscription table already"),
    ("postgresql", endpoints(SUBSCRIPTION_TABLE), "E017", f"SQLQUEUE[\"ENDPOINTS\"][\"{SUBSCRIPTION_TABLE}\"] uses the queue '{SUBSCRIPTION_TABLE}', which is the subscription table already"),
    ("sqlite", endpoints(SATELLITES={"subscriptionrouting": {}}), "E017", f"{S}[\"SATELLITES\"][\"subscriptionrouting\"] uses the queue 'subscriptionrouting', which is the subscription table already"),
    ("postgresql", endpoints(ERROR_QUEUE=SUBSCRIPTION_TABLE), "E018", f"{S}[\"ERROR_QUEUE\"] is '{SUBSCRIPTION_TABLE}', expected a queue, not the subscription table"),
    ("sqlserver", endpoints(AUDIT_QUEUE="subscriptionrouting@[dbo]"), "E018", f"{S}[\"AUDIT_QUEUE\"] is 'subscriptionrouting@[dbo]', expected a queue, not the subscription table"),
    ("sqlserver", endpoints(ERROR_QUEUE="Sales@[ops]"), "E018", f"{S}[\"ERROR_QUEUE\"] is 'Sales@[ops]', expected a queue that the endpoint does not receive from"),
    ("postgresql", endpoints(ERROR_QUEUE='"ops"."Fast"', SATELLITES={"Fast": {}}), "E018", f"{S}[\"ERROR_QUEUE\"] is '\"ops\".\"Fast\"', expected a queue that the endpoint does not receive from"),
    ("sqlite", endpoints(ERROR_QUEUE="sales"), "E018", f"{S}[\"ERROR_QUEUE\"] is 'sales', expected a queue that the endpoint does not receive from"),
    ("sqlserver", endpoints(AUDIT_QUEUE="SALES@[dbo]"), "E018", f"{S}[\"AUDIT_QUEUE\"] is 'SALES@[dbo]', expected a queue that the endpoint does not receive from"),
    ("postgresql", endpoints(ERROR_QUEUE='"Sales.Delayed"'), "E018", f"{S}[\"ERROR_QUEUE\"] is '\"Sales.Delayed\"', expected a queue that the endpoint does not receive from"),
    ("postgresql", endpoints("Billing", ERROR_QUEUE='"Billing.Delayed"'), "E018", f"{S}[\"ERROR_QUEUE\"] is '\"Billing.Delayed\"', expected a queue, not the table of delayed messages of 'Billing'"),
    ("sqlite", {**endpoints(AUDIT_QUEUE="web.delayed"), "SEND_AS": "Web"}, "E018", f"{S}[\"AUDIT_QUEUE\"] is 'web.delayed', expected a queue, not the table of delayed messages of 'Web'"),
    ("postgresql", {**endpoints(), "SEND_AS": "error"}, "E018", f"{S}[\"ERROR_QUEUE\"] is 'error', expected a queue, not the queue of SEND_AS"),
    ("sqlite", endpoints(AUDIT_QUEUE="Error"), "E018", f"{S}[\"AUDIT_QUEUE\"] is 'Error', expected a queue that is not an ERROR_QUEUE"),
    ("postgresql", endpoints("Billing", AUDIT_QUEUE='"error"'), "E018", f"{S}[\"AUDIT_QUEUE\"] is '\"error\"', expected a queue that is not an ERROR_QUEUE"),
    ("sqlserver", {"ENDPOINTS": {"Sales": {"AUDIT_QUEUE": "late@[ops]"}, "Billing": {"ERROR_QUEUE": "Late@[OPS]"}}}, "E018", f"{S}[\"AUDIT_QUEUE\"] is 'late@[ops]', expected a queue that is not an ERROR_QUEUE"),
    ("sqlserver", endpoints(ERROR_QUEUE="@[dbo]"), "E008", f"{S}[\"ERROR_QUEUE\"]: the queue address '@[dbo]' has no table; expected 'table', 'table@[schema]' or 'table@[schema]@[catalog]'"),
    ("postgresql", endpoints(AUDIT_QUEUE="x."), "E008", f"{S}[\"AUDIT_QUEUE\"]: the queue address 'x.' has no table; expected 'table', '\"table\"' or '\"schema\".\"table\"'"),
    ("sqlite", endpoints(ON_FAILURE_WITHOUT_TRANSACTION="discard"), "E020", f"{S}[\"ON_FAILURE_WITHOUT_TRANSACTION\"] is 'discard', which applies to transaction mode 'none' only, and the mode is 'transaction_scope'"),
    ("postgresql", {"ENDPOINTS": {"é" * 28: {}}}, "E022", f"SQLQUEUE[\"ENDPOINTS\"][\"{'é' * 28}\"]: the table name '{'é' * 28}' is 56 bytes long; postgresql allows 55 bytes here: choose a shorter name"),
    ("sqlite", endpoints(SOFT_TIME_LIMIT=60, HARD_TIME_LIMIT=60), "E029", f'{S}["HARD_TIME_LIMIT"] is 60 seconds, but SOFT_TIME_LIMIT is 60: expected a hard limit above the soft one'),
    ("sqlite", endpoints(PEEK_DELAY=11), "W001", f'{S}["PEEK_DELAY"] is 11 seconds: a message may wait that long in an idle queue'),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "raw", "code", "message"), RULES)
def test_combination_gives_one_problem(dialect: str, raw: dict[str, Any], code: str, message: str) -> None:
    (problem,) = settings_problems(raw, dialects={"default": dialect, "other": dialect})

    assert (str(problem.code), problem.message) == (f"sqlqueue.{code}", message)
    assert problem.hint


@pytest.mark.parametrize(
    ("dialect", "raw"),
    [
        ("sqlserver", {"CATALOG_FOR_QUEUE": {"a": "b"}, "DEFAULT_SCHEMA": "s", "SCHEMA_FOR_ENDPOINT": {"a": "b"}}),
        ("postgresql", {"DEFAULT_SCHEMA": "s", "SCHEMA_FOR_QUEUE": {"Sales": "b"}, **endpoints()}),
        ("sqlite", {"DEFAULT_SCHEMA": None, "SCHEMA_FOR_QUEUE": {}, "CATALOG_FOR_QUEUE": {}}),
        ("postgresql", endpoints("SALES", SATELLITES={"sales": {}})),
        ("postgresql", endpoints(ERROR_QUEUE="sales")),
        ("postgresql", endpoints(AUDIT_QUEUE="Error")),
        ("sqlserver", endpoints(AUDIT_QUEUE="error@[archive]")),
        ("postgresql", {**endpoints("subscriptionrouting"), "SEND_AS": "sales"}),
        ("postgresql", {**endpoints(), "SEND_AS": "Sales", "ROUTES": {"Sales.*": "Sales"}}),
        ("sqlite", endpoints("Sales.web", INSTANCE="web", CALLBACKS=False)),
        ("sqlite", endpoints(ON_FAILURE_WITHOUT_TRANSACTION="error_queue", DELAYED_RETRIES=0)),
    ],
)
def test_sound_combination_has_no_problem(dialect: str, raw: dict[str, Any]) -> None:
    assert settings_problems(raw, dialects={"default": dialect}) == []


def test_unsupported_database_is_named_with_the_reason() -> None:
    class Oracle(Mapping[str, str]):
        def __getitem__(self, alias: str) -> str:
            raise ConfigurationError("oracle is not supported")

        def __iter__(self) -> Iterator[str]:
            return iter(["default"])

        def __len__(self) -> int:
            return 1

        def __contains__(self, alias: object) -> bool:
            return alias == "default"

    (problem,) = settings_problems(endpoints(), dialects=Oracle())

    assert problem.code == "sqlqueue.E013"
    assert problem.message == "SQLQUEUE[\"DATABASE\"] is 'default', but oracle is not supported"


def test_mode_none_wants_both_kinds_of_retries_at_zero() -> None:
    problems = settings_problems(endpoints(TRANSACTION_MODE="none"))

    assert [(str(problem.code), problem.message, problem.hint) for problem in problems] == [
        (
            "sqlqueue.E019",
            f"{S}[\"IMMEDIATE_RETRIES\"] is 5, but in transaction mode 'none' there is nothing to retry",
            "set IMMEDIATE_RETRIES and DELAYED_RETRIES both to 0",
        ),
        (
            "sqlqueue.E019",
            f"{S}[\"DELAYED_RETRIES\"] is 3, but in transaction mode 'none' there is nothing to retry",
            "set IMMEDIATE_RETRIES and DELAYED_RETRIES both to 0",
        ),
    ]


def test_mode_none_remembers_no_messages() -> None:
    none = {"TRANSACTION_MODE": "none", "IMMEDIATE_RETRIES": 0, "DELAYED_RETRIES": 0}

    (problem,) = settings_problems(endpoints(**none, DEDUPLICATE_FOR=60))

    assert problem.code == "sqlqueue.E023"
    assert problem.message.startswith(f'{S}["DEDUPLICATE_FOR"] is set, but in transaction mode')
    assert settings_problems(endpoints(**none, DEDUPLICATE_FOR=0)) == []


def test_mode_none_without_retries_may_discard_failures() -> None:
    raw = endpoints(TRANSACTION_MODE="none", IMMEDIATE_RETRIES=0, DELAYED_RETRIES=0, ON_FAILURE_WITHOUT_TRANSACTION="discard")

    assert settings_problems(raw) == []


def test_default_written_out_is_no_warning() -> None:
    raw = endpoints(BATCH_SIZE=1, CIRCUIT_BREAKER=30, MIDDLEWARE=[], DELAYED_RETRIES=3, SLOW_HANDLER=10)

    assert settings_problems({**raw, "SCHEDULES": {}}) == []
