"""Who looks at the rules: one process of many, and nothing half done; rules that are changed, disabled, deleted."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import Claim, NotificationDelivery, NotificationRule
from sqlqueue_app.monitoring.notifying import Notifications
from sqlqueue_app.monitoring.rules import Evaluator, RuleConditions, RuleValues, change_rule, remove_rule, set_enabled
from sqlqueue_app.receiving.waiting import StopSignal
from tests.monitoring.notifications.rules import Clock, rule, sample, state, told
from tests.support.databases import QueueDatabase
from tests.support.filling import install
from tests.support.waiting import join_all


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


def test_a_rule_that_cannot_be_evaluated_keeps_no_other_from_it(
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
    # SQLite says of every mistake that it is one of operation
    if connections["default"].vendor == "sqlite":
        monkeypatch.setattr(RuleConditions, "read", lambda self, each: read(self, each) if each.name != "bad" else 1 / 0)
    evaluator.evaluate()
    assert told() == [[("raised", "Sales")]]
    assert [record.message for record in caplog.records if getattr(record, "event", "") == "notification_rule_failed"] == [
        "the notification rule 'bad' could not be evaluated"
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
        assert [notifications.evaluate() for _ in range(4)] == [False] * 4
    assert len(asked) == 2
    set_enabled(made.pk, True, now=clock)
    sample(clock, waiting=11)
    assert notifications.evaluate()
    assert told() == [[("raised", "Sales")]]
    assert notifications.evaluate(), "it waits still"


def test_the_looks_of_many_rules_are_shared(queue_database: QueueDatabase, evaluator: Evaluator, clock: Clock) -> None:
    for number in range(30):
        rule(clock, name=f"{number}", kind=("queue_longer", "queue_older")[number % 2])
    sample(clock, waiting=3)
    with CaptureQueriesContext(queue_database.connection) as asked:
        evaluator.evaluate()
    # mssql-django asks for @@TRANCOUNT at each atomic()
    reads = [each["sql"] for each in asked if each["sql"].startswith("SELECT") and "@@TRANCOUNT" not in each["sql"]]
    assert len(reads) <= 4, reads
