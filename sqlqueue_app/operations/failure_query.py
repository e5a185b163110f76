"""The query bar of the failures: one line of text, read as a selection.

`type:PlaceOrder endpoint:Sales failed:-6h..now "no more"` are filters by their names, times, and words that must stand somewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.http import QueryDict
from django.utils.translation import gettext as _

from sqlqueue_app.models import FailureStatus
from sqlqueue_app.operations.failure_selection import FailureSelection

# What is written in the bar, and the part of the selection that it says.
KEYS: Final[Mapping[str, str]] = {
    "type": "message_type",
    "endpoint": "endpoint",
    "status": "statuses",
    "exception": "exception",
    "queue": "queue",
    "conversation": "conversation",
    "id": "message_id",
    "group": "group",
    "also": "also",
    "retried": "retried_to",
}
ANY_STATUS: Final = "any"
LONGEST: Final = 2_000
_FAILED: Final = "failed"
_TOKEN: Final = re.compile(r'(?:(?P<key>[A-Za-z]+):)?(?P<value>"[^"]*"|\S+)')
_AGO: Final = re.compile(r"-([0-9]{1,6})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def read_query(text: str, now: datetime) -> FailureSelection:
    """The selection that the text says. What cannot be read is a problem of the selection; never raises.

    A name that nobody knows belongs to a word of the text: `https://…` is one. Of a filter that comes twice the last is taken, and
    of several `status:` all.
    """
    query = QueryDict(mutable=True)
    words: list[str] = []
    problems: list[str] = []
    if len(text) > LONGEST:
        problems.append(_("The query is longer than %(most)d characters.") % {"most": LONGEST})
    for token in _TOKEN.finditer(text[:LONGEST]):
        key, value = (token["key"] or "").lower(), token["value"]
        if key == _FAILED:
            _read_times(value.strip('"'), now, query, problems)
        elif key == "status" and value.lower() == ANY_STATUS:
            query.setlist("statuses", [each.name.lower() for each in FailureStatus])
        elif key in KEYS:
            query.appendlist(KEYS[key], value.strip('"'))
        else:
            words.append(token[0])
    query["text"] = " ".join(words)
    found = FailureSelection.from_query(query)
    return found.with_problems(*problems)


def write_query(selection: FailureSelection) -> str:
    """The text of the bar that says the selection, but for messages that are chosen one by one."""
    parts = []
    if set(selection.statuses) == set(FailureStatus):
        parts.append(f"status:{ANY_STATUS}")
    else:
        parts += [f"status:{each.name.lower()}" for each in selection.statuses]
    texts = ((key, getattr(selection, name)) for key, name in KEYS.items() if name != "statuses")
    parts += [f"{key}:{_quoted(str(value))}" for key, value in texts if value]
    since, until = (each.isoformat().replace("+00:00", "Z") if each else "" for each in (selection.since, selection.until))
    if since or until:
        parts.append(f"{_FAILED}:{since}..{until}")
    return " ".join([*parts, selection.text]).strip()


def _quoted(value: str) -> str:
    return f'"{value}"' if re.search(r"\s", value) else value


def _read_times(value: str, now: datetime, query: QueryDict, problems: list[str]) -> None:
    begin, dots, end = value.partition("..")
    for name, said in (("since", begin), ("until", end if dots else "")):
        if not said or (said == "now" and name == "until"):
            continue
        ago = _AGO.fullmatch(said)
        try:
            instant = now - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]]) if ago else now
        except OverflowError:
            problems.append(_("“%(value)s” is no time: that is too long ago.") % {"value": said})
            continue
        query[name] = instant.isoformat() if ago or said == "now" else said
