"""Deliveries are sent by one process at a time, retried with the same id, and signed by the standard."""

from __future__ import annotations

import base64
import json
import threading
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connections
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.history import text_of_event
from sqlqueue_app.failures.index import FailureIndexing
from sqlqueue_app.models import Event, NotificationDelivery, NotificationRule
from sqlqueue_app.monitoring import notifying, webhooks
from sqlqueue_app.monitoring.notifying import LEASE, MAX_ATTEMPTS, Notifications, NotificationSender
from sqlqueue_app.monitoring.rules import Evaluator, RuleRefused, remove_rule, request_test, send_again
from sqlqueue_app.monitoring.webhooks import new_secret, post, signed_headers
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.status.retention import NOTIFICATIONS_KEPT, delete_old_deliveries
from tests.monitoring.notifications.rules import SECRET, Clock, Receiver, sample
from tests.monitoring.notifications.sending.deliveries import ADMIN, SMALL, deliver, slow, webhook
from tests.support.databases import QueueDatabase
from tests.support.waiting import join_all, poll_until, run_in_threads


def test_webhook_is_signed_by_the_standard(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    webhook(clock, receiver, name="Länge <b>")
    sent = deliver(clock)
    assert (sent.state, sent.attempts, sent.error, sent.finished_at, sent.next_attempt_at) == ("sent", 1, "", clock.now, None)
    ((path, headers, body),) = receiver.requests
    assert path == "/hook?token=s3cret"
    document = Webhook(SECRET).verify(body, headers)
    assert headers["webhook-id"] == str(sent.pk)
    assert headers["content-type"] == "application/json"
    assert document["type"] == "sqlqueue.queue_longer"
    assert document["timestamp"] == clock.now.isoformat().replace("+00:00", "Z")
    data = document["data"]
    assert (data["rule"], data["kind"], data["of"], data["threshold"], data["more"]) == ("Länge <b>", "queue_longer", "", 10.0, 0)
    assert data["title"] == "Länge <b>: Sales: messages waiting: 11; the limit is 10"
    assert data["changes"] == [
        {
            "change": "raised", "subject": "Sales", "value": 11, "threshold": 10.0, "at": clock.now.isoformat(),
            "url": f"{ADMIN}sqlqueue_app/queue/Sales/",
        }
    ]  # fmt: skip
    assert data["url"] == f"{ADMIN}sqlqueue_app/notificationrule/{sent.rule_id}/"
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body.replace(b"11", b"12"), headers)


def test_signature_matches_the_example_of_the_standard() -> None:
    """The vector of https://github.com/standard-webhooks/standard-webhooks."""
    headers = signed_headers(
        SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", datetime.fromtimestamp(1614265330, UTC), b'{"test": 2432232314}'
    )
    assert headers["webhook-timestamp"] == "1614265330"
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_time_zone_does_not_change_the_signature() -> None:
    utc = datetime(2026, 1, 1, 12, 0, 0, 700_000, tzinfo=UTC)
    elsewhere = utc.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert signed_headers(SECRET, "id", elsewhere, "é".encode()) == signed_headers(SECRET, "id", utc, "é".encode())


def test_generated_secrets_are_long_and_unique() -> None:
    made = {new_secret() for _ in range(20)}
    assert len(made) == 20
    assert {len(base64.b64decode(each.removeprefix("whsec_"))) for each in made} == {32}


