"""The text of an event, in the language of who reads it."""

from __future__ import annotations

from django.utils.translation import gettext as _

from sqlqueue_app.models import Event
from sqlqueue_app.operations.events import CATALOGUE, EventKind, KindOfEvent
from sqlqueue_app.operations.watching.catalogue import finding_in_words, label_of
from sqlqueue_app.operations.words import Words


def kind_of_event(event: Event) -> KindOfEvent | None:
    """What its kind means; None for one that another version has written."""
    try:
        return CATALOGUE[EventKind(event.kind)]
    except ValueError:
        return None


def text_of_event(event: Event) -> str:
    """What has happened, in a sentence. Never raises, whatever stands in the row."""
    kind = kind_of_event(event)
    words = Words(event.subject, event.details)
    if kind is None:
        words["kind"] = event.kind
        return _("An event of a kind that this version does not know: %(kind)s, %(subject)s") % words
    check = words["check"]
    words["finding"] = finding_in_words(check, event.subject, event.details)
    words["check"] = f"{label_of(check)}: {event.subject}" if event.subject else label_of(check)
    return str(kind.text) % words
