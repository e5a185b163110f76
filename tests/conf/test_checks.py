"""The checks report errors in the settings, each under a documented id."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core import checks
from django.core.checks.registry import registry
from django.db import connections
from django.test import override_settings

import sqlqueue_app
from sqlqueue_app.checks import TAG, check_settings, check_sqlite_transaction_mode, register

PACKAGE = Path(sqlqueue_app.__file__).parent
DOCUMENT = PACKAGE.parent / "docs" / "reference" / "checks.md"


def run() -> list[checks.CheckMessage]:
    register()
    # From Django 6.1 on, it checks all databases unless some are named.
    return checks.run_checks(tags=[TAG], databases=[])


def test_checks_are_registered_once() -> None:
    register()
    register()

    registered = [getattr(check, "__name__", "") for check in registry.get_checks() if TAG in getattr(check, "tags", ())]
    assert registered.count(check_settings.__name__) == 1
    assert registered.count(check_sqlite_transaction_mode.__name__) == 1


def test_problem_becomes_a_message_with_hint_and_id() -> None:
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {"MAX_CONCURRENCY": 0, "PEEK_DELAY": 11}}}):
        found = run()

    assert found == [
        checks.Error(
            'SQLQUEUE["ENDPOINTS"]["Sales"]["MAX_CONCURRENCY"] is 0, expected an integer of at least 1 and at most 10000, or None',
            hint="change the value, or remove the key to get the default",
            id="sqlqueue.E004",
        )
    ]


def test_warnings_are_warnings() -> None:
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {"PEEK_DELAY": 11}}}):
        (found,) = run()

    assert (found.id, found.level, found.hint) == ("sqlqueue.W001", checks.WARNING, "choose at most 10 seconds")


def test_a_schedule_without_a_route_is_a_warning() -> None:
    entries = {"nightly": {"CRON": "0 2 * * *", "SEND": "Sales.CloseDay"}, "hourly": {"CRON": "0 * * * *", "SEND": "Billing.Look"}}
    with override_settings(SQLQUEUE={"SCHEDULES": entries, "ROUTES": {"Billing.*": "Billing"}}):
        (found,) = run()

    assert (found.id, found.level) == ("sqlqueue.W005", checks.WARNING)
    place = 'SQLQUEUE["SCHEDULES"]["nightly"]["SEND"]'
    assert found.msg == f"{place} is 'Sales.CloseDay', which has no route and no handler: nothing will be sent"


FILES = "django.core.files.storage.FileSystemStorage"


@pytest.mark.parametrize(
    ("storage", "media", "expected"),
    [
        (None, "", [("sqlqueue.E033", "'bodies', expected an alias of STORAGES: 'default' or 'staticfiles'")]),
        ({"BACKEND": FILES}, "", [("sqlqueue.W009", "'bodies', which stores bodies in the folder in which a process was started")]),
        ({"BACKEND": FILES}, "/srv/media", [("sqlqueue.W009", "MEDIA_ROOT ('/srv/media'), which web servers show to everyone")]),
        ({"BACKEND": FILES, "OPTIONS": {"location": "/srv/media/own"}}, "/srv/media", [("sqlqueue.W009", "MEDIA_ROOT")]),
        ({"BACKEND": FILES, "OPTIONS": {"location": Path("/srv/own")}}, "/srv/media", []),
        ({"BACKEND": "shop.storages.NotInstalled"}, "/srv/media", []),
        (FILES, "", [("sqlqueue.E033", 'STORAGES["bodies"], which CLAIM_CHECK names, is not a dictionary with a "BACKEND"')]),
        ({"LOCATION": "/srv/own"}, "", [("sqlqueue.E033", 'STORAGES["bodies"], which CLAIM_CHECK names')]),
        ({"BACKEND": FILES, "OPTIONS": "/srv/own"}, "", [("sqlqueue.E033", 'STORAGES["bodies"], which CLAIM_CHECK names')]),
    ],
)
def test_storage_of_claim_checks(storage: object, media: str, expected: list[tuple[str, str]]) -> None:
    storages = {**{name: {"BACKEND": FILES} for name in ("default", "staticfiles")}, **({"bodies": storage} if storage else {})}
    with override_settings(SQLQUEUE={"CLAIM_CHECK": {"STORAGE": "bodies"}}, STORAGES=storages, MEDIA_ROOT=media):
        found = run()

    assert [each.id for each in found] == [check_id for check_id, _ in expected]
    assert all(text in each.msg for each, (_, text) in zip(found, expected, strict=True)), found


def test_outgoing_middleware_that_cannot_be_imported_is_an_error() -> None:
    with override_settings(SQLQUEUE={"OUTGOING_MIDDLEWARE": ["tests.nothing.middleware"]}):
        (found,) = run()

    assert (found.id, found.level) == ("sqlqueue.E034", checks.ERROR)
    assert found.msg.startswith("SQLQUEUE[\"OUTGOING_MIDDLEWARE\"][0] names 'tests.nothing.middleware', which cannot be imported")


@override_settings()
def test_without_the_setting_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", {})
    del django_settings.SQLQUEUE

    assert run() == []


@pytest.mark.parametrize(("options", "shown"), [({}, "None"), ({"transaction_mode": "DEFERRED"}, "'DEFERRED'")])
def test_deferred_transactions_on_sqlite_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], shown: str
) -> None:
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", options)

    with override_settings(SQLQUEUE={}):
        found = run()

    assert found == [
        checks.Warning(
            f'DATABASES["default"]["OPTIONS"]["transaction_mode"] is {shown}, expected \'IMMEDIATE\': a deferred transaction '
            "that reads and then writes fails at once with 'database is locked' while another process writes",
            hint='add DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}',
            id="sqlqueue.W003",
        )
    ]


@pytest.mark.parametrize("mode", ["IMMEDIATE", "immediate"])
def test_immediate_transactions_on_sqlite_are_fine(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", {"transaction_mode": mode})

    with override_settings(SQLQUEUE={}):
        assert run() == []


def test_wrong_settings_do_not_stop_the_sqlite_check() -> None:
    with override_settings(SQLQUEUE={"DATABASE": "other"}):
        assert [message.id for message in run()] == ["sqlqueue.E012"]


def test_each_id_is_unique_in_code_and_documentation() -> None:
    sources = [*(PACKAGE / "conf").rglob("*.py"), PACKAGE / "checks.py", PACKAGE / "sagas/model.py"]
    in_code = Counter(re.findall(r'"(sqlqueue\.[EWI]\d{3})"', "\n".join(path.read_text("utf-8") for path in sources)))
    in_document = Counter(re.findall(r"^\| `(sqlqueue\.[EWI]\d{3})` \|", DOCUMENT.read_text("utf-8"), re.MULTILINE))

    assert [each for each, number in in_code.items() if number > 1] == []
    assert [each for each, number in in_document.items() if number > 1] == []
    assert set(in_code) == set(in_document)


def test_settings_codes_have_a_hint_in_the_documentation() -> None:
    rows = re.findall(r"^\| `sqlqueue\.[EWI]\d{3}` \|(.*)\|(.*)\|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)

    assert rows
    assert all(meaning.strip() and remedy.strip() for meaning, remedy in rows)
