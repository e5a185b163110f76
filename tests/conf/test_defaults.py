"""The defaults are the documented ones, and each level turns its keys into attributes."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue_app.conf import EndpointSettings, PipelineSettings, SatelliteSettings, ScheduleSettings, Settings
from sqlqueue_app.conf.settings import read_settings
from sqlqueue_app.conf.validation import keys_of
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError, ConfigurationError

# The defaults of docs/reference/settings.md; TRANSACTION_MODE is that of this version. The keys whose values are examples there
# have empty defaults.
DEFAULTS: dict[str, Any] = {
    "DATABASE": "default",
    "DEFAULT_SCHEMA": None,
    "SCHEMA_FOR_QUEUE": {},
    "SCHEMA_FOR_ENDPOINT": {},
    "CATALOG_FOR_QUEUE": {},
    "CATALOG_FOR_ENDPOINT": {},
    "TABLE_LAYOUT": "classic",
    "ROUTES": {},
    "SEND_AS": None,
    "ENDPOINTS": {},
    "PRIORITY_ENDPOINTS": (),
    "BODY_NAMES": "as_is",
    "SERIALIZER": "json",
    "MAX_BODY_SIZE": 16 << 20,
    "CLAIM_CHECK": None,
    "ERROR_QUEUE_OWNER": "sqlqueue",
    "ALLOWED_DESTINATIONS": None,
    "INSTALL_AFTER_MIGRATE": True,
    "EAGER": False,
    "MAX_MESSAGES_PER_PROCESS": None,
    "MAX_MEMORY_PER_PROCESS": None,
    "OUTGOING_MIDDLEWARE": (),
    "SCHEDULES": {},
    "METRICS": None,
    "INSTANCE_EXPIRY": 600,
    "ADMIN_URL": None,
    "WEBHOOK_HOSTS": None,
    "PIPELINE": None,
}
PIPELINE_DEFAULTS: dict[str, Any] = {
    "LAKE": None,
    "MASTER": "local[*]",
    "AUDIT_QUEUES": None,
    "ERROR_QUEUES": None,
    "CRON": None,
    "BATCH_SIZE": 500_000,
    "EVERY": 10,
    "KEEP_DAYS": None,
    "PEEK_ONLY": False,
    "SPARK": {},
}
ENDPOINT_DEFAULTS: dict[str, Any] = {
    "HANDLERS": None,
    "TRANSACTION_MODE": "transaction_scope",
    "CONCURRENCY_MODEL": "adaptive",
    "MAX_CONCURRENCY": None,
    "BATCH_SIZE": 1,
    "PRIORITIES": False,
    "WAKE_UP": None,
    "CALLBACKS": "on_request",
    "CALLBACK_CONCURRENCY": 1,
    "INSTANCE": None,
    "CALLBACK_QUEUES": 8,
    "LEGACY_ADDRESSES": False,
    "LEGACY_CALLBACK_HEADER": False,
    "LEGACY_SATELLITES": False,
    "SATELLITES": {},
    "PEEK_DELAY": 1,
    "CIRCUIT_BREAKER": 30,
    "RATE_LIMIT_AFTER": None,
    "RETRIES": {},
    "RATE_LIMITS": {},
    "IMMEDIATE_RETRIES": 5,
    "DELAYED_RETRIES": 3,
    "DELAYED_RETRY_INCREASE": 10,
    "ON_FAILURE_WITHOUT_TRANSACTION": "error_queue",
    "RECOVERABILITY": None,
    "MIDDLEWARE": (),
    "SLOW_HANDLER": 10,
    "SOFT_TIME_LIMIT": None,
    "HARD_TIME_LIMIT": None,
    "DEDUPLICATE_FOR": None,
    "ERROR_QUEUE": "error",
    "AUDIT_QUEUE": None,
    "ACKNOWLEDGE_RETRIES": True,
    "SERVICE_CONTROL_QUEUE": None,
    "CUSTOM_CHECKS": {},
    "PURGE_ON_STARTUP": False,
    "PURGE_EXPIRED_EVERY": 300,
    "PURGE_EXPIRED_BATCH": 10000,
    "SUBSCRIBE": True,
}


def read(raw: dict[str, Any]) -> Settings:
    settings, problems = read_settings(raw)
    assert [problem for problem in problems if problem.is_error] == []
    return settings


def as_keys(section: Any) -> dict[str, object]:
    return {key: getattr(section, setting.name) for key, setting in keys_of(type(section)).items()}


def test_defaults_of_the_whole() -> None:
    assert as_keys(Settings()) == DEFAULTS
    assert read({}) == Settings()


def test_defaults_of_an_endpoint() -> None:
    endpoint = read({"ENDPOINTS": {"Sales": {}}}).endpoint("Sales")

    assert endpoint == EndpointSettings(name="Sales")
    assert as_keys(endpoint) == ENDPOINT_DEFAULTS


def test_defaults_of_the_pipeline() -> None:
    assert read({"PIPELINE": {}}).pipeline == PipelineSettings()
    assert as_keys(PipelineSettings()) == PIPELINE_DEFAULTS
    assert read({"PIPELINE": PIPELINE_DEFAULTS}).pipeline == PipelineSettings()


def test_defaults_written_out_are_the_defaults() -> None:
    raw = {**DEFAULTS, "ENDPOINTS": {"Sales": {**ENDPOINT_DEFAULTS, "SATELLITES": {"Fast": {"MAX_CONCURRENCY": None}}}}}

    settings, problems = read_settings(raw, dialects={"default": "sqlite"})

    assert problems == []
    assert settings.endpoint("Sales").satellites == {"Fast": SatelliteSettings(name="Fast")}


def test_values_become_attributes() -> None:
    settings, _ = read_settings(
        {
            "ROUTES": {"Sales.PlaceOrder": "Sales"},
            "ALLOWED_DESTINATIONS": ["Sales*"],
            "SCHEDULES": {"nightly": {"CRON": "0 2 * * *", "SEND": "Sales.CloseDay"}},
            "ENDPOINTS": {"Sales": {"HANDLERS": ["a.b"], "BATCH_SIZE": "auto", "MIDDLEWARE": ["a.b", len]}},
        }
    )

    assert settings.routes == {"Sales.PlaceOrder": "Sales"}
    assert settings.allowed_destinations == ("Sales*",)
    assert settings.schedules == {"nightly": ScheduleSettings(name="nightly", cron="0 2 * * *", send="Sales.CloseDay")}
    assert settings.endpoint("Sales").handlers == ("a.b",)
    assert settings.endpoint("Sales").batch_size == "auto"
    assert settings.endpoint("Sales").middleware == ("a.b", len)


@pytest.mark.parametrize("value", [2, 2.0, timedelta(seconds=2)])
def test_durations_become_float_seconds(value: object) -> None:
    seconds = read({"ENDPOINTS": {"Sales": {"PEEK_DELAY": value}}}).endpoint("Sales").peek_delay_seconds

    assert (seconds, type(seconds)) == (2.0, float)


def test_settings_cannot_be_changed() -> None:
    raw: dict[str, Any] = {"ROUTES": {"A": "Sales"}, "ENDPOINTS": {"Sales": {}}}
    settings = read(raw)
    raw["ROUTES"]["B"] = "Sales"

    assert settings.routes == {"A": "Sales"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.database = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.routes["B"] = "Sales"  # type: ignore[index]
    with pytest.raises(TypeError):
        Settings().routes["B"] = "Sales"  # type: ignore[index]


@pytest.mark.parametrize(("limit", "cores", "expected"), [(None, 1, 2), (None, 16, 16), (1, 16, 1), (40, 2, 40)])
def test_concurrency_of_an_endpoint(limit: int | None, cores: int, expected: int) -> None:
    assert EndpointSettings(name="Sales", max_concurrency=limit).concurrency(cores) == expected


def test_satellite_without_a_limit_has_that_of_its_endpoint() -> None:
    assert SatelliteSettings(name="Fast").concurrency(10) == 10
    assert SatelliteSettings(name="Fast", max_concurrency=1).concurrency(10) == 1


def test_callback_queues_of_an_instance() -> None:
    endpoint = EndpointSettings(name="Sales", callback_queues=3)

    assert endpoint.callback_queue_names("web") == ("Sales.web", "Sales.web-2", "Sales.web-3")
    assert dataclasses.replace(endpoint, callbacks=False).callback_queue_names("web") == ()


def test_unknown_endpoint_is_an_error_that_names_the_near_one() -> None:
    settings = read({"ENDPOINTS": {"Sales": {}}})

    with pytest.raises(ConfigurationError) as caught:
        settings.endpoint("sales")
    assert str(caught.value) == "endpoint 'sales' is not in SQLQUEUE[\"ENDPOINTS\"]: did you mean 'Sales'?"
    with pytest.raises(ConfigurationError) as caught:
        settings.endpoint("Billing")
    assert str(caught.value) == "endpoint 'Billing' is not in SQLQUEUE[\"ENDPOINTS\"], add it there"


def test_queues_of_the_endpoints() -> None:
    settings = read(
        {
            "ENDPOINTS": {
                "Acme.Sales": {"SATELLITES": {"Acme.Sales.Fast": {}}, "AUDIT_QUEUE": "log.audit"},
                "Billing": {"AUDIT_QUEUE": '"log"."audit"'},
            }
        }
    )

    assert settings.queue_names() == ("Acme.Sales", "Acme.Sales.Fast", "Billing")
    assert settings.queue_addresses("postgresql") == (
        QueueAddress("Acme.Sales", form="postgresql"),
        QueueAddress("Acme.Sales.Fast", form="postgresql"),
        QueueAddress("Billing", form="postgresql"),
        QueueAddress("error", form="postgresql"),
        QueueAddress("audit", "log", form="postgresql"),
    )


def test_queue_address_that_cannot_be_read_raises() -> None:
    with pytest.raises(AddressError):
        read({"ENDPOINTS": {"Sales": {"AUDIT_QUEUE": "log."}}}).queue_addresses("postgresql")


def test_address_book_knows_the_schemas() -> None:
    settings = read({"DEFAULT_SCHEMA": "sales", "SCHEMA_FOR_QUEUE": {"error": "ops"}})

    book = settings.address_book("sqlserver", "nsb")

    assert book.default_schema == "sales"
    assert book.default_catalog == "nsb"
    assert book.schema_for_queue == {"error": "ops"}
