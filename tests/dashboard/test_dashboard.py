"""The overview: problems first, each number with its scope, charts, the latest actions."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import FailedMessage, FailureStatus, OperatorAction, QueueSample
from sqlqueue_app.monitoring.health import read_health
from sqlqueue_app.status.events import Actor, record_action
from sqlqueue_app.status.overview import read_status
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT, failed
from tests.support.failing import fail
from tests.support.filling import HOSTILE, install, instance, message, table
from tests.support.pages import Markup, client_of, page_at

DASHBOARD = "/admin/sqlqueue_app/dashboard/"


def page(kind: str = "viewer") -> Markup:
    return page_at(DASHBOARD, kind)


def delayed_table(database: QueueDatabase) -> DelayedTable:
    return DelayedTable(database.alias, delayed_address(address_book_of(get_settings()), "Sales"))


def delay(database: QueueDatabase, due: datetime, count: int = 1) -> None:
    for _ in range(count):
        delayed_table(database).add("{}", b"", due)


def test_healthy_installation_needs_no_attention(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance()
    found = page()
    assert "Nothing needs attention." in found.text()
    assert found.inline == []


def test_installation_without_any_worker_needs_attention(queue_database: QueueDatabase) -> None:
    install(queue_database)
    text = page().text()
    assert "Nothing needs attention." not in text
    assert "No worker has run yet: messages are not received, and nothing is checked." in text
    assert "Checks ? failing and not muted" in text
    install(queue_database, ENDPOINTS={"Web": {"HANDLERS": [], "CALLBACKS": False}})
    assert "Nothing needs attention." in page().text(), "an endpoint that only sends needs no worker"


def test_problems_come_first_ordered_by_severity(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance(name="there", host="there", callback_queue=None, silent=timedelta(minutes=5))
    table(queue_database, "Sales").send([message(age=timedelta(hours=2)) for _ in range(3)])
    table(queue_database, "error").send([message()])
    delay(queue_database, datetime(2026, 1, 1, tzinfo=UTC))
    with queue_database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table(queue_database, 'Sales.Priority').qualified}")

    text = page().text().partition("Needs attention")[2].partition(" Now ")[0]

    order = [
        "Process Sales on there (4711) : No heartbeat for ",
        "ended without signing off. Messages waiting that no process receives: 3. since 20",
        "Queue Sales.Priority : table ",
        "Queue error : Failed messages that wait for a decision: 1.",
    ]
    places = [text.find(phrase) for phrase in order]
    assert -1 not in places, text
    assert places == sorted(places)
    assert "overdue" not in text, "the dead process explains it"


def test_each_number_shows_its_scope(queue_database: QueueDatabase) -> None:
    install(queue_database)
    now = datetime.now(UTC)
    for number, status in enumerate((FailureStatus.UNRESOLVED, FailureStatus.UNRESOLVED, FailureStatus.ARCHIVED)):
        FailedMessage.objects.create(
            id=f"00000000-0000-0000-0000-00000000000{number}", status=status, status_at=now, queue="error", message_id=str(number),
            first_failed_at=now, failed_at=now,
        )  # fmt: skip
    table(queue_database, "Sales").send([message(), message(lifetime_ms=-1000)])
    text = page().text()
    assert "Failed messages 2 unresolved, in the error queues" in text
    assert "Waiting 2 in main queues and satellites" in text
    assert "Expired 1 expired, not yet purged, in all queues" in text
    assert "Instances 0 alive; 0 dead" in text


def test_capped_numbers_of_the_tiles_are_marked(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    install(queue_database)
    delay(queue_database, datetime(2026, 1, 1, tzinfo=UTC), count=3)
    table(queue_database, "Sales").send([message(lifetime_ms=-1000) for _ in range(3)])
    instance(threads={"Sales": 1})
    real = read_status()
    few = tuple(replace(each, depth=each.depth and replace(each.depth, exact=False), expiry_exact=False) for each in real.queues)
    shown = replace(real, queues=few, delayed=tuple(replace(each, exact=False) for each in real.delayed))
    monkeypatch.setattr("sqlqueue_app.dashboard.overview.read_status", lambda: shown)
    text = page().text()
    assert "Expired ≥ 3 expired, not yet purged" in text
    assert "Delayed ≥ 3 ≥ 3 overdue" in text
    assert "Overdue delayed messages that no worker moves: ≥ 3." in text
    # Those due first are counted first.
    some = tuple(replace(each, overdue=each.overdue and 2) for each in shown.delayed)
    monkeypatch.setattr("sqlqueue_app.dashboard.overview.read_status", lambda: replace(shown, delayed=some))
    assert "Delayed ≥ 3 2 overdue" in page().text()


def test_numbers_of_unreadable_tables_are_not_zero(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance(callback_queue=None)
    with queue_database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table(queue_database, 'Sales.Priority').qualified}")
        cursor.execute(f"DROP TABLE {delayed_table(queue_database).qualified}")
    found = page()
    assert "Expired ? expired, not yet purged" in found.text()
    assert "Delayed ? ? overdue" in found.text()
    table(queue_database, "Sales").send([message(lifetime_ms=-1000)])
    assert "Expired ≥ 1 expired, not yet purged" in page().text()


def tile(label: str) -> tuple[str, str]:
    """The level and the text of a tile of the overview."""
    html = client_of("viewer").get(DASHBOARD).content.decode()
    (found,) = [each for each in re.findall(r'<li class="sq-tile">.*?</li>', html, re.DOTALL) if f">{label}</a>" in each]
    return re.findall(r'<strong class="sq-(\w+)"', found)[0], " ".join(Markup(found).text().split()).removeprefix(f"{label} ")


def test_waiting_messages_of_unreadable_queues_are_not_zero(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance(callback_queue=None)
    assert tile("Waiting") == ("ok", "0 in main queues and satellites")
    with queue_database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table(queue_database, 'Sales.Priority').qualified}")
    assert tile("Waiting") == ("warning", "? in main queues and satellites")
    table(queue_database, "Sales").send([message()])
    assert tile("Waiting") == ("warning", "≥ 1 in main queues and satellites")
    text = Markup(client_of("viewer").get("/admin/sqlqueue_app/endpoint/").content.decode()).text()
    assert re.search(r"Sales \w+ not known", text), "the number of one queue alone is not the total"


def test_overview_without_its_own_tables_is_not_fine(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are missing after an update of the package without `migrate`."""
    install(queue_database)
    instance(callback_queue=None)
    assert "Nothing needs attention." in page().text()
    monkeypatch.setattr(FailedMessage._meta, "db_table", "missing")
    assert "Needs attention not known" in page().text()
    assert [tile(label) for label in ("Failed messages", "Checks", "Operations")] == [
        ("warning", "? unresolved, in the error queues"),
        ("warning", "? failing and not muted"),
        ("warning", "? not completed yet"),
    ]
    queue_database.configure(ERROR_QUEUE_OWNER="servicecontrol")
    assert tile("Failed messages") == ("warning", "? in the error queues, which belong to ServiceControl")


