"""What a notification says: sentences in the language that is active, and a document for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.models import NotificationDelivery, NotificationKind
from sqlqueue_app.operations.notifications.evaluation import GONE, NEW, RAISED, RESOLVED, Change
from sqlqueue_app.operations.watching.catalogue import finding_in_words, label_of

LONGEST_SUBJECT: Final = 200
_RAISED: Final = {
    NotificationKind.FAILURES_ABOVE: gettext_lazy("%(value)s failed messages; the limit is %(threshold)s"),
    NotificationKind.INSTANCES_BELOW: gettext_lazy("%(value)s live instances; there should be at least %(threshold)s"),
    NotificationKind.QUEUE_LONGER: gettext_lazy("%(value)s messages are waiting; the limit is %(threshold)s"),
    NotificationKind.QUEUE_OLDER: gettext_lazy("the first message has been waiting for %(value)s s; the limit is %(threshold)s s"),
    NotificationKind.CHECK_FAILED: gettext_lazy("the check fails"),
}
_RESOLVED: Final = {
    NotificationKind.FAILURES_ABOVE: gettext_lazy("it is over; %(value)s failed messages"),
    NotificationKind.INSTANCES_BELOW: gettext_lazy("it is over; %(value)s live instances"),
    NotificationKind.QUEUE_LONGER: gettext_lazy("it is over; %(value)s messages are waiting"),
    NotificationKind.QUEUE_OLDER: gettext_lazy("it is over; the first message has been waiting for %(value)s s"),
    NotificationKind.CHECK_FAILED: gettext_lazy("the check passes"),
}
LinkOf = Callable[[str, Change], str]


def title_of(delivery: NotificationDelivery) -> str:
    """One line: the rule and what it has to tell, or how much."""
    line = " ".join(f"{delivery.rule_name}: {news_of(delivery)}".split())
    return line if len(line) <= LONGEST_SUBJECT else f"{line[: LONGEST_SUBJECT - 1]}…"


def news_of(delivery: NotificationDelivery) -> str:
    """What a notification has to tell, or how much that is."""
    changes, more = _changes(delivery)
    if delivery.is_test:
        return _("a test")
    if len(changes) == 1 and not more:
        return sentence(str(delivery.payload.get("kind")), changes[0])
    count = len(changes) + more
    return ngettext("%(count)s change", "%(count)s changes", count) % {"count": count}


def sentences_of(delivery: NotificationDelivery) -> list[str]:
    """Each change in words, and how many more there were."""
    changes, more = _changes(delivery)
    return [*(sentence(str(delivery.payload.get("kind")), each) for each in changes), *_and_more(more)]


def lines_of(delivery: NotificationDelivery, link_of: LinkOf, rule_link: str) -> Iterator[str]:
    """The text of a notification, line by line. Links are left out where they are empty."""
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
        yield _("Not over yet: %(subjects)s") % {"subjects": ", ".join(name_of(kind, each) for each in raised)}
    if rule_link:
        yield ""
        yield _("The rule of this notification: %(link)s") % {"link": rule_link}


def sentence(kind: str, change: Change) -> str:
    """A change in words."""
    what, name = change.get("change"), name_of(kind, str(change.get("subject", "")))
    if what == NEW:
        return _("new group of failures: %(group)s") % {"group": name}
    if what == GONE:
        return _("%(subject)s: nothing is known of it any more") % {"subject": name}
    if change.get("check"):
        check, of = str(change["check"]), str(change.get("check_of", ""))
        name = label_of(check) if what == RAISED or not of else f"{label_of(check)}, {of}"
        found = finding_in_words(check, of, change.get("details")) if what == RAISED else ""
        if found:
            return _("%(subject)s: %(text)s") % {"subject": name, "text": found}
    texts = {RAISED: _RAISED, RESOLVED: _RESOLVED}.get(str(what), {})
    words = {"value": number_in_words(change.get("value")), "threshold": number_in_words(change.get("threshold"))}
    text = str(texts[NotificationKind(kind)]) % words if kind in texts else str(what)
    return _("%(subject)s: %(text)s") % {"subject": name, "text": text}


def name_of(kind: str, subject: str) -> str:
    """What is spoken of; everything has no name of its own."""
    if not subject and kind == NotificationKind.FAILURES_ABOVE:
        return _("all endpoints")
    return subject


def document_of(delivery: NotificationDelivery, link_of: LinkOf, rule_link: str) -> dict[str, Any]:
    """What a webhook is told: `type`, `timestamp` and `data`, as the Standard Webhooks convention asks."""
    kind = str(delivery.payload.get("kind"))
    changes, more = _changes(delivery)
    created = delivery.created_at
    return {
        "type": "sqlqueue.test" if delivery.is_test else f"sqlqueue.{kind}",
        "timestamp": created.isoformat().replace("+00:00", "Z") if created is not None else None,
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


def number_in_words(value: object) -> str:
    """A number as people write it, with one digit after the point where it is not whole."""
    if not isinstance(value, int | float):
        return "0"
    return str(number_format(round(value, 1) if value % 1 else int(value), force_grouping=True))
