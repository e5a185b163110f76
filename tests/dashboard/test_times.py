"""Times of pages: one zone, named once on each page; relative times with the absolute time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone, translation
from pytest_django import Settings

from sqlqueue_app.dashboard.formats import ago_html
from sqlqueue_app.models import Instance
from sqlqueue_app.status.events import Actor, record_action
from sqlqueue_app.templatetags.sqlqueue import ago, zone_offset
from tests.support.databases import QueueDatabase
from tests.support.filling import install, instance, message, table
from tests.support.pages import Markup, client_of

ADMIN = "/admin/sqlqueue_app/"
STARTED = datetime(2026, 5, 1, 20, 30, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "page", ["dashboard/", "queue/", "queue/Sales/", "endpoint/Sales/", "instance/", "event/", "analytics/usage/"]
)
def test_each_page_names_its_zone_once(sqlite_database: QueueDatabase, settings: Settings, page: str) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    install(sqlite_database)
    instance()
    table(sqlite_database, "Sales").send([message()])
    text = Markup(client_of("superuser").get(ADMIN + page).content.decode()).text()
    assert text.count("Times in Europe/Berlin") == 1


def test_list_of_instances_uses_the_time_format_of_other_pages(sqlite_database: QueueDatabase, settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    install(sqlite_database)
    instance()
    Instance.objects.update(started_at=STARTED)
    for page in ("instance/", "endpoint/Sales/", "queue/"):
        text = Markup(client_of("superuser").get(ADMIN + page).content.decode()).text()
        assert re.search(r"\d+ d ago \( ?2026-05-01 22:30:05\)", text), (page, text)
        assert not re.search(r"\d [ap]\.m\.", text), page


def test_list_of_instances_shows_the_time_of_the_last_heartbeat(sqlite_database: QueueDatabase, settings: Settings) -> None:
    """Without JavaScript the page does not refresh itself, so an age alone is soon wrong."""
    settings.TIME_ZONE = "Europe/Berlin"
    install(sqlite_database)
    row = instance()
    row.refresh_from_db()
    local = f"{row.heartbeat_at.astimezone(ZoneInfo('Europe/Berlin')):%Y-%m-%d %H:%M:%S}"
    text = Markup(client_of("superuser").get(f"{ADMIN}instance/").content.decode()).text()
    assert re.search(rf" {local} [\w ]{{3,20}} ago ", text), text


def test_recent_actions_have_relative_times(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    record_action(Actor("anna"), "purge", "Sales")
    text = Markup(client_of("viewer").get(f"{ADMIN}dashboard/").content.decode()).text()
    assert re.search(r"just now \( ?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\) anna", text), text


@pytest.mark.parametrize(
    ("age", "words"),
    [
        (timedelta(seconds=20), "just now"),
        (timedelta(seconds=-20), "just now"),
        (timedelta(minutes=1, seconds=50), "1 min ago"),
        (timedelta(hours=23, minutes=50), "23 h ago"),
        (timedelta(days=2, hours=23), "2 d ago"),
    ],
)
def test_relative_time_has_its_largest_unit_and_the_absolute_time(age: timedelta, words: str) -> None:
    at = datetime.now(UTC) - age
    with timezone.override("Asia/Kolkata"):
        html = ago_html(at)
        local = f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}"
    assert re.fullmatch(rf'<time datetime="[^"]+Z" title="{local}">{words}</time><span class="sq-hidden"> \({local}\)</span>', html)


def test_future_and_missing_times_are_not_relative() -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    assert "ago" not in str(ago(at))
    assert f"{at:%H:%M:%S}" in str(ago(at))
    assert ago(None) == "–"
    with translation.override("de"):
        assert "ago" not in str(ago(at))


@pytest.mark.parametrize(("zone", "seconds"), [("UTC", 0), ("Asia/Kolkata", 19_800)])
def test_live_page_has_the_offset_of_its_time_zone(
    sqlite_database: QueueDatabase, settings: Settings, zone: str, seconds: int
) -> None:
    settings.TIME_ZONE = zone
    install(sqlite_database)
    assert zone_offset() == seconds
    assert f'data-live-offset="{seconds}"' in client_of("viewer").get(f"{ADMIN}dashboard/").content.decode()
