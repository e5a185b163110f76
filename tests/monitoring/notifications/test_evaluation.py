"""Notification rules report each change once, throttled, by one of many processes, and lose nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.index import catch_up
from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import (
    CheckResult,
    EndpointExpectation,
    FailedMessage,
    FailureGroup,
    FailureStatus,
    NotificationDelivery,
    QueueSample,
)
from sqlqueue_app.monitoring import rules
from sqlqueue_app.monitoring.notifying import sentence
from sqlqueue_app.monitoring.rules import GROUPED_BY, Evaluator
from sqlqueue_app.status.queues import address_of_queue
from tests.monitoring.notifications.rules import START, Clock, rule, sample, sent_changes, state
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import install, instance, table


def test_long_queue_is_reported_once_until_it_was_short(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock, throttle_seconds=0)
    for waiting in (10, 11, 5_000, 12, 10, 3, 11, 11):
        sample(clock, waiting=waiting)
        sample(clock, "Sales.Priority", 1)
        evaluator.evaluate()
        clock.after(10)
    assert sent_changes() == [[("raised", "Sales")], [("resolved", "Sales")], [("raised", "Sales")]]
    assert list(state(made).raised) == ["Sales"]
    first = NotificationDelivery.objects.earliest("created_at")
    assert first.payload["changes"][0] == {
        "change": "raised", "subject": "Sales", "value": 11, "threshold": 10.0, "at": (START + timedelta(seconds=10)).isoformat(),
    }  # fmt: skip
    assert (first.rule, first.channel, first.target, first.state, first.is_test) == (
        made,
        "mail",
        "ops@example.com",
        "waiting",
        False,
    )


def test_throttled_changes_are_combined(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, throttle_seconds=300)
    sample(clock, "Sales", 11)
    evaluator.evaluate()
    for name, waiting in (("A", 20), ("B", 20), ("A", 0), ("Sales", 0), ("Sales", 30)):
        clock.after(10)
        for each in QueueSample.objects.order_by("queue").values_list("queue", flat=True).distinct():
            sample(clock, each, QueueSample.objects.filter(queue=each).latest("taken_at").waiting)
        sample(clock, name, waiting)
        evaluator.evaluate()
    assert sent_changes() == [[("raised", "Sales")]]
    clock.now = START + timedelta(seconds=300)
    evaluator.evaluate()
    assert sent_changes()[1:] == [[("raised", "A"), ("raised", "B"), ("resolved", "A"), ("resolved", "Sales"), ("raised", "Sales")]]
    assert NotificationDelivery.objects.latest("created_at").payload["raised"] == ["B", "Sales"]
    clock.after(1800)
    evaluator.evaluate()
    assert len(sent_changes()) == 2


def test_long_list_of_changes_is_cut_and_counted(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock)
    for number in range(rules.MAX_LISTED + 7):
        sample(clock, f"Q{number:03}", 11)
    evaluator.evaluate()
    payload = NotificationDelivery.objects.get().payload
    assert (len(payload["changes"]), payload["more"], payload["raised_count"]) == (100, 7, 107)
    assert len(state(made).raised) == 107


def test_clock_set_back_does_not_delay_notifications(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, throttle_seconds=3600)
    sample(clock, waiting=11)
    evaluator.evaluate()
    clock.after(-7200)
    sample(clock, waiting=0)
    evaluator.evaluate()
    assert sent_changes() == [[("resolved", "Sales")], [("raised", "Sales")]]


def test_rule_covers_only_backlogs_unless_it_names_a_queue(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, name="all")
    rule(clock, name="errors", subject="error")
    for name in ("error", "Sales.Delayed", "Other"):
        sample(clock, name, 50)
    evaluator.evaluate()
    assert sorted(sent_changes()) == [[("raised", "Other")], [("raised", "error")]]


def test_old_samples_are_ignored(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock, throttle_seconds=0)
    sample(clock, waiting=11)
    evaluator.evaluate()
    for _ in range(7):
        clock.after(600)
        evaluator.evaluate()
    assert sent_changes() == [[("raised", "Sales")], [("gone", "Sales")]], "the length of a dropped queue is unknown"
    assert state(made).raised == {}


def test_gap_in_the_samples_does_not_resolve_an_alert(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock, throttle_seconds=0)
    sample(clock, waiting=11)
    evaluator.evaluate()
    clock.after(1800)
    evaluator.evaluate()
    assert "missing_since" in state(made).raised["Sales"]
    sample(clock, waiting=11)
    clock.after(3000)
    sample(clock, waiting=11)
    evaluator.evaluate()
    assert "missing_since" not in state(made).raised["Sales"]
    clock.after(1800)
    evaluator.evaluate()
    assert sent_changes() == [[("raised", "Sales")]]


def test_old_message_triggers_the_rule(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="queue_older", threshold=90.5, throttle_seconds=0)
    # Nothing is known about a first message without a time, so the alert stays.
    for waiting, age, sent in ((1, None, 0), (1, 90.5, 0), (1, 91.0, 1), (1, None, 1), (0, None, 2)):
        sample(clock, waiting=waiting, head_age_seconds=age)
        evaluator.evaluate()
        assert len(sent_changes()) == sent
        clock.after(10)
    assert sent_changes() == [[("raised", "Sales")], [("resolved", "Sales")]]


def test_number_of_failures_triggers_the_rule(queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="failures_above", threshold=1.0, name="all", throttle_seconds=0)
    rule(clock, kind="failures_above", threshold=0.0, name="billing", subject="Billing", throttle_seconds=0)
    rule(clock, kind="failures_above", threshold=0.0, name="sales", subject="Sales", throttle_seconds=0)
    failed = fail(queue_database, [failed_row(), failed_row()])
    evaluator.evaluate()
    assert sorted(sent_changes()) == [[("raised", "")], [("raised", "Sales")]]
    FailedMessage.objects.filter(pk=failed[0].pk).update(status=FailureStatus.ARCHIVED)
    clock.after(10)
    evaluator.evaluate()
    assert sent_changes()[2:] == [[("resolved", "")]]


def test_rule_of_a_queue_counts_what_failed_in_it(queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="failures_above", threshold=0.0, name="here", subject="Sales.Priority", throttle_seconds=0)
    rule(clock, kind="failures_above", threshold=0.0, name="elsewhere", subject="Billing", throttle_seconds=0)
    fail(queue_database, [failed_row(failed_q=address_of_queue("Sales.Priority"))])
    evaluator.evaluate()
    assert sent_changes() == [[("raised", "Sales.Priority")]]


def test_number_that_is_not_counted_to_its_end_is_marked(
    queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MAX_COUNTED", 2)
    rule(clock, kind="failures_above", threshold=1.0)
    fail(queue_database, [failed_row() for _ in range(3)])
    evaluator.evaluate()
    (change,) = NotificationDelivery.objects.get().payload["changes"]
    assert (change["value"], change["exact"]) == (2, False)
    assert sentence("failures_above", change) == "all endpoints: failed messages: ≥ 2; the limit is 1"


def test_new_group_triggers_the_rule(queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock) -> None:
    known = FailureGroup(pk=deterministic_guid("known"), classifier=GROUPED_BY.name, title="known")
    known.first_seen_at = START - timedelta(hours=1)
    known.save(force_insert=True)
    rule(clock, kind="new_group", threshold=None, throttle_seconds=0)
    rule(clock, kind="new_group", threshold=None, name="of another", subject="Billing", throttle_seconds=0)
    evaluator.evaluate()
    assert sent_changes() == []
    clock.after(10)
    table(queue_database, "error").send([failed_row(), failed_row()])
    catch_up(get_settings(), limit=10, now=clock.now)
    for _ in range(3):
        clock.after(10)
        evaluator.evaluate()
    assert sent_changes() == [[("new", "shop.errors.OutOfStock: No stacktrace")]]
    change = NotificationDelivery.objects.get().payload["changes"][0]
    assert FailureGroup.objects.get(pk=change["group"]).classifier == GROUPED_BY.name


def test_group_committed_late_is_reported(evaluator: Evaluator, clock: Clock) -> None:
    def group(name: str, ago: int) -> None:
        FailureGroup.objects.create(
            pk=deterministic_guid(name), classifier=GROUPED_BY.name, title=name, first_seen_at=clock.now - timedelta(seconds=ago)
        )

    made = rule(clock, kind="new_group", threshold=None, throttle_seconds=0)
    clock.after(600)
    group("second", 0)
    evaluator.evaluate()
    group("first", 50)
    clock.after(10)
    evaluator.evaluate()
    assert sent_changes() == [[("new", "second")], [("new", "first")]]
    clock.after(3600)
    group("third", 0)
    evaluator.evaluate()
    assert list(state(made).seen["groups"]) == [str(deterministic_guid("third"))]
    clock.after(10)
    evaluator.evaluate()
    assert len(sent_changes()) == 3


def test_missing_instances_of_an_endpoint_trigger_the_rule(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="instances_below", threshold=None, throttle_seconds=0)
    EndpointExpectation.objects.create(endpoint="Sales", minimum=2, changed_at=START)
    EndpointExpectation.objects.create(endpoint="Billing", minimum=0, changed_at=START)
    first = instance()
    instance(name="dead", callback_queue=None, silent=timedelta(minutes=5))

    def evaluate(times: int) -> None:
        for _ in range(times):
            evaluator.evaluate()
            clock.after(10)

    evaluate(4)
    assert sent_changes() == [], "a deployment may take this long"
    evaluate(1)
    second = instance(name="second", callback_queue=None)
    evaluate(1)
    second.delete()
    evaluate(4)
    second.save(force_insert=True)
    evaluate(1)
    second.delete()
    first.delete()
    evaluate(5)
    assert sent_changes() == [[("raised", "Sales")], [("resolved", "Sales")], [("raised", "Sales")]]
    EndpointExpectation.objects.all().delete()
    evaluate(1)
    assert sent_changes()[3:] == [[("resolved", "Sales")]]


def test_endpoint_whose_minimum_was_removed_has_recovered_with_its_instances(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="instances_below", threshold=None, throttle_seconds=0)
    EndpointExpectation.objects.create(endpoint="Sales", minimum=2, changed_at=START)
    instance()
    for _ in range(5):
        evaluator.evaluate()
        clock.after(10)
    EndpointExpectation.objects.all().delete()
    evaluator.evaluate()
    (change,) = NotificationDelivery.objects.latest("created_at").payload["changes"]
    assert sentence("instances_below", change) == "Sales: recovered; live instances: 1"


def test_instances_below_a_number_trigger_the_rule(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="instances_below", threshold=1.0, throttle_seconds=0)
    rule(clock, kind="instances_below", threshold=3.0, name="of one", subject="Billing", throttle_seconds=0)
    for _ in range(5):
        evaluator.evaluate()
        clock.after(10)
    assert sorted(sent_changes()) == [[("raised", "Billing")], [("raised", "Sales")]], "endpoints of the settings, with none alive"
    assert {each.payload["changes"][0]["value"] for each in NotificationDelivery.objects.all()} == {0}


def test_no_instance_is_expected_of_endpoints_that_only_send(
    queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock
) -> None:
    install(queue_database, ENDPOINTS={"Sales": {}, "Site": {"HANDLERS": []}}, SEND_AS="Web")
    rule(clock, kind="instances_below", threshold=1.0)
    instance(endpoint="Web", callback_queue="Web.here", threads={"Web.here": 1})
    evaluator = Evaluator(get_settings(), now=clock)
    for _ in range(5):
        evaluator.evaluate()
        clock.after(10)
    assert sent_changes() == [[("raised", "Sales")]]


def test_process_that_only_receives_replies_is_no_live_instance(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="instances_below", threshold=1.0, subject="Sales")
    instance(threads={"Sales.here": 1})
    for _ in range(5):
        evaluator.evaluate()
        clock.after(10)
    assert sent_changes() == [[("raised", "Sales")]]


def test_failing_check_triggers_the_rule(evaluator: Evaluator, clock: Clock) -> None:
    def check(name: str, subject: str = "", **values: Any) -> None:
        defaults = {"failing": True, "checked_at": clock.now, "since": clock.now, **values}
        CheckResult.objects.update_or_create(name=name, subject=subject, defaults=defaults)

    rule(clock, kind="check_failed", threshold=None, throttle_seconds=0)
    rule(clock, kind="check_failed", threshold=None, name="mover alone", subject="mover", throttle_seconds=0)
    check("mover", "Sales")
    check("fine", failing=False)
    check("muted", muted_until=clock.now + timedelta(hours=1))
    evaluator.evaluate()
    assert sent_changes() == [[("raised", "mover: Sales")]] * 2
    clock.after(10)
    check("mover", "Sales", muted_until=clock.now + timedelta(seconds=15))
    evaluator.evaluate()
    assert len(sent_changes()) == 2, "the check is muted"
    clock.after(20)
    evaluator.evaluate()
    assert sent_changes()[2:] == [[("raised", "mover: Sales")]] * 2, "the check still fails after the mute"
    CheckResult.objects.filter(name="mover").delete()
    clock.after(10)
    evaluator.evaluate()
    assert sent_changes()[4:] == [[("resolved", "mover: Sales")]] * 2


def test_problem_explained_by_another_check_has_not_recovered(evaluator: Evaluator, clock: Clock) -> None:
    name, subject = "sqlqueue.receivers", "Sales.Priority"
    made = rule(clock, kind="check_failed", threshold=None, subject=name, throttle_seconds=0)
    failing = CheckResult.objects.create(name=name, subject=subject, failing=True, checked_at=clock.now, since=clock.now)
    evaluator.evaluate()
    # A worker dies: the check of processes reports it instead.
    failing.delete()
    lost = instance(threads={"Sales": 1}, silent=timedelta(minutes=5))
    for _ in range(6):
        clock.after(10)
        sample(clock, subject, 3)
    evaluator.evaluate()
    assert sent_changes() == [[("raised", f"{name}: {subject}")]]
    assert list(state(made).raised) == [f"{name}: {subject}"]
    lost.delete()
    instance(threads={"Sales": 1, subject: 1})
    clock.after(10)
    evaluator.evaluate()
    assert sent_changes()[1:] == [[("resolved", f"{name}: {subject}")]]
