"""One of many processes evaluates the rules, atomically; rules are changed, disabled and deleted."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import Claim, NotificationDelivery, NotificationRule
from sqlqueue_app.monitoring.notifying import Notifications
from sqlqueue_app.monitoring.rules import Evaluator, RuleConditions, RuleValues, change_rule, remove_rule, request_test, set_enabled
from sqlqueue_app.receiving.stopping import StopSignal
from tests.monitoring.notifications.rules import Clock, rule, sample, sent_changes, state
from tests.support.databases import QueueDatabase
from tests.support.filling import install
from tests.support.waiting import run_in_threads


def test_only_one_of_many_workers_notifies(queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock) -> None:
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

    run_in_threads(work, workers)
    assert sum(written) == rounds
    assert sent_changes() == [[("raised", "Sales")], [("resolved", "Sales")]] * (rounds // 2)


def test_killed_evaluation_is_rolled_back(evaluator: Evaluator, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (state(made).raised, sent_changes(), list(Claim.objects.filter(name="notifications"))) == ({}, [], [])
    assert Evaluator(get_settings(), now=clock).evaluate() == 1
    assert sent_changes() == [[("raised", "Sales")]]


def test_failing_rule_does_not_stop_the_others(
    evaluator: Evaluator, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rule(clock, name="bad")
    rule(clock, name="good", subject="Sales")
    sample(clock, waiting=11)
    read = RuleConditions.read

    def read_or_fail(self: RuleConditions, each: NotificationRule) -> object:
        if each.name == "bad":
            list(NotificationRule.objects.raw("SELECT * FROM no_such_table"))
        return read(self, each)

    monkeypatch.setattr(RuleConditions, "read", read_or_fail)
    # SQLite reports every mistake as an OperationalError
    if connections["default"].vendor == "sqlite":
        monkeypatch.setattr(RuleConditions, "read", lambda self, each: read(self, each) if each.name != "bad" else 1 / 0)
    evaluator.evaluate()
    assert sent_changes() == [[("raised", "Sales")]]
    assert [record.message for record in caplog.records if getattr(record, "event", "") == "notification_rule_failed"] == [
        "the notification rule 'bad' could not be evaluated"
    ]


def test_disabled_rule_starts_again_when_enabled(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock, throttle_seconds=0)
    sample(clock, waiting=11)
    evaluator.evaluate()
    set_enabled(made.pk, False, by="bert", now=clock)
    assert (state(made).enabled, state(made).raised, state(made).changed_by) == (False, {}, "bert")
    clock.after(10)
    sample(clock, waiting=0)
    evaluator.evaluate()
    assert len(sent_changes()) == 1
    set_enabled(made.pk, True, now=clock)
    clock.after(10)
    sample(clock, waiting=11)
    evaluator.evaluate()
    assert sent_changes() == [[("raised", "Sales")]] * 2


def test_rule_with_a_new_threshold_notifies_again(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock, throttle_seconds=0)
    sample(clock, waiting=11)
    evaluator.evaluate()
    values = RuleValues("a rule", "queue_longer", "", 10.0, "mail", "other@example.com", 0)
    change_rule(made.pk, values, by="bert", now=clock)
    clock.after(10)
    evaluator.evaluate()
    assert len(sent_changes()) == 1, "only the target has changed"
    assert NotificationDelivery.objects.get().target == "other@example.com", "waiting deliveries use the new target"
    change_rule(made.pk, RuleValues("a rule", "queue_longer", "", 5.0, "mail", "other@example.com", 0), now=clock)
    clock.after(10)
    evaluator.evaluate()
    assert sent_changes() == [[("raised", "Sales")]] * 2


def test_waiting_deliveries_of_a_deleted_rule_fail(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock)
    sample(clock, waiting=11)
    evaluator.evaluate()
    assert remove_rule(made.pk, now=clock)
    assert not remove_rule(made.pk, now=clock)
    left = NotificationDelivery.objects.get()
    assert (left.rule, left.rule_name, left.state, left.error) == (None, "a rule", "failed", "the rule was deleted")


def test_waiting_deliveries_of_a_disabled_rule_fail_except_tests(evaluator: Evaluator, clock: Clock) -> None:
    made = rule(clock)
    sample(clock, waiting=11)
    evaluator.evaluate()
    request_test(made.pk, now=clock)
    set_enabled(made.pk, False, now=clock)
    left = NotificationDelivery.objects.order_by("is_test").values_list("is_test", "state", "error", "finished_at")
    assert list(left) == [(False, "failed", "the rule was disabled", clock.now), (True, "waiting", "", None)]


def test_worker_without_rules_runs_one_query_every_second_time(queue_database: QueueDatabase, clock: Clock) -> None:
    install(queue_database)
    notifications = Notifications(get_settings(), StopSignal(), now=clock)
    made = rule(clock)
    set_enabled(made.pk, False, now=clock)
    with CaptureQueriesContext(queue_database.connection) as queries:
        assert [notifications.evaluate() for _ in range(4)] == [False] * 4
    assert len(queries) == 2
    set_enabled(made.pk, True, now=clock)
    sample(clock, waiting=11)
    assert notifications.evaluate()
    assert sent_changes() == [[("raised", "Sales")]]
    assert notifications.evaluate(), "the delivery still waits"


def test_many_rules_share_their_queries(queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock) -> None:
    for number in range(30):
        rule(clock, name=f"{number}", kind=("queue_longer", "queue_older")[number % 2])
    sample(clock, waiting=3)
    with CaptureQueriesContext(queue_database.connection) as queries:
        evaluator.evaluate()
    # mssql-django reads @@TRANCOUNT at each atomic()
    reads = [each["sql"] for each in queries if each["sql"].startswith("SELECT") and "@@TRANCOUNT" not in each["sql"]]
    assert len(reads) <= 4, reads
