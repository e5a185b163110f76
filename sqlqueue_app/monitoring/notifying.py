"""Sending notifications by mail and webhook, each by one process at a time, at least once; their texts; the form of a rule."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

from django import forms
from django.conf import settings as django_settings
from django.core import mail
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import DatabaseError, connections, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from django.utils import translation
from django.utils.formats import number_format
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.messages.errors import TransientError, counted
from sqlqueue_app.models import (
    DeliveryState,
    NotificationChannel,
    NotificationDelivery,
    NotificationKind,
    NotificationRule,
    managed_alias,
)
from sqlqueue_app.monitoring import rules, webhooks
from sqlqueue_app.monitoring.checks import describe_finding, label_of
from sqlqueue_app.monitoring.rules import EVERY_SECONDS, GONE, NEW, RAISED, RESOLVED, Change, Evaluator
from sqlqueue_app.monitoring.webhooks import SendFailed, host_is_allowed, post, signed_headers
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.status.events import EventKind, record_event
from sqlqueue_app.status.texts import PLAIN_INPUT, path_of
from sqlqueue_app.tables.connections import database_now, errors_of_alias
from sqlqueue_app.tables.installation import DELAYED_SUFFIX

logger = logging.getLogger("sqlqueue.notifications")

TIMEOUT_SECONDS: Final = 10.0
# Longer than any attempt.
LEASE: Final = timedelta(minutes=2)
# After each attempt but the last.
DELAYS: Final = tuple(timedelta(seconds=seconds) for seconds in (10, 60, 300, 1_800))
MAX_ATTEMPTS: Final = len(DELAYS) + 1
MAX_ADDRESSES: Final = 20
_SEPARATORS: Final = re.compile(r"[\s,;]+")
_KEPT_CHARACTERS: Final = 500


class NotificationSender:
    """Sends due notifications. One object serves one thread; others, in this process and elsewhere, may compete with it.

    Before sending, the time of the next attempt is moved to the end of a lease in a separate statement: no transaction is open
    while sending, and if the process is killed the notification is sent again after the lease.
    `now` is the clock of the managed tables' database unless given; `timeout` is in seconds.
    """

    def __init__(self, settings: Settings, *, now: Callable[[], datetime] | None = None, timeout: float = TIMEOUT_SECONDS) -> None:
        self._settings = settings
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)
        self._timeout = timeout
        self._links = Links(settings)

    def send_due(self, stop: StopSignal) -> int:
        """Try all due notifications once, untried ones first, until the stop. Returns the number of attempts. DatabaseError."""
        tried = 0
        with errors_of_alias(self._alias, "send notifications"):
            while not stop.is_set():
                # One at a time, so that new notifications do not wait for the retries to a receiver that hangs.
                due = self._waiting().filter(next_attempt_at__lte=self._now()).order_by("attempts", "next_attempt_at")
                found = due.values_list("pk", "next_attempt_at").first()
                if found is None:
                    break
                delivery = self._take(*found)
                if delivery is not None:
                    self._try(delivery)
                    tried += 1
        return tried

    def _waiting(self) -> QuerySet[NotificationDelivery]:
        return NotificationDelivery.objects.using(self._alias).filter(state=DeliveryState.WAITING)

    def _take(self, pk: UUID, seen: datetime | None) -> NotificationDelivery | None:
        """The delivery, leased to this process; None if another process has it."""
        mine = self._waiting().filter(pk=pk, next_attempt_at=seen)
        if mine.update(next_attempt_at=self._now() + LEASE, attempts=F("attempts") + 1) != 1:
            return None
        return NotificationDelivery.objects.using(self._alias).select_related("rule").get(pk=pk)

    def _try(self, delivery: NotificationDelivery) -> None:
        extra = {"event": "notification_sent"}
        where = f"{delivery.channel} {shown_target(delivery.channel, delivery.target)}"
        try:
            if delivery.attempts > MAX_ATTEMPTS:
                raise SendFailed("every worker that tried to send it ended before it had a response", is_final=True)
            self._send(delivery)
        except SendFailed as error:
            self._failed(delivery, error, where)
            return
        except (TransientError, DatabaseError):
            raise  # raised by our own statements: the lease expires
        except Exception as error:  # noqa: BLE001 - a notification that cannot be rendered must not be retried forever
            self._failed(delivery, SendFailed(f"{type(error).__name__}: {error}"), where)
            return
        # Even if the lease has expired and another process has it: it is sent.
        self._waiting().filter(pk=delivery.pk).update(
            state=DeliveryState.SENT, finished_at=self._now(), next_attempt_at=None, error=""
        )
        logger.info("notification %r is sent to %s (%s)", delivery.rule_name, where, delivery.pk, extra=extra)

    def _failed(self, delivery: NotificationDelivery, error: SendFailed, where: str) -> None:
        text = str(error).replace("\x00", "")[:_KEPT_CHARACTERS]
        mine = self._waiting().filter(pk=delivery.pk, attempts=delivery.attempts)
        now = self._now()
        if error.is_final or delivery.attempts >= MAX_ATTEMPTS:
            with transaction.atomic(using=self._alias):
                if mine.update(state=DeliveryState.FAILED, finished_at=now, next_attempt_at=None, error=text):
                    record_event(EventKind.NOTIFICATION_FAILED, delivery.rule_name, {"error": text}, now=now)
            line = "notification %r cannot be sent to %s, given up after %s: %s (%s)"
            extra = {"event": "notification_failed"}
            logger.error(line, delivery.rule_name, where, counted(delivery.attempts, "attempt"), text, delivery.pk, extra=extra)
            return
        delay = DELAYS[delivery.attempts - 1]
        mine.update(next_attempt_at=now + delay, error=text)
        extra_of_delay = {"event": "notification_delayed", "delay_seconds": delay.total_seconds()}
        line = "notification %r cannot be sent to %s, tried again in %g s: %s (%s)"
        logger.warning(line, delivery.rule_name, where, delay.total_seconds(), text, delivery.pk, extra=extra_of_delay)

    def _send(self, delivery: NotificationDelivery) -> None:
        """Make one attempt; raises SendFailed."""
        rule = delivery.rule
        if rule is None:
            raise SendFailed("the rule was deleted", is_final=True)
        links = self._links
        with translation.override(django_settings.LANGUAGE_CODE):
            rule_link = links.of_rule(rule.pk)
            if delivery.channel == NotificationChannel.MAIL:
                text = "\n".join(lines_of(delivery, links.of_change, rule_link)) + "\n"
                send_mail(delivery.pk, delivery.target.split(), title_of(delivery), text, timeout=self._timeout)
                return
            body = json.dumps(document_of(delivery, links.of_change, rule_link)).encode()
        if not host_is_allowed(delivery.target, self._settings.webhook_hosts):
            raise SendFailed("WEBHOOK_HOSTS does not allow the host", is_final=True)
        try:
            headers = signed_headers(rule.secret, str(delivery.pk), self._now(), body)
        except ValueError as error:
            raise SendFailed("the rule has no secret that can sign", is_final=True) from error
        post(delivery.target, body, headers, timeout=self._timeout)


def shown_target(channel: str, target: str) -> str:
    """The recipient in a form that all users may see: only the host of a webhook, because its path may be a secret."""
    if channel != NotificationChannel.WEBHOOK:
        return ", ".join(target.split())
    scheme, _colon, rest = target.partition("://")
    return f"{scheme}://{rest.partition('/')[0].partition('?')[0]}/…"


def mail_addresses(text: str) -> list[str]:
    """The unique addresses in a text. ValidationError for an invalid address, for none, and for too many."""
    found = list(dict.fromkeys(each for each in _SEPARATORS.split(text) if each))
    errors = []
    if not 0 < len(found) <= MAX_ADDRESSES:
        errors.append(_("Expected 1 to %(count)s email addresses, one per line.") % {"count": MAX_ADDRESSES})
    for each in found:
        try:
            validate_email(each)
        except ValidationError:
            words = {"text": Truncator(each).chars(200)}
            errors.append(_("“%(text)s” is not an email address such as ops@example.com.") % words)
    if errors:
        raise ValidationError(errors)
    return found


def last_deliveries(found: Iterable[NotificationRule]) -> dict[int, NotificationDelivery]:
    """The newest delivery of each rule, by the key of the rule. Two statements."""
    deliveries = NotificationDelivery.objects.using(managed_alias())
    newest = deliveries.filter(rule=OuterRef("pk")).order_by("-created_at", "-pk").values("pk")[:1]
    rules = NotificationRule.objects.using(managed_alias()).filter(pk__in=[rule.pk for rule in found])
    last = deliveries.filter(pk__in=[key for key in rules.values_list(Subquery(newest), flat=True) if key])
    return {each.rule_id: each for each in last if each.rule_id is not None}


# The time limit of an attempt; a mail server may use its timeout for each step of the dialog, and is not awaited longer.
_END_SECONDS: Final = TIMEOUT_SECONDS + 1.0


class Notifications:
    """Evaluates the rules, and sends in a separate thread, because receivers may be slow. `now` is the managed tables' clock."""

    def __init__(
        self, settings: Settings, stop: StopSignal, *, now: Callable[[], datetime] | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self._alias = managed_alias()
        self._evaluator = Evaluator(settings, now=now)
        self._sender = NotificationSender(settings, now=now, timeout=timeout)
        self._stop = stop
        self._wake = threading.Event()
        self._leaves_out = False
        stop.subscribe(self._wake.set)

    def job(self) -> BackgroundJob:
        return BackgroundJob("notifications", EVERY_SECONDS, self.evaluate, retries_silently=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While open, a thread sends the notifications of `evaluate`. The stop signal ends it; set it on leaving."""
        thread = threading.Thread(target=self._send, name="sqlqueue-notifications", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(_END_SECONDS)

    def evaluate(self) -> bool:
        """Evaluate the rules. Returns whether there is something to send. One statement if not. Raises DatabaseError."""
        if self._leaves_out:
            self._leaves_out = False
            return False
        waiting = NotificationDelivery.objects.using(self._alias).filter(rule=OuterRef("pk"), state=DeliveryState.WAITING)
        rules = NotificationRule.objects.using(self._alias).annotate(has_waiting=Exists(waiting))
        found = list(rules.filter(Q(enabled=True) | Q(has_waiting=True)).values_list("enabled", "has_waiting"))
        self._leaves_out = not found
        made = self._evaluator.evaluate() if any(enabled for enabled, _waiting in found) else 0
        is_waiting = made > 0 or any(has_waiting for _enabled, has_waiting in found)
        if is_waiting:
            self._wake.set()
        return is_waiting

    def _send(self) -> None:
        # A worker without this thread would send no more notifications.
        with self._stop.failing_with(logger, "the thread that sends notifications died"):
            while not self._stop.is_set():
                self._wake.wait()
                self._wake.clear()
                self._send_once()

    def _send_once(self) -> None:
        try:
            self._sender.send_due(self._stop)
        except TransientError:
            return  # the next evaluation wakes the thread
        except Exception:
            extra = {"event": "background_job_failed", "job": "notifications"}
            logger.exception("sending notifications failed", extra=extra)
        finally:
            connections.close_all()


# Characters that Django keeps in the URL of a page.
_PLAIN = "!$&'()*+,;=/~:@"


class Links:
    """Builds URLs below `ADMIN_URL`, since a worker has no request with a host; empty without that setting."""

    def __init__(self, settings: Settings) -> None:
        self._base = "" if settings.admin_url is None else f"{settings.admin_url.rstrip('/')}/sqlqueue_app/"

    def of_change(self, kind: str, change: Change) -> str:
        """The page about a change."""
        subject = str(change.get("subject", ""))
        if kind == NotificationKind.NEW_GROUP:
            return self._page(f"failedmessage/group/{change['group']}/") if change.get("group") else ""
        if kind == NotificationKind.FAILURES_ABOVE:
            return self._page("failedmessage/messages/")
        if kind == NotificationKind.INSTANCES_BELOW:
            return self._page(f"endpoint/{_segment(subject)}/")
        if kind in (NotificationKind.QUEUE_LONGER, NotificationKind.QUEUE_OLDER):
            endpoint = subject.removesuffix(DELAYED_SUFFIX)
            return self._page(f"queue/{_segment(subject)}/" if endpoint == subject else f"delayedmessage/{_segment(endpoint)}/")
        return self._page("checkresult/") if kind == NotificationKind.CHECK_FAILED else ""

    def of_rule(self, rule_id: int) -> str:
        return self._page(f"notificationrule/{rule_id}/")

    def _page(self, path: str) -> str:
        return f"{self._base}{path}" if self._base else ""


def _segment(name: str) -> str:
    return quote(path_of(name), safe=_PLAIN)


def send_mail(delivery_id: UUID, addresses: Sequence[str], title: str, text: str, *, timeout: float) -> None:
    """Send one mail to all addresses. Raises SendFailed with the error of the backend or the server.

    `timeout`, in seconds, applies to each step of the dialog with the server; EMAIL_TIMEOUT overrides it. A mail that is sent
    again has the same Message-ID.
    """
    message = mail.EmailMessage(
        " ".join(f"{django_settings.EMAIL_SUBJECT_PREFIX}{title}".split()),
        text,
        to=list(addresses),
        headers={"Message-ID": f"<{delivery_id}@{mail.DNS_NAME}>", "Auto-Submitted": "auto-generated"},
    )
    try:
        sent = _backend(timeout).send_messages([message])
    except Exception as error:
        # Third-party backends may raise anything.
        raise SendFailed(f"{type(error).__name__}: {error}") from error
    if not sent:
        raise SendFailed("the mail backend has sent nothing")


def _backend(timeout: float) -> Any:
    # Django 6.1 has mailers and deprecates other ways to create a connection.
    mailers = getattr(mail, "mailers", None)
    backend: Any = mail.get_connection() if mailers is None else mailers.default
    if getattr(backend, "timeout", timeout) is None:
        backend.timeout = timeout
    return backend


MAX_SUBJECT_LENGTH: Final = 200
_RAISED: Final = {
    NotificationKind.FAILURES_ABOVE: gettext_lazy("failed messages: %(value)s; the limit is %(threshold)s"),
    NotificationKind.INSTANCES_BELOW: gettext_lazy("live instances: %(value)s; the minimum is %(threshold)s"),
    NotificationKind.QUEUE_LONGER: gettext_lazy("messages waiting: %(value)s; the limit is %(threshold)s"),
    NotificationKind.QUEUE_OLDER: gettext_lazy("the oldest message has been waiting for %(value)s s; the limit is %(threshold)s s"),
    NotificationKind.CHECK_FAILED: gettext_lazy("the check fails"),
}
_RESOLVED: Final = {
    NotificationKind.FAILURES_ABOVE: gettext_lazy("recovered; failed messages: %(value)s"),
    NotificationKind.INSTANCES_BELOW: gettext_lazy("recovered; live instances: %(value)s"),
    NotificationKind.QUEUE_LONGER: gettext_lazy("recovered; messages waiting: %(value)s"),
    NotificationKind.QUEUE_OLDER: gettext_lazy("recovered; the oldest message has been waiting for %(value)s s"),
    NotificationKind.CHECK_FAILED: gettext_lazy("the check passes"),
}
LinkOf = Callable[[str, Change], str]


def title_of(delivery: NotificationDelivery) -> str:
    """One line: the rule, and its change or the number of changes."""
    line = " ".join(f"{delivery.rule_name}: {change_summary(delivery)}".split())
    return line if len(line) <= MAX_SUBJECT_LENGTH else f"{line[: MAX_SUBJECT_LENGTH - 1]}…"


def change_summary(delivery: NotificationDelivery) -> str:
    """The change of a notification, or the number of changes."""
    changes, more = _changes(delivery)
    if delivery.is_test:
        return _("a test")
    if len(changes) == 1 and not more:
        return sentence(str(delivery.payload.get("kind")), changes[0])
    count = len(changes) + more
    return ngettext("%(count)s change", "%(count)s changes", count) % {"count": count}


def sentences_of(delivery: NotificationDelivery) -> list[str]:
    """Each change in words, and the number of further changes."""
    changes, more = _changes(delivery)
    return [*(sentence(str(delivery.payload.get("kind")), each) for each in changes), *_and_more(more)]


def lines_of(delivery: NotificationDelivery, link_of: LinkOf, rule_link: str) -> Iterator[str]:
    """The text of a notification, line by line, without empty links."""
    kind = str(delivery.payload.get("kind"))
    changes, more = _changes(delivery)
    if delivery.is_test:
        yield _("This is a test of the notification “%(rule)s”. Nothing has happened.") % {"rule": delivery.rule_name}
    for each in changes:
        yield f"- {sentence(kind, each)} ({str(each.get('at'))[:19].replace('T', ' ')} UTC)"
        if link := link_of(kind, each):
            yield f"  {link}"
    yield from _and_more(more)
    raised = delivery.payload.get("raised") or []
    if raised:
        yield ""
        yield _("Still active: %(subjects)s") % {"subjects": ", ".join(name_of(kind, each) for each in raised)}
    if rule_link:
        yield ""
        yield _("The rule of this notification: %(link)s") % {"link": rule_link}


def sentence(kind: str, change: Change) -> str:
    """A change in words."""
    what = change.get("change")
    name = name_of(kind, str(change.get("subject", "")))
    if what == NEW:
        return _("new group of failures: %(group)s") % {"group": name}
    if what == GONE:
        return _("%(subject)s: no longer known") % {"subject": name}
    if change.get("check"):
        check, of = str(change["check"]), str(change.get("check_of", ""))
        name = label_of(check) if what == RAISED or not of else f"{label_of(check)}, {of}"
        found = describe_finding(check, of, change.get("details")) if what == RAISED else ""
        if found:
            return _("%(subject)s: %(text)s") % {"subject": name, "text": found}
    texts = {RAISED: _RAISED, RESOLVED: _RESOLVED}.get(str(what), {})
    bound = "" if change.get("exact", True) else "≥ "
    words = {"value": bound + _format_number(change.get("value")), "threshold": _format_number(change.get("threshold"))}
    text = str(texts[NotificationKind(kind)]) % words if kind in texts else str(what)
    return _("%(subject)s: %(text)s") % {"subject": name, "text": text}


def describe_condition(rule: NotificationRule) -> str:
    """The condition of a rule in words."""
    label = rule.get_kind_display()
    if rule.threshold is not None:
        unit = _("%(n)s s") if rule.kind == NotificationKind.QUEUE_OLDER else "%(n)s"
        return f"{label} {unit % {'n': _format_number(rule.threshold)}}"
    if rule.kind == NotificationKind.INSTANCES_BELOW:
        return label + " " + _("the minimum of the endpoint")
    return label


def name_of(kind: str, subject: str) -> str:
    """The name of a subject; all subjects together have none."""
    if not subject and kind == NotificationKind.FAILURES_ABOVE:
        return _("all endpoints")
    if kind == NotificationKind.CHECK_FAILED:
        check, colon, of = subject.partition(": ")
        return f"{label_of(check)}{colon}{of}"
    return subject


def document_of(delivery: NotificationDelivery, link_of: LinkOf, rule_link: str) -> dict[str, Any]:
    """The payload of a webhook: `type`, `timestamp` and `data`, following the Standard Webhooks convention."""
    kind = str(delivery.payload.get("kind"))
    changes, more = _changes(delivery)
    return {
        "type": "sqlqueue.test" if delivery.is_test else f"sqlqueue.{kind}",
        "timestamp": delivery.created_at.isoformat().replace("+00:00", "Z"),
        "data": {
            "rule": delivery.rule_name,
            "kind": kind,
            "title": title_of(delivery),
            "text": "\n".join(lines_of(delivery, link_of, rule_link)),
            "of": delivery.payload.get("of", ""),
            "threshold": delivery.payload.get("threshold"),
            "changes": [{**each, "url": link_of(kind, each) or None} for each in changes],
            "more": more,
            "raised": delivery.payload.get("raised") or [],
            "raised_count": delivery.payload.get("raised_count", 0),
            "url": rule_link or None,
        },
    }


def _and_more(count: int) -> list[str]:
    return [ngettext("… and %(count)s more", "… and %(count)s more", count) % {"count": count}] if count else []


def _changes(delivery: NotificationDelivery) -> tuple[list[Change], int]:
    return list(delivery.payload.get("changes") or ()), int(delivery.payload.get("more") or 0)


def _format_number(value: object) -> str:
    """A number for people, with one decimal if it is not whole."""
    if not isinstance(value, int | float):
        return "0"
    return str(number_format(round(value, 1) if value % 1 else int(value), force_grouping=True))


def _one_line(text: str) -> None:
    if not text.isprintable():
        raise ValidationError(_("Expected one line of printable characters."))


class SecretForm(forms.Form):
    """A secret."""

    secret = forms.CharField(
        label=gettext_lazy("Secret"), widget=forms.TextInput(PLAIN_INPUT), validators=[webhooks.validate_secret]
    )


class RuleForm(forms.Form):
    """A rule. Its secret may stay empty if it was initially: then one is stored."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=rules.MAX_NAME_LENGTH, validators=[_one_line])
    kind = forms.ChoiceField(
        label=gettext_lazy("Condition"), choices=[(value, capfirst(label)) for value, label in NotificationKind.choices]
    )
    subject = forms.CharField(
        label=gettext_lazy("Applies to"), max_length=400, required=False, validators=[_one_line],
        help_text=gettext_lazy("The name of a queue, an endpoint or a check; empty for all."),
    )  # fmt: skip
    threshold = forms.FloatField(
        label=gettext_lazy("Alert above"), required=False,
        help_text=gettext_lazy("A number of messages or seconds, or the least number of instances. Empty for groups and checks."),
    )  # fmt: skip
    channel = forms.ChoiceField(
        label=gettext_lazy("Channel"), choices=[(value, capfirst(label)) for value, label in NotificationChannel.choices]
    )
    target = forms.CharField(
        label=gettext_lazy("Recipients"), widget=forms.Textarea({"rows": 3}),
        help_text=gettext_lazy("Email addresses, one per line; or the URL of a webhook, which begins with https:// or http://."),
    )  # fmt: skip
    throttle_seconds = forms.IntegerField(
        label=gettext_lazy("Minimum interval (s)"), min_value=0, max_value=rules.MAX_THROTTLE_SECONDS,
        initial=rules.DEFAULT_THROTTLE_SECONDS,
        help_text=gettext_lazy("Changes within the interval are collected into the next notification."),
    )  # fmt: skip
    secret = forms.CharField(label=gettext_lazy("Secret"), widget=forms.TextInput(PLAIN_INPUT), required=False)

    def clean_threshold(self) -> float | None:
        """The threshold; None for kinds without one."""
        value: float | None = self.cleaned_data["threshold"]
        takes = rules.THRESHOLDS.get(self.cleaned_data.get("kind", ""))
        if takes is not None and not takes.allows(value):
            raise ValidationError(_("Expected %(expected)s.") % {"expected": takes.words})
        return None if takes is None else value

    def clean_target(self) -> str:
        """A URL, or one address per line, as the channel requires."""
        text = str(self.cleaned_data["target"])
        channel = self.cleaned_data.get("channel")
        if channel == NotificationChannel.WEBHOOK:
            webhooks.validate_url(text, get_settings().webhook_hosts)
        return "\n".join(mail_addresses(text)) if channel == NotificationChannel.MAIL else text

    def clean_secret(self) -> str:
        """The secret of a webhook; empty for mail, and to keep the stored one."""
        if self.cleaned_data.get("channel") != NotificationChannel.WEBHOOK:
            return ""
        if secret := str(self.cleaned_data["secret"]):
            webhooks.validate_secret(secret)
        elif self.initial["secret"]:
            raise ValidationError(_("A webhook needs a secret, which signs what is sent."))
        return secret
