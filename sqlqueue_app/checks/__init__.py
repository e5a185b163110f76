"""Django system checks of sqlqueue; docs/reference/checks.md describes each by its id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlqueue_app.checks import database, dead_rows, lost_hosts, settings, two_phase

REGISTRATIONS: Final[list[Callable[[], None]]] = [
    settings.register,
    database.register,
    dead_rows.register,
    lost_hosts.register,
    two_phase.register,
]
"""One entry for each module of checks; each registers its checks with their tags."""


def register() -> None:
    """Register all checks with Django; called when the app is ready, harmless when called again."""
    for registration in REGISTRATIONS:
        registration()
