"""Reading what somebody has typed into the form of a rule: the values of its columns, and what is wrong with them, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.conf import Settings
from sqlqueue_app.models import NotificationChannel, NotificationKind
from sqlqueue_app.operations.notifications.webhooks import (
    LEAST_SECRET_BYTES,
    MOST_SECRET_BYTES,
    UrlFault,
    host_is_allowed,
    key_of,
    url_fault,
)

MOST_ADDRESSES: Final = 20
LONGEST_NAME: Final = 100
MOST_THROTTLE_SECONDS: Final = 7 * 86_400
DEFAULT_THROTTLE_SECONDS: Final = 300
_FAULTS: Final = {
    UrlFault.UNREADABLE: gettext_lazy("an address that can be read, such as https://hooks.example.com/sqlqueue"),
    UrlFault.NO_WEB_ADDRESS: gettext_lazy("an address that begins with https:// or http:// and a host"),
    UrlFault.HAS_USER: gettext_lazy("an address without a user and a password"),
    UrlFault.TOO_LONG: gettext_lazy("at most 2,000 characters"),
    UrlFault.NOT_PLAIN: gettext_lazy("an address in ASCII without blanks: write other characters percent-encoded"),
}
_SEPARATORS: Final = re.compile(r"[\s,;]+")


@dataclass(frozen=True, slots=True)
class _Threshold:
    """What the threshold of a kind may be: from least to most, whole or not; `words` say so."""

    least: float
    most: float
    words: Any
    is_whole: bool = True
    is_required: bool = True


# The most that is counted, or makes sense.
_THRESHOLDS: Final = {
    NotificationKind.FAILURES_ABOVE: _Threshold(0, 1_000_000, gettext_lazy("a whole number from 0 to 1,000,000")),
    NotificationKind.INSTANCES_BELOW: _Threshold(
        1, 10_000, gettext_lazy("a whole number from 1 to 10,000, or nothing for the minimum of each endpoint"), is_required=False
    ),
    NotificationKind.QUEUE_LONGER: _Threshold(0, 10**12, gettext_lazy("a whole number from 0 on")),
    NotificationKind.QUEUE_OLDER: _Threshold(
        1, 366 * 86_400, gettext_lazy("a number of seconds from 1 to 31,622,400"), is_whole=False
    ),
}


@dataclass(frozen=True, slots=True)
class RuleValues:
    """What a rule tells of, and whom; without its secret."""

    name: str = ""
    kind: str = ""
    subject: str = ""
    threshold: float | None = None
    channel: str = ""
    target: str = ""
    throttle_seconds: int = DEFAULT_THROTTLE_SECONDS

    def columns(self) -> dict[str, Any]:
        """As columns of NotificationRule."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(slots=True)
class RuleForm:
    """Texts by the names of the columns; `problems` are whole sentences. Read once."""

    texts: Mapping[str, str]
    settings: Settings
    problems: list[str] = field(default_factory=list)

    def read(self) -> RuleValues:
        """The values; where there are problems, only some of them."""
        name, subject = self._line("name", LONGEST_NAME), self._line("subject", 400)
        if not name:
            self._expect(_("Name"), "", _("a name of at most 100 characters"))
        kind = self._choice("kind", _("When there is"), NotificationKind.values)
        channel = self._choice("channel", _("By"), NotificationChannel.values)
        target = self._addresses() if channel == NotificationChannel.MAIL else self._url() if channel else ""
        return RuleValues(name, kind, subject, self._threshold(kind), channel, target, self._throttle())

    def secret(self, *, is_required: bool) -> str:
        """The secret of a webhook, which no problem shows; empty for mail, and where it may be left out."""
        text = self._text("secret")
        if self._text("channel") != NotificationChannel.WEBHOOK or (not text and not is_required):
            return ""
        return checked_secret(text, self.problems)

    def _text(self, name: str) -> str:
        return self.texts.get(name, "").strip()

    def _line(self, name: str, longest: int) -> str:
        text = self._text(name)
        if len(text) > longest or not text.isprintable():
            labels = {"name": _("Name"), "subject": _("Of")}
            words = _("one line of at most %(count)s characters") % {"count": longest}
            self._expect(labels[name], text, words)
        return text

    def _choice(self, name: str, label: str, values: list[str]) -> str:
        text = self._text(name)
        if text in values:
            return text
        self._expect(label, text, _("one of: %(values)s") % {"values": ", ".join(values)})
        return ""

    def _threshold(self, kind: str) -> float | None:
        takes = _THRESHOLDS.get(NotificationKind(kind)) if kind else None
        text = self._text("threshold")
        if takes is None or (not text and not takes.is_required):
            return None  # of some kinds there is nothing to count
        value = _number(text)
        if value is None or not takes.least <= value <= takes.most or (takes.is_whole and value % 1):
            self._expect(_("Threshold"), text, str(takes.words))
            return None
        return value

    def _throttle(self) -> int:
        text = self._text("throttle_seconds")
        value = _number(text)
        if value is None or not 0 <= value <= MOST_THROTTLE_SECONDS or value % 1:
            self._expect(_("At most one in"), text, _("a whole number of seconds from 0 to 604,800"))
            return DEFAULT_THROTTLE_SECONDS
        return int(value)

    def _addresses(self) -> str:
        found = list(dict.fromkeys(each for each in _SEPARATORS.split(self._text("target")) if each))
        if not found or len(found) > MOST_ADDRESSES:
            words = _("1 to %(count)s addresses of mail, one in a line") % {"count": MOST_ADDRESSES}
            self._expect(_("To"), str(len(found)) if found else "", words)
        for each in found:
            try:
                validate_email(each)
            except ValidationError:
                self._expect(_("To"), each, _("an address of mail such as ops@example.com"))
        return "\n".join(found)

    def _url(self) -> str:
        text = self._text("target")
        fault = url_fault(text)
        if fault is not None:
            # A password in it is not shown again.
            self._expect(_("To"), "…" if fault is UrlFault.HAS_USER else text, str(_FAULTS[fault]))
        elif not host_is_allowed(text, self.settings.webhook_hosts):
            allowed = ", ".join(self.settings.webhook_hosts or ())
            self._expect(_("To"), text, _("a host that the setting WEBHOOK_HOSTS allows: %(hosts)s") % {"hosts": allowed or "–"})
        return text

    def _expect(self, label: str, text: str, words: str) -> None:
        shown = text if len(text) <= 200 else f"{text[:200]}…"
        said = {"label": label, "value": shown, "expected": words}
        self.problems.append(_("%(label)s: “%(value)s” does not fit, expected %(expected)s.") % said)


def checked_secret(text: str, problems: list[str]) -> str:
    """The secret, or a problem that does not show it."""
    try:
        key_of(text)
    except ValueError:
        words = {"least": LEAST_SECRET_BYTES, "most": MOST_SECRET_BYTES}
        problems.append(_("Secret: expected “whsec_” and the base64 of %(least)s to %(most)s bytes.") % words)
        return ""
    return text


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
