"""The addresses of admin pages in notifications: those who send have no request from which to know them, so `ADMIN_URL` says."""

from __future__ import annotations

from urllib.parse import quote

from sqlqueue_app.conf import Settings
from sqlqueue_app.models import NotificationKind
from sqlqueue_app.operations.admin_paths import path_of
from sqlqueue_app.operations.notifications.evaluation import Change

# What Django leaves as it is when it makes the address of a page.
_PLAIN = "!$&'()*+,;=/~:@"


class Links:
    """Makes addresses below `ADMIN_URL`; empty ones without it."""

    def __init__(self, settings: Settings) -> None:
        self._base = "" if settings.admin_url is None else f"{settings.admin_url.rstrip('/')}/sqlqueue_app/"

    def of_change(self, kind: str, change: Change) -> str:
        """The page about what has changed."""
        subject = str(change.get("subject", ""))
        if kind == NotificationKind.NEW_GROUP:
            return self._page(f"failedmessage/group/{change['group']}/") if change.get("group") else ""
        if kind == NotificationKind.FAILURES_ABOVE:
            return self._page("failedmessage/messages/")
        if kind == NotificationKind.INSTANCES_BELOW:
            return self._page(f"endpoint/{_segment(subject)}/")
        if kind in (NotificationKind.QUEUE_LONGER, NotificationKind.QUEUE_OLDER):
            return self._page(f"queue/{_segment(subject)}/")
        return self._page("checkresult/") if kind == NotificationKind.CHECK_FAILED else ""

    def of_rule(self, rule_id: int) -> str:
        """The rule, with what it has sent."""
        return self._page(f"notificationrule/{rule_id}/")

    def _page(self, path: str) -> str:
        return f"{self._base}{path}" if self._base else ""


def _segment(name: str) -> str:
    return quote(path_of(name), safe=_PLAIN)
