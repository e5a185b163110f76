"""Who may do what: one permission of Django for each power, and buttons that say why they cannot be pressed."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.operations.actions import Actor


class Power(enum.StrEnum):
    """The permissions of the dashboard, by their codenames in the app `sqlqueue_app`."""

    VIEW = "view_queue"
    VIEW_BODY = "view_body"
    EXPORT = "export"
    RETRY = "retry"
    EDIT = "edit_message"
    ARCHIVE = "archive"
    DELETE = "delete_message"
    MOVE = "move_message"
    PURGE = "purge_queue"
    CONTROL = "control_endpoint"
    REDIRECT = "manage_redirect"
    SETTINGS = "manage_settings"


_NAMES = {
    Power.VIEW: gettext_lazy("Can view queue"),
    Power.VIEW_BODY: gettext_lazy("Can see the bodies of messages"),
    Power.EXPORT: gettext_lazy("Can export lists and messages"),
    Power.RETRY: gettext_lazy("Can retry failed messages"),
    Power.EDIT: gettext_lazy("Can edit a failed message and retry it"),
    Power.ARCHIVE: gettext_lazy("Can archive failed messages, and bring them back"),
    Power.DELETE: gettext_lazy("Can delete messages"),
    Power.MOVE: gettext_lazy("Can move messages to another queue"),
    Power.PURGE: gettext_lazy("Can purge queues, and remove callback queues"),
    Power.CONTROL: gettext_lazy("Can pause and resume, and change the concurrency of instances"),
    Power.REDIRECT: gettext_lazy("Can manage redirects of retries"),
    Power.SETTINGS: gettext_lazy("Can manage notes, schedules, subscriptions and notifications"),
}


def may(request: HttpRequest, power: Power) -> bool:
    """Whether the user of the request has the power; nobody has one without VIEW."""
    user = request.user
    return bool(user.has_perm(f"sqlqueue_app.{Power.VIEW}") and user.has_perm(f"sqlqueue_app.{power}"))


def reason_of(power: Power) -> str:
    """What somebody without the power is told."""
    return _("You need the permission “%(permission)s”.") % {"permission": _NAMES[power]}


def refusal(request: HttpRequest, *powers: Power) -> str:
    """Why the user may not do what takes all of these powers; empty if he may."""
    return next((reason_of(power) for power in powers if not may(request, power)), "")


def require(request: HttpRequest, *powers: Power) -> None:
    """Raise PermissionDenied, with the reason, unless the user has all of these powers."""
    if reason := refusal(request, *powers):
        raise PermissionDenied(reason)


def missing(request: HttpRequest, power: Power, text: str) -> Exception:
    """What to raise for something that is not there, on a page that takes the power: who lacks it does not learn either."""
    return Http404(text) if may(request, power) else PermissionDenied(reason_of(power))


def actor_of(request: HttpRequest) -> Actor:
    """The user of a request, for the record of actions. The address is the one that the server has seen."""
    user = request.user
    key = "" if user.pk is None else str(user.pk)
    return Actor(user.get_username() or "anonymous", key, str(request.META.get("REMOTE_ADDR") or ""))


@dataclass(frozen=True, slots=True)
class Button:
    """A link to the page that confirms an action; with a `reason` it cannot be pressed, and says why."""

    label: str
    url: str
    reason: str = ""
    is_dangerous: bool = False


def button(request: HttpRequest, power: Power, label: str, url: str, *, dangerous: bool = False, reason: str = "") -> Button:
    """A button for an action; disabled without the power, or for another reason."""
    return Button(label, url, refusal(request, power) or reason, dangerous)
