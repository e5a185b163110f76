"""Settings read from Django's `TASKS`: endpoints that SQLQUEUE does not define, options, queue names."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from sqlqueue_app.checks import check_settings
from sqlqueue_app.conf import Settings, current_problems, get_settings, is_configured
from sqlqueue_app.conf.task_backends import TASK_BACKEND
from sqlqueue_app.messages.errors import ConfigurationError


def tasks(**entry: Any) -> Any:
    return override_settings(TASKS={"default": {"BACKEND": TASK_BACKEND, **entry}})


@override_settings()
def test_tasks_alone_are_enough() -> None:
    del django_settings.SQLQUEUE
    with tasks():
        found = get_settings()
        assert is_configured()
    assert {name: endpoint.callbacks for name, endpoint in found.endpoints.items()} == {"default": False}
    assert found.task_backends["default"].place_of("default", found.endpoints).queue == "default"


@override_settings(SQLQUEUE={"BODY_NAMES": "pascal", "ENDPOINTS": {}})
def test_each_task_queue_gets_an_endpoint_by_default() -> None:
    with tasks(QUEUES=["default", "mail"], OPTIONS={"ENDPOINT": "Shop"}):
        found = get_settings()
    assert (list(found.endpoints), found.body_names) == (["Shop", "mail"], "pascal")


@override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {}}})
def test_configured_endpoints_are_unchanged() -> None:
    with tasks():
        assert list(get_settings().endpoints) == ["Sales"]


@override_settings(SQLQUEUE={"ENDPOINTS": {"Jobs": {"HANDLERS": []}, "Web": {"HANDLERS": []}}, "SEND_AS": "Site"})
def test_endpoint_that_takes_tasks_does_not_only_send() -> None:
    with tasks(OPTIONS={"ENDPOINT": "Jobs"}):
        found = get_settings()
    assert [name for name in found.senders if found.is_send_only(name)] == ["Web", "Site"]


@override_settings(SQLQUEUE={})
@pytest.mark.parametrize(
    "raw", [None, {}, [], {"default": None}, {"default": {"BACKEND": "django_tasks.backends.dummy.DummyBackend"}}]
)
def test_other_task_backends_are_ignored(raw: Any) -> None:
    with override_settings(TASKS=raw):
        assert get_settings() == Settings()


@pytest.mark.parametrize(
    ("entry", "message", "code"),
    [
        ({"OPTIONS": {"RETRYS": 1}}, 'TASKS["default"]["OPTIONS"]["RETRYS"] is not a setting: did you mean \'RETRIES\'?', "E002"),
        ({"RETRIES": 1}, 'TASKS["default"]["RETRIES"] is not a setting here, it belongs to TASKS["default"]["OPTIONS"]', "E002"),
        ({"OPTIONS": None}, 'TASKS["default"]["OPTIONS"] is None, expected a dictionary', "E003"),
        (
            {"OPTIONS": {"RETRIES": True}},
            'TASKS["default"]["OPTIONS"]["RETRIES"] is True, expected an integer of at least 0 and at most 2147483647',
            "E003",
        ),
        (
            {"OPTIONS": {"KEEP_RESULTS": -1}},
            'TASKS["default"]["OPTIONS"]["KEEP_RESULTS"] is -1, expected seconds (int, float or timedelta) of at least 0, or None',
            "E004",
        ),
        ({"QUEUES": "default"}, 'TASKS["default"]["QUEUES"] is \'default\', expected a list of names', "E003"),
        (
            {"OPTIONS": {"ENDPOINT": "Salse"}},
            'TASKS["default"]["OPTIONS"]["ENDPOINT"] is \'Salse\', expected an endpoint of SQLQUEUE["ENDPOINTS"]: '
            "did you mean 'Sales'?",
            "E040",
        ),
        (
            {"QUEUES": ["default"]},
            'TASKS["default"]["QUEUES"]: no endpoint of SQLQUEUE["ENDPOINTS"] receives from the task queue '
            "'default', expected 'Sales', 'Billing' or 'Sales.Slow'",
            "E040",
        ),
    ],
)
@override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {"SATELLITES": {"Sales.Slow": {}}}, "Billing": {}}})
def test_invalid_task_settings_are_reported_by_the_checks(entry: dict[str, Any], message: str, code: str) -> None:
    good = {"QUEUES": ["Sales"]}
    with tasks(**{**good, **entry}):
        assert [(problem.message, str(problem.code)) for problem in current_problems()] == [(message, f"sqlqueue.{code}")]
        assert [found.id for found in check_settings()] == [f"sqlqueue.{code}"]
        with pytest.raises(ConfigurationError) as caught:
            get_settings()
    assert str(caught.value) == message


@override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {"MAX_CONCURRENCY": 0}}})
def test_wrong_endpoints_are_reported_once() -> None:
    with tasks(QUEUES=["Sales"]):
        assert [str(problem.code) for problem in current_problems()] == ["sqlqueue.E004"]