def test_message_that_has_just_become_due_is_not_overdue(queue_database: QueueDatabase) -> None:
    """The overview, the page of delayed messages and its file agree."""
    install(queue_database)
    delay(queue_database, datetime.now(UTC) - timedelta(seconds=5))
    writer = client_of("writer")
    assert "Delayed 1 0 overdue" in page().text()
    assert '"overdue": 0' in writer.get("/admin/sqlqueue_app/delayedmessage/?format=json").getvalue().decode()
    delay(queue_database, datetime(2026, 1, 1, tzinfo=UTC))
    assert "Delayed 2 2 overdue" in page().text()
    assert '"overdue": 2' in writer.get("/admin/sqlqueue_app/delayedmessage/?format=json").getvalue().decode()


def test_charts_sum_the_queues(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    now = datetime.now(UTC).replace(microsecond=0)
    for queue in ("Sales", "Sales.Priority", "error"):
        for number in range(3):
            QueueSample.objects.create(
                queue=queue, taken_at=now - timedelta(seconds=10 * number), seconds=10, waiting=20, most_waiting=20
            )
    text = page().text()
    assert "Waiting in main queues and satellites" in text
    assert "messages: now 40, between 40 and 40" in text
    assert "messages: now 20, between 20 and 20" in text


def test_latest_actions_are_shown(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    at = datetime.now(UTC)
    for number in range(12):
        record_action(Actor(HOSTILE), f"purge {number}", HOSTILE, now=lambda: at)
    # All have the same time, so the keys decide the order.
    assert re.findall(r"Purge (\d+)", page().text()) == [str(number) for number in range(11, 1, -1)]
    assert HOSTILE not in client_of("viewer").get(DASHBOARD).content.decode()
    assert OperatorAction.objects.count() == 12


def test_error_queue_of_servicecontrol_is_no_issue(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ERROR_QUEUE_OWNER="servicecontrol")
    table(sqlite_database, "error").send([message()])
    text = page().text()
    assert "Queue error" not in text
    assert "in the error queues, which belong to ServiceControl" in text


def test_failures_are_counted_without_a_worker(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    install(queue_database)
    table(queue_database, "error").send([failed(f"m-{number}") for number in range(3)])

    assert "Failed messages 3 unresolved" in page().text()
    monkeypatch.setattr("sqlqueue_app.monitoring.snapshot.FAILURES_COUNTED", 2)
    text = page().text()
    assert "Failed messages ≥ 2 unresolved" in text
    assert "Failed messages that wait for a decision: ≥ 2." in text
    (level,) = [each for each in read_health(get_settings()).findings if each.check == "failed"]
    assert level.text.startswith("failed messages in error: at least 2;")


def test_exact_number_of_failures_is_no_estimate_in_a_long_error_queue(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    fail(sqlite_database, [failed(f"m-{number}") for number in range(10_001)])
    FailedMessage.objects.exclude(message_id="m-1").update(status=FailureStatus.ARCHIVED)
    assert "Failed messages that wait for a decision: 1." in page().text()


def test_alert_about_failures_counts_messages_like_the_tile(queue_database: QueueDatabase) -> None:
    """The error queue also has the rows of earlier attempts."""
    install(queue_database)
    rows = [failed("m-1"), failed("m-1", at=FAILED_AT + timedelta(minutes=1)), failed("m-2")]
    table(queue_database, "error").send(rows)
    text = page().text()
    assert "Failed messages 2 unresolved" in text
    assert "Failed messages that wait for a decision: 2." in text
    (level,) = [each for each in read_health(get_settings()).findings if each.check == "failed"]
    assert level.text.startswith("failed messages in error: 2;")
    table(queue_database, "error").send([failed("m-3")])
    (level,) = [each for each in read_health(get_settings()).findings if each.check == "failed"]
    assert "failed messages in error: 4" in level.text, "the number of rows, until the new one is indexed"


def test_page_takes_few_statements(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    # While a worker is alive, no page takes samples.
    instance(callback_queue=None)
    client = client_of("viewer")
    client.get(DASHBOARD)
    with CaptureQueriesContext(postgresql_database.connection) as own:
        client.get(DASHBOARD)
    assert len(own) <= 12
