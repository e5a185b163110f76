"""Notifications by mail: their content, in memory and to a real server."""

from __future__ import annotations

from typing import Any

from django.core import mail
from django.test import override_settings
from django.utils import translation

from sqlqueue_app.models import CheckResult, NotificationDelivery
from sqlqueue_app.monitoring.checks import MOVER
from sqlqueue_app.monitoring.notifying import name_of
from tests.monitoring.notifications.rules import Clock, rule
from tests.monitoring.notifications.sending.deliveries import ADMIN, deliver
from tests.support.databases import QueueDatabase
from tests.support.mail import mail_server, mail_settings
from tests.support.ports import free_port


def test_notification_is_sent_by_mail(database: QueueDatabase, clock: Clock, settings: Any) -> None:
    settings.DEFAULT_FROM_EMAIL = "queues@example.com"
    settings.EMAIL_SUBJECT_PREFIX = "[shop] "
    rule(clock, name="long", target="a@example.com\nb@example.com")
    sent = deliver(clock)
    assert sent.state == "sent"
    (message,) = mail.outbox
    assert message.subject == "[shop] long: Sales: messages waiting: 11; the limit is 10"
    assert (message.from_email, message.to) == ("queues@example.com", ["a@example.com", "b@example.com"])
    assert message.extra_headers["Message-ID"].startswith(f"<{sent.pk}@")
    assert message.body.splitlines() == [
        f"- Sales: messages waiting: 11; the limit is 10 ({clock.now:%Y-%m-%d %H:%M:%S} UTC)",
        f"  {ADMIN}sqlqueue_app/queue/Sales/",
        "",
        "Still active: Sales",
        "",
        f"The rule of this notification: {ADMIN}sqlqueue_app/notificationrule/{sent.rule_id}/",
    ]


def test_mail_describes_the_finding_of_a_check(database: QueueDatabase, clock: Clock) -> None:
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


def test_mail_has_no_links_without_an_admin_url(queue_database: QueueDatabase, database: QueueDatabase, clock: Clock) -> None:
    database.configure(ADMIN_URL=None)
    rule(clock)
    deliver(clock)
    assert "http" not in mail.outbox[0].body


def test_mail_headers_cannot_be_injected(database: QueueDatabase, clock: Clock) -> None:
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


def test_mail_is_sent_to_a_real_server(database: QueueDatabase, clock: Clock) -> None:
    with mail_server() as received:
        rule(clock, target="ops@example.com")
        assert deliver(clock).state == "sent"
        rule(clock, name="other", subject="Billing", target="nobody@example.com")
        clock.after(10)
        deliver(clock, queue="Billing")
    assert received[0].rcpt_tos == ["ops@example.com"]
    assert b"Auto-Submitted: auto-generated" in received[0].content
    assert "no such mailbox" in NotificationDelivery.objects.get(rule_name="other").error


def test_missing_mail_server_delays_the_notification(database: QueueDatabase, clock: Clock) -> None:
    with override_settings(**mail_settings("django.core.mail.backends.smtp.EmailBackend", host="127.0.0.1", port=free_port())):
        rule(clock)
        failed = deliver(clock)
    assert (failed.state, failed.attempts) == ("waiting", 1)
    assert "ConnectionRefusedError" in failed.error


def test_active_checks_have_their_titles() -> None:
    assert name_of("check_failed", "sqlqueue.paused: Reports") == "Paused endpoints: Reports"
    assert name_of("check_failed", "payment gateway") == "payment gateway"
    assert name_of("queue_longer", "sqlqueue.paused: Reports") == "sqlqueue.paused: Reports"
