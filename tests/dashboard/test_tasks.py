"""The pages of tasks: the list with outcomes, and one task with its attempts."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta

import pytest
from pytest_django import Settings

from sqlqueue_app.models import TaskResult
from tests.support.databases import QueueDatabase
from tests.support.filling import install
from tests.support.pages import Markup, client_of
from tests.support.task_results import ENQUEUED_AT, ERROR, task

TASKS = "/admin/sqlqueue_app/taskresult/"


@pytest.fixture
def tasks(queue_database: QueueDatabase) -> dict[str, TaskResult]:
    install(queue_database)
    return {
        "billed": task("shop.tasks.bill"),
        "failed": task("shop.tasks.bill", minutes=1, status="FAILED", errors=[ERROR]),
        "again": task("shop.tasks.remind", minutes=2, status="READY", errors=[ERROR], run_after=ENQUEUED_AT + timedelta(days=1)),
    }


def listed(query: str = "") -> list[str]:
    """The ids of the tasks on the page, in order."""
    links = Markup(client_of("viewer").get(TASKS + query).content.decode()).links
    return [link.removeprefix(TASKS).rstrip("/") for link in links if link.startswith(TASKS) and len(link) > len(TASKS) + 30]


def test_tasks_are_listed_newest_first_and_filtered(tasks: dict[str, TaskResult]) -> None:
    assert listed() == [tasks[name].pk for name in ("again", "failed", "billed")]
    assert listed("?status=FAILED") == [tasks["failed"].pk]
    assert listed("?task=BILL&status=SUCCESSFUL") == [tasks["billed"].pk]
    assert listed("?since=2026-05-02") == []
    text = Markup(client_of("viewer").get(TASKS).content.decode()).text()
    for word in ("Waiting for its next attempt", "Failed", "Successful", "shop.OutOfStock", "2 s"):
        assert word in text


@pytest.mark.parametrize("use_tz", [True, False])
def test_days_are_those_of_the_site(tasks: dict[str, TaskResult], settings: Settings, use_tz: bool) -> None:
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "UTC"

    assert listed("?since=2026-05-01&until=2026-05-01") == [tasks[name].pk for name in ("again", "failed", "billed")]
    assert listed("?since=2026-05-02") == listed("?until=2026-04-30") == []


def test_page_of_a_task_shows_its_attempts(tasks: dict[str, TaskResult]) -> None:
    text = Markup(client_of("viewer").get(f"{TASKS}{tasks['failed'].pk}/").content.decode()).text()
    assert "Failure 1: shop.OutOfStock" in text
    assert "no tea" in text
    assert "mill:7" in text


def test_arguments_and_results_need_the_permission_for_bodies(tasks: dict[str, TaskResult]) -> None:
    page = f"{TASKS}{tasks['billed'].pk}/"
    assert "order 42" not in client_of("viewer").get(page).content.decode()
    assert "order 42" in client_of("writer").get(page).content.decode()
    exported = json.loads(b"".join(client_of("admin").get(f"{TASKS}?format=json")))
    assert [each["task"] for each in exported] == ["shop.tasks.remind", "shop.tasks.bill", "shop.tasks.bill"]
    assert "order 42" not in json.dumps(exported)


def test_unknown_task_returns_404(queue_database: QueueDatabase) -> None:
    install(queue_database)
    assert client_of("viewer").get(f"{TASKS}{uuid.uuid4()}/").status_code == 404
    assert client_of("viewer").get(f"{TASKS}a%00b/").status_code == 404


def test_list_behind_an_impossible_task_is_the_first_page(tasks: dict[str, TaskResult]) -> None:
    assert len(listed("?before=a%00b")) == len(tasks)
