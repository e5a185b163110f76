"""What an operator sees of a condition on the overview, in `sqlqueue_health` and in the states on the lists."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlqueue_app.conf import get_settings
from sqlqueue_app.monitoring.health import read_health
from tests.support.pages import Markup, client_of

ADMIN = "/admin/sqlqueue_app/"
NOTHING = "Nothing needs attention."


@dataclass
class Alerts:
    """The alerts on the overview, in its navigation and tile, and in `sqlqueue_health`; with the links of the page."""

    text: str
    checks: list[str]
    tile: int
    badge: int
    links: list[str]

    @property
    def are_none(self) -> bool:
        return (self.text.strip(), self.checks, self.badge) == (NOTHING, [], 0)


def alerts() -> Alerts:
    markup = Markup(client_of("viewer").get(f"{ADMIN}dashboard/").content.decode())
    text = markup.text().partition("Needs attention")[2].partition(" Now ")[0]
    tile = re.search(r"Checks (\d+) failing", markup.text())
    assert tile is not None
    return Alerts(text, [each.check for each in read_health(get_settings()).findings], int(tile[1]), _badge(markup), markup.links)


def badge(page: str) -> int:
    """The number of alerts in the navigation of a page, as written by workers."""
    return _badge(Markup(client_of("viewer").get(f"{ADMIN}{page}/").content.decode()))


def _badge(markup: Markup) -> int:
    counted = re.search(r"\((\d+) alerts?\)", markup.text())
    return int(counted[1]) if counted is not None else 0


def one_alert(check: str, *phrases: str) -> Alerts:
    """Assert that this is the only alert, with these phrases and its start time."""
    found = alerts()
    assert (found.checks, found.tile, found.badge) == ([check], 1, 1), (found.checks, found.text)
    assert len(re.findall(r"since [\d-]+ [\d:]{8} \(", found.text)) == 1, found.text
    for phrase in (*phrases, "since 20", ")"):
        assert phrase in found.text, found.text
    return found


def states(page: str) -> str:
    """The text of a list."""
    return Markup(client_of("viewer").get(f"{ADMIN}{page}/").content.decode()).text()
