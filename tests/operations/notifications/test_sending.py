"""What is sent: to real servers of HTTP and mail, by one process at a time, again when it fails, with the same id."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

import django
import pytest
from aiosmtpd.controller import Controller
from django.core import mail
from django.db import connections
from django.test import override_settings
from django.utils import translation
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import CheckResult, Event, NotificationDelivery, NotificationRule
from sqlqueue_app.operations.event_texts import text_of_event
from sqlqueue_app.operations.failure_index import FailureIndexing
from sqlqueue_app.operations.notifications import sending, webhooks
from sqlqueue_app.operations.notifications.evaluation import Evaluator
from sqlqueue_app.operations.notifications.job import Notifications
from sqlqueue_app.operations.notifications.outcome import SendFailed
from sqlqueue_app.operations.notifications.retention import KEPT, forget_old_deliveries
from sqlqueue_app.operations.notifications.rules import RuleRefused, remove_rule, request_test, send_again
from sqlqueue_app.operations.notifications.sending import DELAYS, LEASE, MOST_ATTEMPTS, Sender
from sqlqueue_app.operations.notifications.webhooks import new_secret, post, signed_headers
from sqlqueue_app.operations.watching.catalogue import MOVER
from sqlqueue_app.receiving.stopping import StopSignal
from tests.operations.filling import install
from tests.operations.notifications.rules import SECRET, Clock, Receiver, rule, sample
from tests.support.databases import QueueDatabase
from tests.support.ports import free_port
from tests.support.waiting import join_all, poll_until

ADMIN = "https://ops.example.com/admin/"
# Long enough for a request to get through on a busy machine.
SMALL = 1.0


@pytest.fixture
def clock() -> Clock:
    # receivers refuse what was signed long ago
    found = Clock()
    found.now = datetime.now(UTC).replace(microsecond=0)
    return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().running() as found:
        yield found


@pytest.fixture
def database(queue_database: QueueDatabase) -> Iterator[QueueDatabase]:
    """A database of rules; mail goes to memory, also in Django 6.1, where mailers say so."""
    install(queue_database, ADMIN_URL=ADMIN)
    memory = "django.core.mail.backends.locmem.EmailBackend"
    with override_settings(**mail_settings(memory)):
        mail.outbox = []
        yield queue_database


def mail_settings(backend: str, **options: Any) -> dict[str, Any]:
    if django.VERSION >= (6, 1):
        return {"MAILERS": {"default": {"BACKEND": backend, "OPTIONS": options}}}
    return {"EMAIL_BACKEND": backend, **{f"EMAIL_{name.upper()}": value for name, value in options.items()}}


def webhook(clock: Clock, receiver: Receiver, **values: Any) -> NotificationRule:
    return rule(clock, **{"channel": "webhook", "target": receiver.url(), "throttle_seconds": 0, **values})


def deliver(clock: Clock, waiting: int = 11, queue: str = "Sales", **sender: Any) -> NotificationDelivery:
    """Have something to tell, and try it once."""
    sample(clock, queue, waiting)
    Evaluator(get_settings(), now=clock).evaluate()
    Sender(get_settings(), now=clock, **sender).send_due(StopSignal())
    return NotificationDelivery.objects.latest("created_at", "pk")


def test_a_webhook_is_signed_as_the_convention_asks(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
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
    assert data["title"] == "Länge <b>: Sales: 11 messages are waiting; the limit is 10"
    assert data["changes"] == [
        {
            "change": "raised", "subject": "Sales", "value": 11, "threshold": 10.0, "at": clock.now.isoformat(),
            "url": f"{ADMIN}sqlqueue_app/queue/Sales/",
        }
    ]  # fmt: skip
    assert data["url"] == f"{ADMIN}sqlqueue_app/notificationrule/{sent.rule_id}/"
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body.replace(b"11", b"12"), headers)


def test_the_example_of_the_convention() -> None:
    """The vector of https://github.com/standard-webhooks/standard-webhooks."""
    headers = signed_headers(
        SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", datetime.fromtimestamp(1614265330, UTC), b'{"test": 2432232314}'
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_made_secrets_are_long_and_different() -> None:
    made = {new_secret() for _ in range(20)}
    assert len(made) == 20
    assert {len(base64.b64decode(each.removeprefix("whsec_"))) for each in made} == {32}


def test_mail(database: QueueDatabase, clock: Clock, settings: Any) -> None:
    settings.DEFAULT_FROM_EMAIL = "queues@example.com"
    settings.EMAIL_SUBJECT_PREFIX = "[shop] "
    rule(clock, name="long", target="a@example.com\nb@example.com")
    sent = deliver(clock)
    assert sent.state == "sent"
    (message,) = mail.outbox
    assert message.subject == "[shop] long: Sales: 11 messages are waiting; the limit is 10"
    assert (message.from_email, message.to) == ("queues@example.com", ["a@example.com", "b@example.com"])
    assert message.extra_headers["Message-ID"].startswith(f"<{sent.pk}@")
    assert message.body.splitlines() == [
        f"- Sales: 11 messages are waiting; the limit is 10 ({clock.now:%Y-%m-%d %H:%M:%S} UTC)",
        f"  {ADMIN}sqlqueue_app/queue/Sales/",
        "",
        "Not over yet: Sales",
        "",
        f"The rule of this notification: {ADMIN}sqlqueue_app/notificationrule/{sent.rule_id}/",
    ]


def test_a_check_says_what_it_has_found(database: QueueDatabase, clock: Clock) -> None:
    rule(clock, kind="check_failed", threshold=None, throttle_seconds=0, name="checks")
    times = {"checked_at": clock.now, "since": clock.now}
    CheckResult.objects.create(name=MOVER.name, subject="Sales", failing=True, details={"overdue": 7}, **times)
    CheckResult.objects.create(name="disk", failing=True, details={"text": "the disk is full"}, **times)
    deliver(clock)
    CheckResult.objects.update(failing=False)
    clock.after(10)
    deliver(clock)
    first, second = ([line for line in each.body.splitlines() if line.startswith("- ")] for each in mail.outbox)
    assert [line.partition(" (2")[0] for line in first] == [
        "- disk: the disk is full",
        "- Delayed messages: Delayed messages of Sales that are due and were not moved for a minute: 7.",
    ]
    assert [line.partition(" (2")[0] for line in second] == [
        "- disk: the check passes", "- Delayed messages, Sales: the check passes",
    ]  # fmt: skip


def test_without_an_address_of_the_admin_the_links_are_left_out(
    queue_database: QueueDatabase, database: QueueDatabase, clock: Clock
) -> None:
    database.configure(ADMIN_URL=None)
    rule(clock)
    deliver(clock)
    assert "http" not in mail.outbox[0].body


def test_no_header_is_injected(database: QueueDatabase, clock: Clock) -> None:
    rule(clock, name="a rule\r\nBcc: all@example.com")
    sent = deliver(clock, queue="Sales\nX-Evil: 1")
    assert sent.state == "sent"
    (message,) = mail.outbox
    assert message.message()["Bcc"] is None
    assert message.message()["X-Evil"] is None
    assert "\n" not in message.subject
    assert len(message.subject) < 250


def test_mail_is_in_the_language_of_the_site(database: QueueDatabase, clock: Clock, settings: Any) -> None:
    settings.LANGUAGE_CODE = "de"
    settings.USE_THOUSAND_SEPARATOR = True
    rule(clock)
    with translation.override("fr"):
        deliver(clock, waiting=12_345)
    assert "12.345" in mail.outbox[0].body


@pytest.fixture
def smtp() -> Iterator[tuple[Controller, list[Any]]]:
    received: list[Any] = []

    class Keeper:
        async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:  # noqa: N802
            if address.startswith("nobody"):
                return "550 no such mailbox"
            envelope.rcpt_tos.append(address)
            return "250 OK"

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
            received.append(envelope)
            return "250 OK"

    controller = Controller(Keeper(), hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        yield controller, received
    finally:
        controller.stop()


def test_a_real_server_of_mail(database: QueueDatabase, clock: Clock, smtp: tuple[Controller, list[Any]]) -> None:
    controller, received = smtp
    backend = "django.core.mail.backends.smtp.EmailBackend"
    with override_settings(**mail_settings(backend, host=controller.hostname, port=controller.port)):
        rule(clock, target="ops@example.com")
        assert deliver(clock).state == "sent"
        rule(clock, name="other", subject="Billing", target="nobody@example.com")
        clock.after(10)
        deliver(clock, queue="Billing")
    assert received[0].rcpt_tos == ["ops@example.com"]
    assert b"Auto-Submitted: auto-generated" in received[0].content
    assert "no such mailbox" in NotificationDelivery.objects.get(rule_name="other").error


def test_a_server_of_mail_that_is_not_there(database: QueueDatabase, clock: Clock) -> None:
    with override_settings(**mail_settings("django.core.mail.backends.smtp.EmailBackend", host="127.0.0.1", port=free_port())):
        rule(clock)
        failed = deliver(clock)
    assert (failed.state, failed.attempts) == ("waiting", 1)
    assert "ConnectionRefusedError" in failed.error


def slow(receiver: Receiver) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        receiver.released.wait(60)

    return answer


def dripping(receiver: Receiver) -> Any:
    """A header without an end, a byte at a time: no single read takes long."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not receiver.released.wait(0.02):
            handler.wfile.write(b"x")

    return answer


def redirecting(receiver: Receiver) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302, "Found\x07")
        handler.send_header("Location", receiver.url("/elsewhere"))
        handler.end_headers()

    return answer


def closing(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def talking(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(500)
    handler.end_headers()
    handler.wfile.write(b"no \x00 luck\n" + b"x" * 100_000)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (500, "HTTP 500 Internal Server Error"),
        (404, "HTTP 404 Not Found"),
        (redirecting, "HTTP 302 Found� (redirects are not followed)"),
        (closing, "RemoteDisconnected: Remote end closed connection without response"),
        (talking, "HTTP 500 Internal Server Error: no � luck xxx"),
        (slow, f"no answer in {SMALL:g} s"),
        (dripping, f"no answer in {SMALL:g} s"),
    ],
    ids=["500", "404", "redirects", "closes", "talks", "never answers", "drips"],
)
def test_a_receiver_that_does_not_take_it(
    database: QueueDatabase, clock: Clock, receiver: Receiver, answer: Any, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = answer(receiver) if answer in (slow, dripping, redirecting) else answer
    webhook(clock, receiver)
    with caplog.at_level(logging.INFO, "sqlqueue"):
        failed = deliver(clock, timeout=SMALL if answer in (slow, dripping) else 30.0)
    assert failed.error.startswith(expected)
    assert len(failed.error) < 300
    assert (failed.state, failed.attempts, failed.next_attempt_at) == ("waiting", 1, clock.now + DELAYS[0])
    assert [path for path, _headers, _body in receiver.requests] == ["/hook?token=s3cret"]
    (record,) = [each for each in caplog.records if getattr(each, "event", "").startswith("notification_")]
    assert (record.event, record.levelname) == ("notification_delayed", "WARNING")  # type: ignore[attr-defined]
    assert "s3cret" not in caplog.text
    assert SECRET not in caplog.text


def test_nobody_listens(database: QueueDatabase, clock: Clock) -> None:
    rule(clock, channel="webhook", target=f"http://127.0.0.1:{free_port()}/")
    assert deliver(clock).error.startswith("ConnectionRefusedError")


def test_a_host_that_there_is_not() -> None:
    with pytest.raises(SendFailed, match="gaierror"):
        post("https://nobody.invalid/", b"", {}, timeout=30)


def test_a_server_that_speaks_no_tls(receiver: Receiver) -> None:
    with pytest.raises(SendFailed, match="SSLError"):
        post(receiver.url().replace("http:", "https:"), b"", {}, timeout=30)


def test_it_is_tried_again_after_longer_and_longer_times_and_then_given_up(
    database: QueueDatabase, clock: Clock, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = 503
    webhook(clock, receiver)
    waiting = deliver(clock)
    sender = Sender(get_settings(), now=clock)
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
    assert (waiting.state, waiting.attempts, waiting.error) == ("failed", MOST_ATTEMPTS, "HTTP 503 Service Unavailable")
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
    assert len(receiver.requests) == MOST_ATTEMPTS + 1
    with pytest.raises(RuleRefused):
        send_again(waiting.pk)


def test_what_is_new_goes_before_what_has_failed(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    receiver.answer = 500
    webhook(clock, receiver, name="first")
    deliver(clock)
    clock.after(10)
    receiver.answer = 200
    NotificationRule.objects.update(enabled=False)
    webhook(clock, receiver, name="second")
    deliver(clock)
    assert [json.loads(body)["data"]["rule"] for _path, _headers, body in receiver.requests] == ["first", "second", "first"]


def test_of_two_workers_one_sends(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    webhook(clock, receiver)
    for number in range(12):
        sample(clock, f"Q{number}", 11)
        Evaluator(get_settings(), now=clock).evaluate()
        clock.after(10)
    together = threading.Barrier(3)

    def work() -> None:
        try:
            together.wait(60)
            Sender(get_settings(), now=clock).send_due(StopSignal())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    join_all(threads)
    ids = [headers["webhook-id"] for _path, headers, _body in receiver.requests]
    assert len(ids) == len(set(ids)) == NotificationDelivery.objects.filter(state="sent", attempts=1).count() > 0
    assert not NotificationDelivery.objects.exclude(state="sent").exists()


class Killed(BaseException):
    """The end of a process, as far as a test can have it."""


def test_who_is_killed_before_he_sends_loses_nothing(
    database: QueueDatabase, clock: Clock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    webhook(clock, receiver)
    with monkeypatch.context() as patch:
        patch.setattr(sending, "post", killed)
        with pytest.raises(Killed):
            deliver(clock)
    other = Sender(get_settings(), now=clock)
    assert other.send_due(StopSignal()) == 0, "it is held by a lease"
    clock.now += LEASE
    assert other.send_due(StopSignal()) == 1
    assert len(receiver.requests) == 1


def test_who_is_killed_after_he_has_sent_sends_the_same_again(
    database: QueueDatabase, clock: Clock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent_and_killed(*args: Any, **named: Any) -> None:
        post(*args, **named)
        raise Killed

    webhook(clock, receiver)
    with monkeypatch.context() as patch:
        patch.setattr(sending, "post", sent_and_killed)
        with pytest.raises(Killed):
            deliver(clock)
    clock.now += LEASE
    Sender(get_settings(), now=clock).send_due(StopSignal())
    (_, first, first_body), (_, second, second_body) = receiver.requests
    assert first["webhook-id"] == second["webhook-id"]
    assert first_body == second_body
    assert NotificationDelivery.objects.get().state == "sent"


def test_what_kills_whoever_sends_it_is_given_up(
    database: QueueDatabase, clock: Clock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    webhook(clock, receiver)
    sample(clock, waiting=11)
    Evaluator(get_settings(), now=clock).evaluate()
    monkeypatch.setattr(sending, "post", killed)
    for _ in range(MOST_ATTEMPTS):
        with pytest.raises(Killed):
            Sender(get_settings(), now=clock).send_due(StopSignal())
        clock.now += LEASE
    Sender(get_settings(), now=clock).send_due(StopSignal())
    given_up = NotificationDelivery.objects.get()
    assert (given_up.state, given_up.error) == ("failed", "whoever tried to send it has not come back, each time")


def test_what_cannot_be_put_into_words_is_given_up_too(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    made = webhook(clock, receiver)
    asked = request_test(made.pk, now=clock)
    NotificationDelivery.objects.filter(pk=asked).update(payload={"changes": 5})
    Sender(get_settings(), now=clock).send_due(StopSignal())
    failed = NotificationDelivery.objects.get()
    assert (failed.state, failed.attempts) == ("waiting", 1)
    assert failed.error.startswith("TypeError")


def test_no_transaction_is_open_while_something_is_sent(
    database: QueueDatabase, clock: Clock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_then: list[bool] = []

    def watched(*args: Any, **named: Any) -> None:
        open_then.append(database.connection.in_atomic_block)
        post(*args, **named)

    monkeypatch.setattr(sending, "post", watched)
    webhook(clock, receiver)
    deliver(clock)
    assert open_then == [False]


def test_a_test_is_sent_the_same_way(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    made = webhook(clock, receiver)
    NotificationRule.objects.update(enabled=False)
    asked = request_test(made.pk, now=clock)
    notifications = Notifications(get_settings(), StopSignal(), now=clock)
    assert notifications.look()
    Sender(get_settings(), now=clock).send_due(StopSignal())
    ((_, headers, body),) = receiver.requests
    document = Webhook(SECRET).verify(body, headers)
    assert (document["type"], headers["webhook-id"]) == ("sqlqueue.test", str(asked))
    assert document["data"]["text"].startswith("This is a test of the notification “a rule”. Nothing has happened.")
    assert NotificationDelivery.objects.get().is_test
    with pytest.raises(RuleRefused):
        request_test(made.pk + 1)


def test_hosts_that_the_settings_do_not_allow(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
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
def test_which_hosts_are_allowed(url: str, patterns: tuple[str, ...] | None, allowed: bool) -> None:
    assert webhooks.host_is_allowed(url, patterns) is allowed


def test_a_rule_without_a_secret_signs_nothing(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    webhook(clock, receiver, secret="")
    failed = deliver(clock)
    assert (failed.state, failed.error) == ("failed", "the rule has no secret that can sign")
    assert receiver.requests == []


def test_a_worker_sends_and_ends_with_a_receiver_that_never_answers(
    database: QueueDatabase, clock: Clock, receiver: Receiver
) -> None:
    receiver.answer = slow(receiver)
    webhook(clock, receiver)
    sample(clock, waiting=11)
    stop = StopSignal()
    notifications = Notifications(get_settings(), stop, now=clock, timeout=SMALL)
    with notifications.running():
        assert notifications.look(), "the look does not wait for the receiver"
        poll_until(lambda: receiver.requests, what="the request")
    assert not [each for each in threading.enumerate() if each.name == "sqlqueue-notifications"]
    assert NotificationDelivery.objects.get().error == f"no answer in {SMALL:g} s"


def test_what_is_a_month_old_is_forgotten(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    made = webhook(clock, receiver)
    for state, days in (("sent", 31), ("failed", 31), ("waiting", 31), ("sent", 29)):
        pk = request_test(made.pk, now=clock)
        NotificationDelivery.objects.filter(pk=pk).update(state=state, created_at=clock.now - timedelta(days=days))
    assert forget_old_deliveries(database.alias, clock.now) == 2
    assert set(NotificationDelivery.objects.values_list("state", flat=True)) == {"waiting", "sent"}
    assert timedelta(days=30) == KEPT


def test_workers_forget_it_each_hour(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    pk = request_test(webhook(clock, receiver).pk, now=clock)
    NotificationDelivery.objects.filter(pk=pk).update(state="sent", created_at=clock.now - timedelta(days=31))
    FailureIndexing(get_settings(), now=clock).index()
    assert not NotificationDelivery.objects.exists()


def test_a_rule_is_deleted_while_what_it_has_sent_is_sent_again(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    """Neither waits for the other for ever."""
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


def test_the_rule_was_deleted_meanwhile(database: QueueDatabase, clock: Clock, receiver: Receiver) -> None:
    made = webhook(clock, receiver)
    asked = request_test(made.pk, now=clock)
    remove_rule(made.pk, now=clock)
    with pytest.raises(RuleRefused, match="was deleted"):
        send_again(asked)
    assert Sender(get_settings(), now=clock).send_due(StopSignal()) == 0
