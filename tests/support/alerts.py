"""What an operator sees of a condition: the overview, `sqlqueue_health`, the states on the lists."""

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
    """What needs attention, in the overview and in `sqlqueue_health`, each once, and the links of the page."""

    text: str
    checks: list[str]
    tile: int
    links: list[str]

    @property
    def are_none(self) -> bool:
        return (self.text.strip(), self.checks) == (NOTHING, [])


def alerts() -> Alerts:
    markup = Markup(client_of("viewer").get(f"{ADMIN}dashboard/").content.decode())
    text = markup.text().partition("Needs attention")[2].partition(" Now ")[0]
    tile = re.search(r"Checks (\d+) failing", markup.text())
    assert tile is not None
    return Alerts(text, [each.check for each in read_health(get_settings()).findings], int(tile[1]), markup.links)


def one_alert(check: str, *phrases: str) -> Alerts:
    """There is this one, with these words and since when."""
    found = alerts()
    assert (found.checks, found.tile) == ([check], 1), (found.checks, found.text)
    for phrase in (*phrases, "since 20", ")"):
        assert phrase in found.text, found.text
    return found


def states(page: str) -> str:
    """The text of a list."""
    return Markup(client_of("viewer").get(f"{ADMIN}{page}/").content.decode()).text()
