"""What the pages of analytics are asked for: the period with its steps, the endpoint, the message type."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.operations.analytics.asking import DAY, HOUR, MINUTE, FiguresAsked

LONGEST: Final = 400


@dataclass(frozen=True, slots=True)
class FigurePeriod:
    """A period by its name in the query string, and the length of its steps in seconds."""

    name: str
    label: str | Promise
    length: timedelta
    seconds: int


# Figures of minutes are kept for 2 days, of hours for 92, of days for ever.
PERIODS: Final = (
    FigurePeriod("1h", _("1 hour"), timedelta(hours=1), MINUTE),
    FigurePeriod("6h", _("6 hours"), timedelta(hours=6), MINUTE),
    FigurePeriod("1d", _("1 day"), timedelta(days=1), MINUTE),
    FigurePeriod("7d", _("7 days"), timedelta(days=7), HOUR),
    FigurePeriod("30d", _("30 days"), timedelta(days=30), HOUR),
    FigurePeriod("90d", _("90 days"), timedelta(days=90), DAY),
    FigurePeriod("1y", _("1 year"), timedelta(days=365), DAY),
)
DEFAULT: Final = PERIODS[2]


@dataclass(frozen=True, slots=True)
class PageAsked:
    """The period, and which figures it means now."""

    period: FigurePeriod
    figures: FiguresAsked

    @classmethod
    def read(cls, request: HttpRequest, now: datetime) -> PageAsked:
        """What the query string asks for; a day, and everything, where it does not say or cannot be read."""
        name = request.GET.get("period", "")
        period = next((each for each in PERIODS if each.name == name), DEFAULT)
        # NUL is in no name, and PostgreSQL does not take it.
        texts = [request.GET.get(key, "").replace("\0", "").strip()[:LONGEST] for key in ("endpoint", "type")]
        return cls(period, FiguresAsked.until(now, period.length, period.seconds, *texts))


def period_links(request: HttpRequest, period: FigurePeriod) -> list[tuple[str, str, bool]]:
    """A link for each period (label, query string, whether it is the one shown), which keeps what else is asked for."""
    links = []
    for each in PERIODS:
        query = request.GET.copy()
        query["period"] = each.name
        query.pop("format", None)
        links.append((str(each.label), query.urlencode(), each is period))
    return links
