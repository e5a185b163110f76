"""`sqlqueue_status` prints the numbers from the tables, for people and machines."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management import call_command

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import ScheduleTick
from sqlqueue_app.status.delayed import read_delayed
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.commands.running import PEEK_KEYS, refused, run
from tests.support.databases import ROOT, QueueDatabase
from tests.support.filling import count, install, instance, message, now_of, table
from tests.support.postgresql import ThrowAwayServer
from tests.support.tables import execute

QUEUE_KEYS = {
    "name", "table", "kind", "endpoints", "exists", "messages", "messages_exact", "expiring", "expired", "expiry_exact",
    "head_age_seconds", "head_age_header", "head_age_unknown", "threads", "problem",
}  # fmt: skip
INSTANCE_KEYS = {
    "endpoint", "name", "host", "pid", "alive", "heartbeat_age_seconds", "started_at", "threads", "concurrency", "version",
    "callback_queue", "callback_messages", "callback_messages_exact", "state", "busy", "paused_since",
}  # fmt: skip

SCHEDULE_KEYS = {
    "name", "cron", "send", "next_tick", "last_tick", "last_sent_at", "last_message_id", "last_endpoint",
    "when", "defined_in", "enabled", "late_since", "error",
}  # fmt: skip


def document() -> Any:
    out = io.StringIO()
    call_command("sqlqueue_status", "--format", "json", stdout=out)
    return json.loads(out.getvalue())


def text() -> str:
    out = io.StringIO()
    call_command("sqlqueue_status", stdout=out)
    return out.getvalue()


def test_document_agrees_with_sql(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message(age=timedelta(hours=1), lifetime_ms=each) for each in (None, 3_600_000, -60_000)])
    instance()

    found = document()

    assert set(found) == {"database", "taken_at", "queues", "delayed", "instances", "instances_problem", "schedules"}
    assert all(set(each) == QUEUE_KEYS for each in found["queues"])
    assert all(set(each) == INSTANCE_KEYS for each in found["instances"])
    (sales,) = [each for each in found["queues"] if each["name"] == "Sales"]
    assert (sales["messages"], sales["expiring"], sales["expired"]) == (
        count(queue_database, "Sales"),
        count(queue_database, "Sales", "Expires IS NOT NULL"),
        count(queue_database, "Sales", f"Expires <= {now_of(queue_database)}"),
    )
    assert 3_600 <= sales["head_age_seconds"] < 3_700
    assert found["instances"][0]["alive"] is True


def test_schedules_are_listed_with_their_next_and_their_last_tick(queue_database: QueueDatabase, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    yearly = {"CRON": "0 2 1 1 *", "SEND": "Sales.CloseYear"}
    install(queue_database, SCHEDULES={"yearly": yearly, "never sent": {**yearly, "SEND": "Sales.Ping"}})
    last = datetime(2026, 1, 1, 1, tzinfo=UTC)
    ScheduleTick.objects.using(queue_database.alias).create(
        schedule="yearly", message_type="Sales.CloseYear", tick=last, sent_at=last, message_id="42", endpoint="Sales"
    )

    first, second = document()["schedules"]

    assert set(first) == SCHEDULE_KEYS
    assert (first["name"], first["cron"], first["send"]) == ("yearly", "0 2 1 1 *", "Sales.CloseYear")
    assert first["next_tick"].endswith("-01-01T01:00:00+00:00")
    assert (first["last_tick"], first["last_sent_at"]) == ("2026-01-01T01:00:00+00:00",) * 2
    assert (first["last_message_id"], first["last_endpoint"]) == ("42", "Sales")
    assert second["last_tick"] is None
    (line,) = [line for line in text().splitlines() if line.startswith("yearly")]
    assert line.split()[6:] == ["Sales.CloseYear", first["next_tick"][:10], "02:00", "2026-01-01", "02:00", "Sales"]


def test_delayed_and_overdue_messages_are_counted(queue_database: QueueDatabase) -> None:
    install(queue_database)
    queue_database.configure(SEND_AS="Web")
    address = delayed_address(get_settings().address_book(queue_database.vendor, queue_database.catalog()), "Sales")
    delayed = DelayedTable(queue_database.alias, address)
    for due in (datetime(2026, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)):
        delayed.add("{}", b"", due)

    sales, web = document()["delayed"]

    assert sales == {
        "endpoint": "Sales", "table": delayed.qualified, "exists": True, "waiting": 3, "overdue": 1, "exact": True,
    }  # fmt: skip
    assert (web["endpoint"], web["exists"], web["waiting"]) == ("Web", False, None)
    lines = [line.split() for line in text().splitlines()]
    assert ["Sales", "3", "1", "ok"] in lines
    assert ["Web", "-", "-", "missing"] in lines
    found = [(each.waiting, each.overdue, each.exact) for each in read_delayed(get_settings(), limit=2)]
    assert found == [(2, 1, False), (None, None, True)]


def test_missing_table_is_named_with_the_remedy(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}})

    (sales, _error) = document()["queues"]

    assert sales["exists"] is False
    assert sales["messages"] is None
    assert sales["problem"]["kind"] == "missing"
    assert sales["problem"]["command"] == "python manage.py sqlqueue_install"
    assert "CREATE TABLE" in sales["problem"]["sql"]
    assert "fix it with: python manage.py sqlqueue_install" in text()


def test_missing_own_table_is_one_line_with_the_remedy(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    execute(postgresql_database, "DROP TABLE sqlqueue_app_instance")

    (line,) = [line for line in text().splitlines() if line.startswith("instances: ")]

    assert "\\n" not in line
    assert "fix it with: python manage.py migrate --database postgresql\n" in text()


def test_the_text_lists_queues_and_instances(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message(age=timedelta(days=2, hours=3))])
    instance(silent=timedelta(minutes=2))

    lines = [line.split() for line in text().splitlines()]

    assert ["Sales", "main", "Sales", "1", "0", "0", "2", "d", "3", "h", "-", "ok"] in lines
    (here,) = [line for line in lines if line[:2] == ["Sales", "here"]]
    assert "dead" in here


def test_many_endpoints_of_a_queue_are_counted(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS={f"E{number}": {"CALLBACKS": False} for number in range(6)})

    (line,) = [line for line in text().splitlines() if line.startswith("error")]

    assert line.split() == ["error", "error", "6", "endpoints", "0", "0", "0", "-", "-", "ok"]
    assert document()["queues"][-1]["endpoints"] == [f"E{number}" for number in range(6)]


def test_empty_status_names_the_next_step(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={})

    output = text()

    assert "ENDPOINTS" in output
    assert "run_sqlqueue_worker" in output


def test_unavailable_database_is_one_line(postgresql_server: ThrowAwayServer, postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    postgresql_server.stop()
    try:
        line = refused(run(postgresql_database, "sqlqueue_status"), 1)
    finally:
        postgresql_server.start()

    assert "failed to" in line


def test_a_wrong_argument_is_one_line(sqlite_database: QueueDatabase) -> None:
    assert "--format" in refused(run(sqlite_database, "sqlqueue_status", "--format", "xml"))


def test_the_keys_are_those_of_the_documentation() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")

    missing = [key for key in (*QUEUE_KEYS, *INSTANCE_KEYS, *SCHEDULE_KEYS, *PEEK_KEYS) if f"`{key}`" not in page]

    assert missing == []
