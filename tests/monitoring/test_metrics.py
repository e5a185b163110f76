"""`/sqlqueue/metrics`: access, values and text format."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sqlqueue_app import urls
from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import CheckResult, EndpointTotal, FailedMessage, Operation, PipelineRun
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.support.databases import ROOT, QueueDatabase
from tests.support.delayed_rows import put
from tests.support.filling import HOSTILE, install, instance, message, table
from tests.support.postgresql import ThrowAwayServer
from tests.support.sqlserver import needs

SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)')
TOKEN = "s3cret"
OPEN: dict[str, Any] = {"TOKEN": TOKEN}


def get(token: str | None = TOKEN, accept: str = "*/*", **meta: Any) -> Any:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return Client().get("/sqlqueue/metrics", headers={**headers, "Accept": accept}, **meta)


def samples(text: str) -> dict[str, float]:
    """Each sample by its name and labels; every line must match the format."""
    found, declared = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _hash, _type, name, kind = line.split()
            assert kind in ("gauge", "counter")
            assert name.endswith("_total") is (kind == "counter")
            declared.add(name)
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] in declared
            found[line.rpartition(" ")[0]] = float(match[3])
    assert text.endswith("\n")
    return found


@pytest.mark.parametrize("setting", [None, {}, {"TOKEN": None}, {"NETWORKS": []}])
def test_metrics_without_protection_return_404(sqlite_database: QueueDatabase, setting: Any) -> None:
    install(sqlite_database, METRICS=setting)

    assert get().status_code == 404


def test_token_grants_access(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, METRICS=OPEN)

    answer = get()

    assert answer.status_code == 200
    assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer["Cache-Control"] == "no-store"
    for wrong in (None, "", "S3CRET", TOKEN + "x", "é"):
        refused = get(wrong)
        assert (refused.status_code, refused["WWW-Authenticate"]) == (401, 'Bearer realm="sqlqueue"')
    assert Client().get("/sqlqueue/metrics", headers={"Authorization": TOKEN}).status_code == 401
    assert Client().get("/sqlqueue/metrics", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200
    assert Client().post("/sqlqueue/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 405


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("10.1.2.3", 200),
        ("::ffff:10.1.2.3", 200),
        ("fd00::1", 200),
        ("11.1.2.3", 403),
        ("fe80::1%eth0", 403),
        ("", 403),
        ("unix:", 403),
    ],
)
def test_network_of_the_connection_grants_access(sqlite_database: QueueDatabase, address: str, status: int) -> None:
    install(sqlite_database, METRICS={"NETWORKS": ["10.0.0.0/8", "fd00::/8"]})

    assert get(None, REMOTE_ADDR=address, HTTP_X_FORWARDED_FOR="10.0.0.1").status_code == status


def test_token_and_network_are_both_required(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, METRICS={"TOKEN": TOKEN, "NETWORKS": ["127.0.0.0/8"]})

    assert get().status_code == 200
    assert get(None).status_code == 401
    assert get(REMOTE_ADDR="8.8.8.8").status_code == 403


def test_metrics_match_the_tables(queue_database: QueueDatabase) -> None:
    install(queue_database, METRICS=OPEN)
    sales = table(queue_database, "Sales")
    sales.send([message(age=timedelta(hours=1), body={"secret": "42"}), message(lifetime_ms=-60_000)])
    delayed = DelayedTable(queue_database.alias, delayed_address(address_book_of(get_settings()), "Sales"))
    for due in (datetime(2026, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)):
        delayed.add("{}", b"", due)
    instance(busy={"Sales": 2})
    instance(pid=1, silent=timedelta(minutes=2), callback_queue=None)

    text = get().content.decode()
    found = samples(text)

    queue = '{kind="main",queue="Sales"}'
    assert found[f"sqlqueue_queue_messages{queue}"] == 2
    assert found[f"sqlqueue_queue_expired_messages{queue}"] == 1
    assert 3600 <= found[f"sqlqueue_queue_head_age_seconds{queue}"] < 3700
    assert found[f"sqlqueue_queue_up{queue}"] == 1
    assert found[f"sqlqueue_queue_threads{queue}"] == 3
    assert found['sqlqueue_queue_head_age_seconds{kind="error",queue="error"}'] == 0
    assert found['sqlqueue_delayed_messages{endpoint="Sales"}'] == 2
    assert found['sqlqueue_delayed_overdue_messages{endpoint="Sales"}'] == 1
    assert found['sqlqueue_instances{endpoint="Sales",state="alive"}'] == 1
    assert found['sqlqueue_instances{endpoint="Sales",state="dead"}'] == 1
    assert found['sqlqueue_endpoint_threads{endpoint="Sales"}'] == 4
    assert found['sqlqueue_endpoint_busy_threads{endpoint="Sales"}'] == 2
    assert found['sqlqueue_failed_messages{status="unresolved"}'] == 0
    assert found['sqlqueue_operations{state="running"}'] == 0
    assert "secret" not in text


def test_delayed_message_is_overdue_after_a_minute_as_on_the_pages(queue_database: QueueDatabase) -> None:
    install(queue_database, METRICS=OPEN)
    put(queue_database, timedelta(seconds=-3))
    assert samples(get().content.decode())['sqlqueue_delayed_overdue_messages{endpoint="Sales"}'] == 0


def test_failing_checks_are_those_of_the_pages(queue_database: QueueDatabase) -> None:
    install(queue_database, METRICS=OPEN)
    instance(silent=timedelta(minutes=5))
    now = datetime.now(UTC)
    # The results of the worker that died.
    for name in ("instances", "receivers"):
        CheckResult.objects.create(name=f"sqlqueue.{name}", since=now, checked_at=now - timedelta(minutes=5))
    found = samples(get().content.decode())
    failing = [name for name, value in found.items() if name.startswith("sqlqueue_check_failing") and value]
    assert failing == ['sqlqueue_check_failing{check="sqlqueue.instances",subject="Sales on here (4711)"}']


def test_counter_counts_all_written_rows(queue_database: QueueDatabase) -> None:
    needs(queue_database.vendor, "IDENT_CURRENT of a name with its database")
    install(queue_database, METRICS=OPEN)
    sales, name = table(queue_database, "Sales"), 'sqlqueue_queue_rows_written_total{kind="main",queue="Sales"}'
    sales.send([message(), message()])
    before = samples(get().content.decode())[name]

    sales.purge()
    sales.send([message()])

    assert samples(get().content.decode())[name] - before == 1


def test_endpoint_totals_are_counted(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, METRICS=OPEN)
    EndpointTotal.objects.create(endpoint="Sales", instance="here", handled=3, failures=1, processing_seconds=1.5)

    found = samples(get().content.decode())

    assert found['sqlqueue_endpoint_handled_total{endpoint="Sales",instance="here"}'] == 3
    assert found['sqlqueue_endpoint_failures_total{endpoint="Sales",instance="here"}'] == 1
    assert found['sqlqueue_endpoint_processing_seconds_total{endpoint="Sales",instance="here"}'] == 1.5


def test_failed_messages_and_operations_are_counted(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, METRICS=OPEN)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for number, status in enumerate((1, 1, 4)):
        FailedMessage.objects.create(
            id=f"00000000-0000-0000-0000-00000000000{number}",
            status=status,
            status_at=now,
            queue="error",
            message_id="x",
            first_failed_at=now,
            failed_at=now,
        )
    Operation.objects.create(id="00000000-0000-0000-0000-000000000001", kind="retry", requested_at=now)

    found = samples(get().content.decode())

    assert found['sqlqueue_failed_messages{status="unresolved"}'] == 2
    assert found['sqlqueue_failed_messages{status="archived"}'] == 1
    assert found['sqlqueue_operations{state="waiting"}'] == 1


def test_missing_table_is_down_and_has_no_values(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={"Sales": {}}, METRICS=OPEN)

    found = samples(get().content.decode())

    assert found['sqlqueue_queue_up{kind="main",queue="Sales"}'] == 0
    assert not any(name.startswith("sqlqueue_queue_messages{") for name in found)


def test_names_are_escaped(sqlite_database: QueueDatabase) -> None:
    name = f'a"b\\c\n{HOSTILE}'
    install(sqlite_database, ENDPOINTS={name: {"CALLBACKS": False}}, METRICS=OPEN)

    found = samples(get().content.decode())

    assert found[f'sqlqueue_queue_up{{kind="main",queue="a\\"b\\\\c\\n{HOSTILE}"}}'] == 1


def test_openmetrics_format_has_the_same_metrics(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, METRICS=OPEN)
    EndpointTotal.objects.create(endpoint="Sales", instance="here", handled=3)

    answer = get(accept="application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")

    assert answer["Content-Type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    read = {each.name: each for each in text_string_to_metric_families(answer.content.decode())}  # type: ignore[no-untyped-call]
    plain = re.findall(r"^# TYPE (\w+?)(?:_total)? (\w+)$", get().content.decode(), re.MULTILINE)
    assert [(each.name, each.type) for each in read.values()] == plain
    (sample,) = read["sqlqueue_endpoint_handled"].samples
    assert (sample.name, sample.value) == ("sqlqueue_endpoint_handled_total", 3)


def test_missing_extra_is_named(sqlite_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    install(sqlite_database, METRICS=OPEN)
    monkeypatch.setattr(urls, "find_spec", lambda name: None)

    answer = get()

    assert (answer.status_code, get(None).status_code) == (500, 401)
    assert answer.content == b"prometheus-client is not installed: run pip install 'django-sqlqueue[metrics]'"


def test_unavailable_database_returns_503(postgresql_server: ThrowAwayServer, postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, METRICS=OPEN)
    postgresql_server.stop()
    try:
        answer = get()
    finally:
        postgresql_server.start()

    assert (answer.status_code, answer.content) == (503, b"the database cannot be reached")


def test_metrics_match_the_documentation(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, METRICS=OPEN)
    instance()
    EndpointTotal.objects.create(endpoint="Sales", instance="here", handled=3)
    CheckResult.objects.create(name="x", since=datetime(2026, 1, 1, tzinfo=UTC), checked_at=datetime(2026, 1, 1, tzinfo=UTC))
    then = datetime(2026, 1, 1, tzinfo=UTC)
    PipelineRun.objects.create(started_at=then, heartbeat_at=then, ended_at=then, state="ended", pid=7, batches=1)
    table(sqlite_database, "Sales").send([message()])  # SQLite counts rows only once a table has had one
    page = (ROOT / "docs" / "howto" / "monitor.md").read_text("utf-8")

    documented = re.findall(r"^\| `(sqlqueue_\w+)`", page, re.MULTILINE)

    assert sorted(documented) == sorted(re.findall(r"^# TYPE (\w+) ", get().content.decode(), re.MULTILINE))
