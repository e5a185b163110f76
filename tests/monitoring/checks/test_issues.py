"""Issues: one for each condition, the same in the overview and in `sqlqueue_health`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.headers import EXCEPTION_TYPE
from sqlqueue_app.models import CheckResult, EndpointExpectation, QueueSample
from sqlqueue_app.monitoring.check_results import read_results
from sqlqueue_app.monitoring.health import Issue, Level, current_issues, read_health
from sqlqueue_app.monitoring.snapshot import MINUTES, Snapshot
from sqlqueue_app.status.overview import read_status
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.installation import subscription_address
from tests.monitoring.checks.watchers import MINUTE, Bench, recorded_events
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import install, instance, message, table
from tests.support.pages import Markup, client_of


def issues(database: QueueDatabase, bench: Bench) -> list[Issue]:
    settings = get_settings()
    snapshot = Snapshot(settings, bench.now, status=read_status(settings))
    return current_issues(snapshot, read_results(database.alias, bench.now))


def overview() -> str:
    text = Markup(client_of("viewer").get("/admin/sqlqueue_app/dashboard/").content.decode()).text()
    return text.partition("Needs attention")[2].partition(" Now ")[0]


def alert_links() -> list[str]:
    """The links of the alerts on the overview."""
    html = client_of("viewer").get("/admin/sqlqueue_app/dashboard/").content.decode()
    return Markup(html.partition('<ul class="sq-plain sq-alerts">')[2].partition("</ul>")[0]).links


def test_condition_found_live_and_by_a_worker_is_one_issue(bench: Bench) -> None:
    table(bench.database, "Sales").send([message()])
    bench.samples("Sales", waiting=1)
    bench.first.run_due()
    assert CheckResult.objects.get(name="sqlqueue.receivers", failing=True).subject == "Sales"
    bench.now += MINUTE

    (issue,) = issues(bench.database, bench)

    assert (issue.name, issue.outcome.endpoint) == ("sqlqueue.receivers", "Sales")
    assert (issue.is_live, issue.since) == (True, bench.now - MINUTE)
    assert [each.check for each in read_health().findings] == ["no_live_instance"]
    assert overview().count("Sales") == 1


def test_growth_belongs_to_the_number_of_messages_beside_it(bench: Bench) -> None:
    row = instance(callback_queue=None, threads={"Sales": 0})
    row.paused, row.paused_by = True, "anna"
    row.save()
    table(bench.database, "Sales").send([message() for _ in range(200)])
    bench.samples("Sales", waiting=200)
    for number in range(2, 11):
        at = MINUTES.start_of(bench.now) - number * MINUTE
        QueueSample.objects.create(queue="Sales", seconds=60, taken_at=at, waiting=220 - 20 * number, most_waiting=0)
    bench.first.run_due()
    assert "messages waiting: 200, 180 more than 10 minutes ago." in overview()
    table(bench.database, "Sales").send([message() for _ in range(30)])
    assert "messages waiting: 230, 210 more than 10 minutes ago." in overview()
    table(bench.database, "Sales").purge()
    table(bench.database, "Sales").send([message()])
    assert "messages waiting: 1." in overview(), "the queue is shorter than when the worker sampled it"


def test_muted_condition_is_no_issue(bench: Bench) -> None:
    instance(endpoint="Billing", callback_queue=None, threads={"Billing": 1}, silent=timedelta(minutes=5))
    table(bench.database, "Sales").send([message()])
    bench.samples("Sales", waiting=1)
    bench.first.run_due()
    assert [each.level for each in read_health().findings] == [Level.CRITICAL, Level.WARNING]

    CheckResult.objects.filter(failing=True).update(muted_until=bench.now + timedelta(days=1))

    assert issues(bench.database, bench) == []
    assert read_health().findings == ()
    assert "Nothing needs attention." in overview()


def test_stored_finding_is_reported_as_an_issue(bench: Bench) -> None:
    instance()
    name = subscription_address(address_book_of(get_settings())).table
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f'DROP TABLE "{name}"')
    bench.first.run_due()

    (found,) = read_health().findings

    assert (found.level, found.check) == (Level.WARNING, "check")
    assert name in found.text
    assert name in overview()


def test_every_failing_result_is_an_issue(bench: Bench) -> None:
    instance()
    CheckResult.objects.bulk_create(
        CheckResult(
            name="shop.stock", subject=f"shelf {number}", failing=True, since=bench.now, checked_at=bench.now, every_seconds=60,
            details={"text": "empty"},
        )
        for number in range(150)
    )  # fmt: skip

    assert {each.outcome.subject for each in issues(bench.database, bench)} >= {f"shelf {number}" for number in range(150)}


def test_process_that_only_receives_replies_does_not_count_for_the_minimum(bench: Bench) -> None:
    EndpointExpectation.objects.create(endpoint="Sales", minimum=1, changed_at=bench.now)
    instance(threads={"Sales.here": 1})
    bench.first.run_due()

    assert bench.failing("minimums") == {"Sales": "Live instances of Sales: 0, expected at least 1."}
    assert [each.check for each in read_health().findings] == ["instances"]
    assert "Endpoint Sales : Below its minimum: 0 of 1 expected processes are alive." in overview()


def test_lost_process_of_two_endpoints_is_one_issue(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={name: {"CALLBACKS": False} for name in ("Sales", "Billing", "Other")})
    for endpoint in ("Sales", "Billing"):
        instance(endpoint=endpoint, callback_queue=None, threads={endpoint: 1}, silent=timedelta(minutes=2))
        table(queue_database, endpoint).send([message()])

    (found,) = read_health().findings

    assert found.check == "dead_instances"
    assert "the process 4711 of Billing, Sales on here is dead" in found.text
    assert "messages waiting: 2, and no live instance receives them" in found.text
    assert [len(read_health(endpoints=[name]).findings) for name in ("Sales", "Billing", "Other")] == [1, 1, 0]


def test_alert_about_a_process_links_its_endpoint_with_the_most_messages(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={name: {"CALLBACKS": False} for name in ("Billing", "Reports", "Sales")})
    for endpoint in ("Billing", "Reports", "Sales"):
        instance(endpoint=endpoint, callback_queue=None, threads={endpoint: 1}, silent=timedelta(minutes=2))
    table(queue_database, "Reports").send([message()])
    table(queue_database, "Sales").send([message(), message()])
    assert "Process Billing, Reports, Sales on here (4711) : " in overview()
    assert alert_links() == ["/admin/sqlqueue_app/endpoint/Sales/"]


def test_alert_about_failures_links_their_group_or_the_list_of_groups(queue_database: QueueDatabase) -> None:
    install(queue_database)
    (failed, _other) = fail(queue_database, [failed_row(), failed_row()])
    assert "Failed messages that wait for a decision: 2. The newest: shop.errors.OutOfStock" in overview()
    assert alert_links() == [f"/admin/sqlqueue_app/failedmessage/group/{failed.exception_group}/"]
    fail(queue_database, [failed_row(more={EXCEPTION_TYPE: "shop.errors.RegisterJammed"})])
    assert "Failed messages that wait for a decision: 3 in 2 groups. The newest: shop.errors.RegisterJammed" in overview()
    assert alert_links() == ["/admin/sqlqueue_app/failedmessage/"]


def test_tile_of_instances_has_the_severity_of_their_alert(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance(callback_queue=None)
    instance(callback_queue=None, endpoint="Billing", threads={"Billing": 1}, silent=timedelta(minutes=5))

    def level() -> str:
        html = client_of("viewer").get("/admin/sqlqueue_app/dashboard/").content.decode()
        (tile,) = [each for each in re.findall(r"<li.*?</li>", html, re.DOTALL) if "alive; 1 dead" in each]
        return " ".join(sorted(set(re.findall(r"sq-(warning|error|ok)", tile))))

    assert level() == "warning"
    EndpointExpectation.objects.create(endpoint="Sales", minimum=2, changed_at=datetime.now(UTC))
    assert level() == "error"


def test_process_without_receive_threads_is_no_issue_unless_paused(queue_database: QueueDatabase) -> None:
    """In the model `monitor` an idle queue has no receive thread."""
    install(queue_database, ENDPOINTS={"Sales": {"CALLBACKS": False}})
    row = instance(callback_queue=None, threads={"Sales": 0})
    table(queue_database, "Sales").send([message()])
    assert read_health().findings == ()
    row.paused = True
    row.save()
    assert [each.check for each in read_health().findings] == ["paused"]


def test_finding_with_a_new_cause_ends_without_an_event(bench: Bench) -> None:
    bench.samples("Sales", waiting=1)
    bench.first.run_due()
    assert set(bench.failing("receivers")) == {"Sales"}
    instance(silent=timedelta(minutes=5))
    bench.pass_time(MINUTE)
    bench.samples("Sales", waiting=1)
    bench.first.run_due()
    assert bench.failing("receivers") == {}
    assert recorded_events() == [("check_failed", "Sales"), ("instance_lost", "Sales on here (4711)")]
