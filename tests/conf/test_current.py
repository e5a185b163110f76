"""The settings of the process are lazy, cached, and read again when a test changes them."""

from __future__ import annotations

import platform
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from sqlqueue_app.conf import EndpointSettings, Settings, current_problems, get_settings, instance_name
from sqlqueue_app.conf.validation import Code
from sqlqueue_app.messages.errors import ConfigurationError


def test_settings_are_read_once() -> None:
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {}}}):
        assert get_settings() is get_settings()


def test_changed_settings_are_read_again_and_restored() -> None:
    before = get_settings()
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Changed": {}}}):
        assert list(get_settings().endpoints) == ["Changed"]
    assert get_settings() == before


@override_settings()
def test_without_the_setting_the_defaults_apply() -> None:
    del django_settings.SQLQUEUE

    assert get_settings() == Settings()
    assert current_problems() == []


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (None, "SQLQUEUE is None, expected a dictionary"),
        ({"DATABSE": "x"}, "SQLQUEUE[\"DATABSE\"] is not a setting: did you mean 'DATABASE'?"),
        (
            {"DATABSE": "x", "TABLE_LAYOUT": 5},
            "2 settings are wrong: SQLQUEUE[\"DATABSE\"] is not a setting: did you mean 'DATABASE'?; "
            "SQLQUEUE[\"TABLE_LAYOUT\"] is 5, expected 'classic' or 'modern'",
        ),
        (
            {"DATABASE": "defualt"},
            "SQLQUEUE[\"DATABASE\"] is 'defualt', expected an alias of DATABASES: did you mean 'default'?",
        ),
        (
            {"DEFAULT_SCHEMA": "dbo"},
            "SQLQUEUE[\"DEFAULT_SCHEMA\"] is 'dbo', but SQLite has no schemas and the queues are on SQLite",
        ),
    ],
)
def test_wrong_settings_raise_one_line_that_lists_the_errors(raw: Any, message: str) -> None:
    with override_settings(SQLQUEUE=raw), pytest.raises(ConfigurationError) as caught:
        get_settings()

    assert str(caught.value) == message
    assert "\n" not in message


def test_warnings_do_not_stop() -> None:
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {"PEEK_DELAY": 60}}}):
        assert get_settings().endpoint("Sales").peek_delay_seconds == 60
        assert [problem.code for problem in current_problems()] == [Code.SLOW_PEEK]


def test_instance_is_the_machine_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert instance_name() == platform.node()
    assert instance_name(EndpointSettings(name="Sales")) == platform.node()
    assert instance_name(EndpointSettings(name="Sales", instance="web-1")) == "web-1"

    monkeypatch.setattr(platform, "node", lambda: "")
    with pytest.raises(ConfigurationError, match="the machine has no name"):
        instance_name()
