"""The text of an event, in the language of who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from sqlqueue_app.models import Event
from sqlqueue_app.operations.events import CATALOGUE, EventKind, KindOfEvent


def kind_of_event(event: Event) -> KindOfEvent | None:
    """What its kind means; None for one that another version has written."""
    try:
        return CATALOGUE[EventKind(event.kind)]
    except ValueError:
        return None


def text_of_event(event: Event) -> str:
    """What has happened, in a sentence. Never raises, whatever stands in the row."""
    kind = kind_of_event(event)
    if kind is None:
        return _("An event of a kind that this version does not know: %(kind)s, %(subject)s") % {
            "kind": event.kind,
            "subject": event.subject,
        }
    return str(kind.text) % Words(event.subject, event.details)


class Words(dict[str, str]):
    """Values for a text by the names of its placeholders; a question mark for what is not there."""

    def __init__(self, subject: str, details: object) -> None:
        known: Mapping[str, Any] = details if isinstance(details, dict) else {}
        super().__init__({str(name): _in_words(value) for name, value in known.items()})
        self["subject"] = subject

    def __missing__(self, name: str) -> str:
        return "?"


def _in_words(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(number_format(value, decimal_pos=0, force_grouping=True))
    return str(value)
