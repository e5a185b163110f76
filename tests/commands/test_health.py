"""`sqlqueue_health`: exit codes, findings, performance data."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command

import sqlqueue_app.monitoring.health
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.management.output import health_lines, nagios_line
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.models import FailedMessage
from sqlqueue_app.models.failures import FailureStatus
from sqlqueue_app.monitoring.health import Health, HealthFinding, Level
from sqlqueue_app.status.endpoints import set_minimum
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.overview import read_status
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address, install_tables
from tests.commands.running import refused, run
from tests.support.databases import ROOT, QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import HOSTILE, install, instance, message, row, table
from tests.support.postgresql import ThrowAwayServer
from tests.support.tables import execute

WORKS = {"Sales": 3, "Sales.Priority": 1, "Sales.here": 1}
HOUR = timedelta(hours=1)


def health(*arguments: str, form: str = "text", **options: Any) -> tuple[int, str]:
    """The exit code and the output."""
    out = io.StringIO()
    try:
        call_command("sqlqueue_health", *arguments, format=form, stdout=out, **options)
    except SystemExit as ended:
        return int(str(ended.code)), out.getvalue()
    return 0, out.getvalue()


def checks(*arguments: str) -> tuple[int, dict[str, str]]:
    """The exit code, and the level of each check with a finding."""
    code, out = health(*arguments, form="json")
    return code, {each["check"]: each["status"] for each in json.loads(out)["findings"]}


def delay(database: QueueDatabase, due: datetime) -> None:
    DelayedTable(database.alias, delayed_address(address_book_of(get_settings()), "Sales")).add("{}", b"", due)


def test_nothing_is_wrong(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message()])
    delay(queue_database, datetime(2100, 1, 1, tzinfo=UTC))
    instance(threads=WORKS)

    assert checks() == (0, {})
    assert health() == (0, "OK: 4 queues are well\n")


def test_missing_tables_are_critical(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}})

    code, out = health()

    assert code == 2
    assert out.startswith("CRITICAL\ncritical: queue Sales: ")
    assert checks() == (2, {"missing": "critical"})


def test_messages_without_receiver_are_critical(queue_database: QueueDatabase) -> None:
    install(queue_database)
    assert checks() == (0, {})

    table(queue_database, "Sales").send([message()])
    assert checks() == (2, {"no_live_instance": "critical"})

    # a process that only waits for replies does not receive from the queue
    instance(threads={"Sales.here": 1})
    assert checks() == (2, {"no_live_instance": "critical"})

    instance(threads=WORKS, pid=4712, callback_queue=None)
    assert checks() == (0, {})
    table(queue_database, "Sales.Priority").send([message()])
    assert checks("--queue", "Sales.Priority") == (0, {})


def test_dead_instances_are_a_warning(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance(threads=WORKS, silent=timedelta(minutes=2))

    code, out = health()

    assert (code, out.splitlines()[0]) == (1, "WARNING")
    assert "the process 4711 of Sales on here is dead: no heartbeat for 12" in out


def test_a_delayed_message_that_has_just_become_due_is_not_overdue(queue_database: QueueDatabase) -> None:
    """The next poll of a mover delivers it. The checks of the workers also allow a minute."""
    install(queue_database)
    delay(queue_database, datetime.now(UTC) - timedelta(seconds=5))

    assert checks("--max-overdue", "0") == (0, {})


def test_overdue_delayed_messages_are_a_warning(queue_database: QueueDatabase) -> None:
    install(queue_database)
    delay(queue_database, datetime(2026, 1, 1, tzinfo=UTC))

    assert checks() == (1, {"overdue": "warning"})
    assert checks("--max-overdue", "1") == (0, {})
    assert checks("--max-overdue", "0") == (2, {"overdue": "critical"})


def test_a_number_of_overdue_messages_beyond_those_counted_is_not_exact(
    sqlite_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(sqlite_database)
    monkeypatch.setattr(sqlqueue_app.monitoring.health, "EXACT_COUNT_LIMIT", 2)

    def overdue() -> tuple[float, bool]:
        measures = json.loads(health("--max-overdue", "1", form="json")[1])["measures"]
        (found,) = [each for each in measures if each["name"] == "overdue" and each["subject"] == "Sales"]
        return found["value"], found["exact"]

    delay(sqlite_database, datetime(2026, 1, 1, tzinfo=UTC))
    delay(sqlite_database, datetime(2100, 1, 1, tzinfo=UTC))
    delay(sqlite_database, datetime(2100, 1, 1, tzinfo=UTC))
    assert overdue() == (1, True)
    delay(sqlite_database, datetime(2026, 1, 1, tzinfo=UTC))
    delay(sqlite_database, datetime(2026, 1, 1, tzinfo=UTC))
    assert overdue() == (2, False)
    assert "Sales: about 2 overdue delayed messages" in health("--max-overdue", "1")[1]


def test_delayed_table_of_another_schema_is_not_checked(postgresql_database: QueueDatabase) -> None:
    """Another project may have an endpoint of the same name there."""
    install(postgresql_database)
    execute(postgresql_database, "CREATE SCHEMA theirs")
    theirs = QueueAddress("Sales.Delayed", "theirs", form="postgresql")
    install_tables(postgresql_database.alias, [PlannedTable(TableKind.DELAYED, theirs)])
    DelayedTable(postgresql_database.alias, theirs).add("{}", b"", datetime(2026, 1, 1, tzinfo=UTC))

    assert checks("--max-overdue", "0") == (0, {})
    assert [each.endpoint for each in read_status(get_settings()).delayed] == list(get_settings().senders)

    delay(postgresql_database, datetime(2026, 1, 1, tzinfo=UTC))
    assert checks("--max-overdue", "0") == (2, {"overdue": "critical"})


def test_failed_messages_count_until_they_are_archived(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "error").send([message(age=HOUR), message()])

    assert checks("--max-age", "10", "--max-length", "1") == (1, {"failed": "warning"})
    assert checks("--max-failed", "5:10") == (0, {})
    assert checks("--max-failed", "1:2") == (1, {"failed": "warning"})
    assert checks("--max-failed", "1") == (2, {"failed": "critical"})
    assert checks("--max-failed", "9", "--max-age", "10", "--queue", "error") == (2, {"age": "critical"})

    archive()
    assert checks() == (1, {"failed": "warning"})
    archive()
    assert checks() == (0, {})


def test_failed_messages_of_the_named_endpoint_count_with_several_error_queues(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {}, "Billing": {"ERROR_QUEUE": "billing_errors"}})
    fail(queue_database, [failed_row()], "billing_errors")

    assert checks() == (1, {"failed": "warning"})
    assert checks("--endpoint", "Billing") == (1, {"failed": "warning"})
    assert checks("--queue", "billing_errors") == (1, {"failed": "warning"})
    assert checks("--endpoint", "Sales") == (0, {})
    assert checks("--queue", "Billing") == (0, {})


def archive() -> None:
    """Simulate the archiving of one message in the error queue."""
    known = FailedMessage.objects.count()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    FailedMessage.objects.create(
        id=uuid.UUID(int=known + 1),
        status=FailureStatus.ARCHIVED,
        status_at=now,
        queue="error",
        row_version=known + 1,
        message_id="x",
        first_failed_at=now,
        failed_at=now,
    )


def test_missing_index_is_a_warning(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    with sqlite_database.connection.cursor() as cursor:
        cursor.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'Sales' AND sql LIKE '%Expires%'")
        for (name,) in cursor.fetchall():
            cursor.execute(f'DROP INDEX "{name}"')

    assert checks() == (1, {"no_expires_index": "warning"})


def test_limits_have_a_warning_and_a_critical_value(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message(age=HOUR), message(), message(lifetime_ms=-60_000)])
    instance(threads=WORKS)

    assert checks("--max-length", "2:3") == (1, {"length": "warning"})
    assert checks("--max-length", "2") == (2, {"length": "critical"})
    assert checks("--max-length", "3") == (0, {})
    assert checks("--max-age", "3000:9000") == (1, {"age": "warning"})
    assert checks("--max-age", "3599.5") == (2, {"age": "critical"})
    assert checks("--max-expired", "0:1") == (1, {"expired": "warning"})
    assert checks("--min-instances", "1") == (0, {})
    assert checks("--min-instances", "2:1") == (1, {"instances": "warning"})
    assert checks("--min-instances", "2", "--max-length", "0:1") == (2, {"instances": "critical", "length": "critical"})
    assert checks("--queue", "error", "--max-length", "0") == (0, {})
    assert checks("--endpoint", "Sales", "--max-length", "0") == (2, {"length": "critical"})


def test_configured_minimums_are_checked(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance(threads=WORKS)
    set_minimum("Sales", 1, actor=Actor("anna"))
    assert checks() == (0, {})
    set_minimum("Sales", 2, actor=Actor("anna"))
    assert checks() == (2, {"instances": "critical"})
    assert checks("--endpoint", "Sales") == (2, {"instances": "critical"})
    assert checks("--min-instances", "1") == (0, {}), "the option takes precedence"
    set_minimum("Sales", 0, actor=Actor("anna"))
    set_minimum("Elsewhere", 1, actor=Actor("anna"))
    assert checks() == (2, {"instances": "critical"})
    assert checks("--endpoint", "Sales") == (0, {})


def test_no_instance_is_expected_of_an_endpoint_that_only_sends(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {}, "Site": {"HANDLERS": []}}, SEND_AS="Site")
    instance(threads=WORKS)
    assert checks("--min-instances", "1") == (0, {})
    assert checks("--min-instances", "1", "--endpoint", "Site") == (2, {"instances": "critical"})


def test_unknown_age_is_unknown_if_limited(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([row("not json")])
    instance(threads=WORKS)

    assert checks() == (0, {})
    assert checks("--max-age", "10") == (3, {"age": "unknown"})


def test_nagios_gets_one_line_with_performance_data(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message(), message()])
    instance(threads=WORKS)

    code, out = health("--max-length", "0:1", "--min-instances", "1", "--endpoint", "Sales", form="nagios")

    text, _, data = out.partition(" | ")
    assert code == 2
    assert text == "SQLQUEUE CRITICAL - Sales: 2 messages waiting"
    assert out.count("\n") == 1
    assert "'Sales length'=2;0;1;0 " in data
    assert "'Sales.Priority length'=0;0;1;0 " in data
    assert "'error failed'=0;0;;0" in data
    assert "'Sales instances'=1;;1:;0" in data
    assert health(form="nagios")[1].startswith("SQLQUEUE OK - 4 queues are well | 'Sales length'=2;;;0 'Sales age'=")


def test_names_are_escaped_in_the_line(sqlite_database: QueueDatabase) -> None:
    name = f"it's a=b|c\n{HOSTILE}"
    install(sqlite_database, ENDPOINTS={name: {"CALLBACKS": False}})
    table(sqlite_database, name).send([message()])

    _code, out = health(form="nagios")

    assert out.count("\n") == 1
    assert out.count("|") == 1
    assert "'it''s a_b/c\\n" in out


def test_error_of_the_database_is_one_line() -> None:
    finding = HealthFinding(Level.CRITICAL, "instances", "", 'relation "x" does not exist\nLINE 1: SELECT\n               ^')

    assert list(health_lines(Health((finding,))))[1] == 'critical: relation "x" does not exist LINE 1: SELECT ^'
    assert nagios_line(Health((finding,))) == 'SQLQUEUE CRITICAL - relation "x" does not exist LINE 1: SELECT ^'


def test_json_document_agrees(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message()])

    code, out = health("--max-length", "5:7", form="json")
    document = json.loads(out)

    assert (code, document["status"], document["exit_code"]) == (2, "critical", 2)
    assert {
        "subject": "Sales", "name": "length", "value": 1, "unit": "", "exact": True, "warning": 5, "critical": 7,
    } in document["measures"]  # fmt: skip
    page = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8").partition("## sqlqueue_health")[2]
    keys = {*document, *document["findings"][0], *document["measures"][0]}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_length": "many"}, "--max-length: expected a whole number of 0 or more"),
        ({"max_length": "1:2:3"}, "--max-length: expected a whole number"),
        ({"max_length": "2:1"}, "--max-length: expected a warning limit of at most"),
        ({"max_age": "nan"}, "--max-age: expected a number"),
        ({"max_failed": -1}, "--max-failed: expected a whole number"),
        ({"min_instances": "1:2"}, "--min-instances: expected a warning limit of at least"),
        ({"queue": "Salse"}, "there is no queue 'Salse' .*'Sales'"),
        ({"endpoint": "Salse"}, "endpoint 'Salse' is not in .*'Sales'"),
        ({"format": "xml"}, "--format: invalid choice"),
    ],
)
def test_wrong_arguments_are_unknown(sqlite_database: QueueDatabase, options: dict[str, Any], expected: str) -> None:
    install(sqlite_database)

    with pytest.raises(CommandError, match=expected) as refusal:
        call_command("sqlqueue_health", **options)
    assert refusal.value.returncode == 3


def test_settings_without_endpoints_and_wrong_settings_are_unknown(sqlite_database: QueueDatabase) -> None:
    endpoints: list[dict[str, Any]] = [{}, {"Sales": {"BATCH_SIZE": 0}}]
    for wrong in endpoints:
        sqlite_database.configure(ENDPOINTS=wrong)
        with pytest.raises(CommandError) as refusal:
            call_command("sqlqueue_health")
        assert refusal.value.returncode == 3


def test_a_wrong_argument_on_a_command_line_is_one_line_and_unknown(sqlite_database: QueueDatabase) -> None:
    assert "--max-length" in refused(run(sqlite_database, "sqlqueue_health", "--max-length", "many"), 3)


def test_unavailable_database_is_unknown(postgresql_server: ThrowAwayServer, postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    postgresql_server.stop()
    try:
        line = refused(run(postgresql_database, "sqlqueue_health"), 3)
        nagios = run(postgresql_database, "sqlqueue_health", "--format", "nagios")
    finally:
        postgresql_server.start()

    assert "failed to" in line
    assert nagios.code == 3
    assert nagios.out.startswith("SQLQUEUE UNKNOWN - ")
    assert nagios.out.count("\n") == 1
