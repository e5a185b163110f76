"""The periods of charts: which there are, which one is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


@dataclass(frozen=True, slots=True)
class Period:
    """A period by its name in the query string; `label` in words; how often a page that shows it is worth refreshing."""

    name: str
    label: str | Promise
    length: timedelta
    refresh_seconds: int


# As long as ServiceControl's (operations reference 3.1), and on to a month, for which samples are kept.
PERIODS: Final = (
    Period("5m", _("5 minutes"), timedelta(minutes=5), 5),
    Period("15m", _("15 minutes"), timedelta(minutes=15), 10),
    Period("1h", _("1 hour"), timedelta(hours=1), 10),
    Period("6h", _("6 hours"), timedelta(hours=6), 60),
    Period("1d", _("1 day"), timedelta(days=1), 60),
    Period("7d", _("7 days"), timedelta(days=7), 60),
    Period("30d", _("30 days"), timedelta(days=30), 60),
)
DEFAULT: Final = PERIODS[2]


def period_of(request: HttpRequest) -> Period:
    """The period that the query string names by ``period``; an hour for none or one that there is not."""
    name = request.GET.get("period", "")
    return next((each for each in PERIODS if each.name == name), DEFAULT)
