"""Rules of notifications: what they tell, once, not too often, by one process of many, and nothing lost."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import (
    CheckResult,
    Claim,
    EndpointExpectation,
    FailedMessage,
    FailureGroup,
    FailureStatus,
    NotificationDelivery,
    NotificationRule,
    QueueSample,
)
from sqlqueue_app.operations.failure_groups import deterministic_guid
from sqlqueue_app.operations.failure_index import catch_up
from sqlqueue_app.operations.notifications import evaluation
from sqlqueue_app.operations.notifications.conditions import GROUPED_BY, Looks
from sqlqueue_app.operations.notifications.evaluation import Evaluator
from sqlqueue_app.operations.notifications.job import Notifications
from sqlqueue_app.operations.notifications.rule_form import RuleValues
from sqlqueue_app.operations.notifications.rules import change_rule, remove_rule, set_enabled
from sqlqueue_app.receiving.stopping import StopSignal
from tests.operations.failing import fail, failed_row
from tests.operations.filling import install, instance, table
from tests.operations.notifications.rules import START, Clock, rule, sample, told
from tests.support.databases import QueueDatabase
from tests.support.waiting import join_all


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def evaluator(queue_database: QueueDatabase, clock: Clock) -> Evaluator:
    install(queue_database)
    return Evaluator(get_settings(), now=clock)


def state(made: NotificationRule) -> NotificationRule:
    return NotificationRule.objects.get(pk=made.pk)


def test_a_long_queue_is_told_once_until_it_was_short_again(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock, throttle_seconds=0)
    for waiting in (10, 11, 5_000, 12, 10, 3, 11, 11):
        sample(clock, waiting=waiting)
        sample(clock, "Sales.Priority", 1)
        evaluator.evaluate()
        clock.after(10)
    assert told() == [[("raised", "Sales")], [("resolved", "Sales")], [("raised", "Sales")]]
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


def test_what_comes_in_between_is_put_together_and_nothing_is_lost(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, throttle_seconds=300)
    sample(clock, "Sales", 11)
    evaluator.evaluate()
    for name, waiting in (("A", 20), ("B", 20), ("A", 0), ("Sales", 0), ("Sales", 30)):
        clock.after(10)
        for each in QueueSample.objects.order_by("queue").values_list("queue", flat=True).distinct():
            sample(clock, each, QueueSample.objects.filter(queue=each).latest("taken_at").waiting)
        sample(clock, name, waiting)
        evaluator.evaluate()
    assert told() == [[("raised", "Sales")]]
    clock.now = START + timedelta(seconds=300)
    evaluator.evaluate()
    assert told()[1:] == [[("raised", "A"), ("raised", "B"), ("resolved", "A"), ("resolved", "Sales"), ("raised", "Sales")]]
    assert NotificationDelivery.objects.latest("created_at").payload["raised"] == ["B", "Sales"]
    clock.after(1800)
    evaluator.evaluate()
    assert len(told()) == 2


def test_of_very_many_changes_the_number_is_told(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock)
    for number in range(evaluation.TOLD_AT_MOST + 7):
        sample(clock, f"Q{number:03}", 11)
    evaluator.evaluate()
    payload = NotificationDelivery.objects.get().payload
    assert (len(payload["changes"]), payload["more"], payload["raised_count"]) == (100, 7, 107)
    assert len(state(made).raised) == 107


def test_a_clock_that_was_put_back_keeps_nobody_waiting(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, throttle_seconds=3600)
    sample(clock, waiting=11)
    evaluator.evaluate()
    clock.after(-7200)
    sample(clock, waiting=0)
    evaluator.evaluate()
    assert told() == [[("resolved", "Sales")], [("raised", "Sales")]]


def test_only_backlogs_count_unless_a_queue_is_named(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, name="all")
    rule(clock, name="errors", subject="error")
    for name in ("error", "Sales.Delayed", "Other"):
        sample(clock, name, 50)
    evaluator.evaluate()
    assert sorted(told()) == [[("raised", "Other")], [("raised", "error")]]


def test_an_old_sample_says_nothing(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock, throttle_seconds=0)
    sample(clock, waiting=11)
    evaluator.evaluate()
    for _ in range(7):
        clock.after(600)
        evaluator.evaluate()
    assert told() == [[("raised", "Sales")], [("gone", "Sales")]], "of a queue that was dropped nothing is known any more"
    assert state(made).raised == {}


def test_a_pause_of_the_samples_is_no_end_of_what_was_told(evaluator: Evaluator, clock: Clock) -> None:
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
    assert told() == [[("raised", "Sales")]]


def test_an_old_message(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="queue_older", threshold=90.5, throttle_seconds=0)
    for age in (None, 90.5, 91.0, None):
        sample(clock, waiting=1, head_age_seconds=age)
        evaluator.evaluate()
        clock.after(10)
    assert told() == [[("raised", "Sales")], [("resolved", "Sales")]]


def test_failures(queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="failures_above", threshold=1.0, name="all", throttle_seconds=0)
    rule(clock, kind="failures_above", threshold=0.0, name="billing", subject="Billing", throttle_seconds=0)
    rule(clock, kind="failures_above", threshold=0.0, name="sales", subject="Sales", throttle_seconds=0)
    failed = fail(queue_database, [failed_row(), failed_row()])
    evaluator.evaluate()
    assert sorted(told()) == [[("raised", "")], [("raised", "Sales")]]
    FailedMessage.objects.filter(pk=failed[0].pk).update(status=FailureStatus.ARCHIVED)
    clock.after(10)
    evaluator.evaluate()
    assert told()[2:] == [[("resolved", "")]]


def test_new_groups(queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock) -> None:
    known = FailureGroup(pk=deterministic_guid("known"), classifier=GROUPED_BY.name, title="known")
    known.first_seen_at = START - timedelta(hours=1)
    known.save(force_insert=True)
    rule(clock, kind="new_group", threshold=None, throttle_seconds=0)
    rule(clock, kind="new_group", threshold=None, name="of another", subject="Billing", throttle_seconds=0)
    evaluator.evaluate()
    assert told() == []
    clock.after(10)
    table(queue_database, "error").send([failed_row(), failed_row()])
    catch_up(get_settings(), limit=10, now=clock.now)
    for _ in range(3):
        clock.after(10)
        evaluator.evaluate()
    assert told() == [[("new", "shop.errors.OutOfStock: No stacktrace")]]
    change = NotificationDelivery.objects.get().payload["changes"][0]
    assert FailureGroup.objects.get(pk=change["group"]).classifier == GROUPED_BY.name


def test_a_group_that_is_committed_late_is_told(evaluator: Evaluator, clock: Clock) -> None:
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
    assert told() == [[("new", "second")], [("new", "first")]]
    clock.after(3600)
    group("third", 0)
    evaluator.evaluate()
    assert list(state(made).seen["groups"]) == [str(deterministic_guid("third"))]
    clock.after(10)
    evaluator.evaluate()
    assert len(told()) == 3


def test_instances_below_the_minimum_of_each_endpoint(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="instances_below", threshold=None, throttle_seconds=0)
    EndpointExpectation.objects.create(endpoint="Sales", minimum=2, changed_at=START)
    EndpointExpectation.objects.create(endpoint="Billing", minimum=0, changed_at=START)
    first = instance()
    instance(name="dead", callback_queue=None, silent=timedelta(hours=1))

    def look(times: int) -> None:
        for _ in range(times):
            evaluator.evaluate()
            clock.after(10)

    look(4)
    assert told() == [], "a deployment takes so long"
    look(1)
    second = instance(name="second", callback_queue=None)
    look(1)
    second.delete()
    look(4)
    second.save(force_insert=True)
    look(1)
    second.delete()
    first.delete()
    look(5)
    assert told() == [[("raised", "Sales")], [("resolved", "Sales")], [("raised", "Sales")]]
    EndpointExpectation.objects.all().delete()
    look(1)
    assert told()[3:] == [[("resolved", "Sales")]]


def test_instances_below_a_number(evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, kind="instances_below", threshold=1.0, throttle_seconds=0)
    rule(clock, kind="instances_below", threshold=3.0, name="of one", subject="Billing", throttle_seconds=0)
    for _ in range(5):
        evaluator.evaluate()
        clock.after(10)
    assert sorted(told()) == [[("raised", "Billing")], [("raised", "Sales")]], "endpoints of the settings, with none alive"
    assert {each.payload["changes"][0]["value"] for each in NotificationDelivery.objects.all()} == {0}


def test_checks(evaluator: Evaluator, clock: Clock) -> None:
    def check(name: str, subject: str = "", **values: Any) -> None:
        defaults = {"failing": True, "checked_at": clock.now, "since": clock.now, **values}
        CheckResult.objects.update_or_create(name=name, subject=subject, defaults=defaults)

    rule(clock, kind="check_failed", threshold=None, throttle_seconds=0)
    rule(clock, kind="check_failed", threshold=None, name="mover alone", subject="mover", throttle_seconds=0)
    check("mover", "Sales")
    check("fine", failing=False)
    check("muted", muted_until=clock.now + timedelta(hours=1))
    evaluator.evaluate()
    assert told() == [[("raised", "mover: Sales")]] * 2
    clock.after(10)
    check("mover", "Sales", muted_until=clock.now + timedelta(seconds=15))
    evaluator.evaluate()
    assert len(told()) == 2, "nobody wants to hear of it"
    clock.after(20)
    evaluator.evaluate()
    assert told()[2:] == [[("raised", "mover: Sales")]] * 2, "it fails still, and nobody has seen to it"
    CheckResult.objects.filter(name="mover").delete()
    clock.after(10)
    evaluator.evaluate()
    assert told()[4:] == [[("resolved", "mover: Sales")]] * 2


def test_of_many_workers_one_tells(queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock) -> None:
    rule(clock, throttle_seconds=0)
    rounds, workers = 6, 4
    written: list[int] = []
    lengths = iter([11, 0] * rounds)

    def forward() -> None:
        clock.after(10)
        sample(clock, waiting=next(lengths))
        connections.close_all()

    together = threading.Barrier(workers, action=forward)

    def work() -> None:
        mine = Evaluator(get_settings(), now=clock)
        try:
            for _ in range(rounds):
                together.wait(60)
                written.extend(mine.evaluate() for _ in range(2))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    join_all(threads)
    assert sum(written) == rounds
    assert told() == [[("raised", "Sales")], [("resolved", "Sales")]] * (rounds // 2)


def test_who_is_killed_while_he_looks_leaves_nothing_half_done(
    evaluator: Evaluator, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(self: NotificationDelivery, **_: Any) -> None:
        raise Killed

    made = rule(clock)
    sample(clock, waiting=11)
    with monkeypatch.context() as patch:
        patch.setattr(NotificationDelivery, "save", killed)
        with pytest.raises(Killed):
            evaluator.evaluate()
    assert (state(made).raised, told(), list(Claim.objects.filter(name="notifications"))) == ({}, [], [])
    assert Evaluator(get_settings(), now=clock).evaluate() == 1
    assert told() == [[("raised", "Sales")]]


def test_a_rule_that_cannot_be_looked_at_keeps_no_other_from_it(
    evaluator: Evaluator, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rule(clock, name="bad")
    rule(clock, name="good", subject="Sales")
    sample(clock, waiting=11)
    look = Looks.look

    def look_or_fail(self: Looks, each: NotificationRule) -> object:
        if each.name == "bad":
            list(NotificationRule.objects.raw("SELECT * FROM no_such_table"))
        return look(self, each)

    monkeypatch.setattr(Looks, "look", look_or_fail)
    # SQLite says of every mistake that it is one of operation
    if connections["default"].vendor == "sqlite":
        monkeypatch.setattr(Looks, "look", lambda self, each: look(self, each) if each.name != "bad" else 1 / 0)
    evaluator.evaluate()
    assert told() == [[("raised", "Sales")]]
    assert [record.message for record in caplog.records if getattr(record, "event", "") == "notification_rule_failed"] == [
        "the notification rule 'bad' could not be looked at"
    ]


def test_a_rule_that_is_disabled_is_not_looked_at_and_begins_again_when_it_is_enabled(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock, throttle_seconds=0)
    sample(clock, waiting=11)
    evaluator.evaluate()
    set_enabled(made.pk, False, by="bert", now=clock)
    assert (state(made).enabled, state(made).raised, state(made).changed_by) == (False, {}, "bert")
    clock.after(10)
    sample(clock, waiting=0)
    evaluator.evaluate()
    assert len(told()) == 1
    set_enabled(made.pk, True, now=clock)
    clock.after(10)
    sample(clock, waiting=11)
    evaluator.evaluate()
    assert told() == [[("raised", "Sales")]] * 2


def test_a_rule_that_is_changed_tells_again_what_is_over_its_new_threshold(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock, throttle_seconds=0)
    sample(clock, waiting=11)
    evaluator.evaluate()
    values = RuleValues("a rule", "queue_longer", "", 10.0, "mail", "other@example.com", 0)
    change_rule(made.pk, values, by="bert", now=clock)
    clock.after(10)
    evaluator.evaluate()
    assert len(told()) == 1, "only whom it tells has changed"
    assert NotificationDelivery.objects.get().target == "other@example.com", "what waits goes there too"
    change_rule(made.pk, RuleValues("a rule", "queue_longer", "", 5.0, "mail", "other@example.com", 0), now=clock)
    clock.after(10)
    evaluator.evaluate()
    assert told() == [[("raised", "Sales")]] * 2


def test_what_waits_of_a_rule_that_is_deleted_is_given_up(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock)
    sample(clock, waiting=11)
    evaluator.evaluate()
    assert remove_rule(made.pk, now=clock)
    assert not remove_rule(made.pk, now=clock)
    left = NotificationDelivery.objects.get()
    assert (left.rule, left.rule_name, left.state, left.error) == (None, "a rule", "failed", "the rule was deleted")


def test_without_rules_a_worker_asks_for_one_thing_at_every_second_look(queue_database: QueueDatabase, clock: Clock) -> None:
    install(queue_database)
    notifications = Notifications(get_settings(), StopSignal(), now=clock)
    made = rule(clock)
    set_enabled(made.pk, False, now=clock)
    with CaptureQueriesContext(queue_database.connection) as asked:
        assert [notifications.look() for _ in range(4)] == [False] * 4
    assert len(asked) == 2
    set_enabled(made.pk, True, now=clock)
    sample(clock, waiting=11)
    assert notifications.look()
    assert told() == [[("raised", "Sales")]]
    assert notifications.look(), "it waits still"


def test_the_looks_of_many_rules_are_shared(queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock) -> None:
    for number in range(30):
        rule(clock, name=f"{number}", kind=("queue_longer", "queue_older")[number % 2])
    sample(clock, waiting=3)
    with CaptureQueriesContext(queue_database.connection) as asked:
        evaluator.evaluate()
    reads = [each["sql"] for each in asked if each["sql"].startswith("SELECT")]
    assert len(reads) <= 4, reads