def test_failed_delivery_is_retried_with_back_off_and_then_given_up(
    database: QueueDatabase, clock: Clock, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = 503
    webhook(clock, receiver)
    waiting = deliver(clock)
    sender = NotificationSender(get_settings(), now=clock)
    waits = []
    while waiting.state == "waiting":
        assert waiting.next_attempt_at is not None
        waits.append((waiting.next_attempt_at - clock.now).total_seconds())
        clock.now = waiting.next_attempt_at - timedelta(seconds=1)
        assert sender.send_due(StopSignal()) == 0
        clock.after(1)
        assert sender.send_due(StopSignal()) == 1
        waiting.refresh_from_db()
    assert waits == [10, 60, 300, 1800]
    assert (waiting.state, waiting.attempts, waiting.error) == ("failed", MAX_ATTEMPTS, "HTTP 503 Service Unavailable")
    assert len({headers["webhook-id"] for _path, headers, _body in receiver.requests}) == 1
    assert [each.levelname for each in caplog.records if getattr(each, "event", "") == "notification_failed"] == ["ERROR"]
    event = Event.objects.get()
    assert (event.severity, text_of_event(event)) == (
        "error", "A notification of the rule “a rule” could not be sent: HTTP 503 Service Unavailable",
    )  # fmt: skip

    receiver.answer = 200
    send_again(waiting.pk, now=clock)
    assert sender.send_due(StopSignal()) == 1
    waiting.refresh_from_db()
    assert (waiting.state, waiting.attempts, waiting.error) == ("sent", 1, "")
    assert len(receiver.requests) == MAX_ATTEMPTS + 1
    with pytest.raises(RuleRefused):
        send_again(waiting.pk)


def test_new_deliveries_precede_failed_ones(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    receiver.answer = 500
    webhook(clock, receiver, name="first")
    deliver(clock)
    clock.after(10)
    receiver.answer = 200
    NotificationRule.objects.update(enabled=False)
    webhook(clock, receiver, name="second")
    deliver(clock)
    assert [json.loads(body)["data"]["rule"] for _path, _headers, body in receiver.requests] == ["first", "second", "first"]


def test_delivery_created_meanwhile_precedes_further_retries(
    database: QueueDatabase, clock: Clock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = webhook(clock, receiver)
    retries = {request_test(made.pk, now=clock) for _ in range(3)}
    NotificationDelivery.objects.update(attempts=1)
    sent: list[Any] = []

    def hanging(_url: str, _body: bytes, headers: dict[str, str], **_more: Any) -> None:
        if not sent:
            request_test(made.pk, now=clock)
        sent.append(uuid.UUID(headers["webhook-id"]))

    monkeypatch.setattr(notifying, "post", hanging)
    assert NotificationSender(get_settings(), now=clock).send_due(StopSignal()) == 4
    assert [each in retries for each in sent] == [True, False, True, True]


def test_only_one_of_several_workers_sends(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    webhook(clock, receiver)
    for number in range(12):
        sample(clock, f"Q{number}", 11)
        Evaluator(get_settings(), now=clock).evaluate()
        clock.after(10)
    together = threading.Barrier(3)

    def work() -> None:
        try:
            together.wait(60)
            NotificationSender(get_settings(), now=clock).send_due(StopSignal())
        finally:
            connections.close_all()

    run_in_threads(work, 3)
    ids = [headers["webhook-id"] for _path, headers, _body in receiver.requests]
    assert len(ids) == len(set(ids)) == NotificationDelivery.objects.filter(state="sent", attempts=1).count() > 0
    assert not NotificationDelivery.objects.exclude(state="sent").exists()


class Killed(BaseException):
    """Simulates the end of a process."""


def test_kill_before_sending_loses_nothing(
    database: QueueDatabase, clock: Clock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    webhook(clock, receiver)
    with monkeypatch.context() as patch:
        patch.setattr(notifying, "post", killed)
        with pytest.raises(Killed):
            deliver(clock)
    other = NotificationSender(get_settings(), now=clock)
    assert other.send_due(StopSignal()) == 0, "it is held by a lease"
    clock.now += LEASE
    assert other.send_due(StopSignal()) == 1
    assert len(receiver.requests) == 1


def test_kill_after_sending_repeats_the_same_request(
    database: QueueDatabase, clock: Clock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent_and_killed(*args: Any, **named: Any) -> None:
        post(*args, **named)
        raise Killed

    webhook(clock, receiver)
    with monkeypatch.context() as patch:
        patch.setattr(notifying, "post", sent_and_killed)
        with pytest.raises(Killed):
            deliver(clock)
    clock.now += LEASE
    NotificationSender(get_settings(), now=clock).send_due(StopSignal())
    (_, first, first_body), (_, second, second_body) = receiver.requests
    assert first["webhook-id"] == second["webhook-id"]
    assert first_body == second_body
    assert NotificationDelivery.objects.get().state == "sent"


def test_delivery_that_kills_its_workers_is_given_up(
    database: QueueDatabase, clock: Clock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    webhook(clock, receiver)
    sample(clock, waiting=11)
    Evaluator(get_settings(), now=clock).evaluate()
    monkeypatch.setattr(notifying, "post", killed)
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(Killed):
            NotificationSender(get_settings(), now=clock).send_due(StopSignal())
        clock.now += LEASE
    NotificationSender(get_settings(), now=clock).send_due(StopSignal())
    given_up = NotificationDelivery.objects.get()
    assert (given_up.state, given_up.error) == ("failed", "every worker that tried to send it ended before it had a response")


def test_unreadable_payload_fails_the_attempt(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    made = webhook(clock, receiver)
    delivery = request_test(made.pk, now=clock)
    NotificationDelivery.objects.filter(pk=delivery).update(payload={"changes": 5})
    NotificationSender(get_settings(), now=clock).send_due(StopSignal())
    failed = NotificationDelivery.objects.get()
    assert (failed.state, failed.attempts) == ("waiting", 1)
    assert failed.error.startswith("TypeError")


def test_no_transaction_is_open_while_sending(
    database: QueueDatabase, clock: Clock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_then: list[bool] = []

    def watched(*args: Any, **named: Any) -> None:
        open_then.append(database.connection.in_atomic_block)
        post(*args, **named)

    monkeypatch.setattr(notifying, "post", watched)
    webhook(clock, receiver)
    deliver(clock)
    assert open_then == [False]


def test_test_notification_is_sent_the_same_way(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    made = webhook(clock, receiver)
    NotificationRule.objects.update(enabled=False)
    delivery = request_test(made.pk, now=clock)
    notifications = Notifications(get_settings(), StopSignal(), now=clock)
    assert notifications.evaluate()
    NotificationSender(get_settings(), now=clock).send_due(StopSignal())
    ((_, headers, body),) = receiver.requests
    document = Webhook(SECRET).verify(body, headers)
    assert (document["type"], headers["webhook-id"]) == ("sqlqueue.test", str(delivery))
    assert document["data"]["text"].startswith("This is a test of the notification “a rule”. Nothing has happened.")
    assert NotificationDelivery.objects.get().is_test
    with pytest.raises(RuleRefused):
        request_test(made.pk + 1)


def test_disallowed_host_fails_the_delivery(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    webhook(clock, receiver)
    database.configure(WEBHOOK_HOSTS=["*.example.com"])
    failed = deliver(clock)
    assert (failed.state, failed.error) == ("failed", "WEBHOOK_HOSTS does not allow the host")
    assert receiver.requests == []


@pytest.mark.parametrize(
    ("url", "patterns", "allowed"),
    [
        ("https://any.where/", None, True),
        ("https://any.where/", (), False),
        ("https://Hooks.Example.com:8443/x", ("hooks.example.com",), True),
        ("https://hooks.example.com./x", ("hooks.example.com",), True),
        ("https://a.example.com/", ("*.example.com",), True),
        ("https://example.com/", ("*.example.com",), False),
        ("https://evilexample.com/", ("*.example.com",), False),
        ("https://example.com.evil.org/", ("example.com",), False),
        ("http://[::1]:80/", ("[::1]",), True),
    ],
)
def test_host_patterns_decide_which_hosts_are_allowed(url: str, patterns: tuple[str, ...] | None, allowed: bool) -> None:
    assert webhooks.host_is_allowed(url, patterns) is allowed


def test_rule_without_a_secret_sends_nothing(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    webhook(clock, receiver, secret="")
    failed = deliver(clock)
    assert (failed.state, failed.error) == ("failed", "the rule has no secret that can sign")
    assert receiver.requests == []


def test_worker_stops_while_a_receiver_does_not_answer(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    receiver.answer = slow(receiver)
    webhook(clock, receiver)
    sample(clock, waiting=11)
    stop = StopSignal()
    notifications = Notifications(get_settings(), stop, now=clock, timeout=SMALL)
    with notifications.running():
        assert notifications.evaluate(), "the evaluation does not wait for the receiver"
        poll_until(lambda: receiver.requests, what="the request")
    assert not [each for each in threading.enumerate() if each.name == "sqlqueue-notifications"]
    assert NotificationDelivery.objects.get().error == f"no answer in {SMALL:g} s"


def test_error_that_ends_the_sender_thread_stops_the_worker(
    database: QueueDatabase, clock: Clock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(BaseException):
        """An error that no delivery raises."""

    def broken(self: NotificationSender, stop: StopSignal) -> None:
        raise Broken

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(NotificationSender, "send_due", broken)
    webhook(clock, receiver)
    sample(clock, waiting=11)
    stop = StopSignal()
    notifications = Notifications(get_settings(), stop, now=clock)
    with notifications.running():
        assert notifications.evaluate()
        assert stop.wait(60)
    assert stop.has_failed
    assert "thread_died" in {getattr(record, "event", "") for record in caplog.records}


def test_deliveries_expire_after_a_month(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    made = webhook(clock, receiver)
    for state, days in (("sent", 31), ("failed", 31), ("waiting", 31), ("sent", 29)):
        pk = request_test(made.pk, now=clock)
        NotificationDelivery.objects.filter(pk=pk).update(state=state, created_at=clock.now - timedelta(days=days))
    assert delete_old_deliveries(database.alias, clock.now) == 2
    assert set(NotificationDelivery.objects.values_list("state", flat=True)) == {"waiting", "sent"}
    assert timedelta(days=30) == NOTIFICATIONS_KEPT


def test_workers_delete_old_deliveries(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    pk = request_test(webhook(clock, receiver).pk, now=clock)
    NotificationDelivery.objects.filter(pk=pk).update(state="sent", created_at=clock.now - timedelta(days=31))
    FailureIndexing(get_settings(), now=clock).index()
    assert not NotificationDelivery.objects.exists()


def test_deleting_a_rule_and_resending_do_not_deadlock(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    """Neither blocks the other."""
    for _ in range(5):
        made = webhook(clock, receiver)
        sent = [request_test(made.pk, now=clock) for _ in range(3)]
        NotificationDelivery.objects.update(state="failed")
        together = threading.Barrier(2)
        failures: list[BaseException] = []

        def work(each: Any, together: threading.Barrier = together, failures: list[BaseException] = failures) -> None:
            try:
                together.wait(60)
                each()
            except RuleRefused:
                pass
            except BaseException as error:  # noqa: BLE001 - shown by the test
                failures.append(error)
            finally:
                connections.close_all()

        def again(sent: list[Any] = sent) -> None:
            for pk in sent:
                send_again(pk, now=clock)

        def delete(key: int = made.pk) -> None:
            remove_rule(key, now=clock)

        threads = [threading.Thread(target=work, args=(each,)) for each in (again, delete)]
        for thread in threads:
            thread.start()
        join_all(threads)
        assert failures == []
        assert not NotificationDelivery.objects.exclude(state="failed", rule=None).exists()


def test_delivery_of_a_deleted_rule_is_not_resent(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    made = webhook(clock, receiver)
    delivery = request_test(made.pk, now=clock)
    remove_rule(made.pk, now=clock)
    with pytest.raises(RuleRefused, match="was deleted"):
        send_again(delivery)
    assert NotificationSender(get_settings(), now=clock).send_due(StopSignal()) == 0
