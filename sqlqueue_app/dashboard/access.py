"""Permissions of the dashboard, and buttons that are disabled with the reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.utils.translation import gettext as _, gettext_noop

from sqlqueue_app.models import Queue
from sqlqueue_app.status.events import Actor


class Permission(enum.StrEnum):
    """The permissions of the dashboard by codename in the app `sqlqueue_app`."""

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


def may(request: HttpRequest, permission: Permission) -> bool:
    """Whether the user has the permission; every permission also requires VIEW."""
    user = request.user
    return bool(user.has_perm(f"sqlqueue_app.{Permission.VIEW}") and user.has_perm(f"sqlqueue_app.{permission}"))


def refusal_text(permission: str) -> str:
    """The text shown to a user without the permission."""
    # Django provides the name of the view permission.
    name = dict(Queue._meta.permissions).get(permission, gettext_noop("Can view queue"))
    return _("You need the permission “%(permission)s”.") % {"permission": _(str(name))}


def refusal(request: HttpRequest, *permissions: Permission) -> str:
    """The reason why the user lacks one of these permissions; empty if allowed."""
    return next((refusal_text(permission) for permission in permissions if not may(request, permission)), "")


def require(request: HttpRequest, *permissions: Permission) -> None:
    """Raise PermissionDenied with the reason unless the user has all of these permissions."""
    if reason := refusal(request, *permissions):
        raise PermissionDenied(reason)


def not_found(request: HttpRequest, permission: Permission, text: str) -> Exception:
    """The exception for a missing object: Http404, or PermissionDenied for users who may not know that it is missing."""
    return Http404(text) if may(request, permission) else PermissionDenied(refusal_text(permission))


def actor_of(request: HttpRequest) -> Actor:
    """The user of a request for the record of actions, with the remote address that the server sees."""
    user = request.user
    key = "" if user.pk is None else str(user.pk)
    return Actor(user.get_username() or "anonymous", key, str(request.META.get("REMOTE_ADDR") or ""))


@dataclass(frozen=True, slots=True)
class Button:
    """A link to the confirmation page of an action; disabled if it has a `reason`. `about` names its row for screen readers."""

    label: str
    url: str
    reason: str
    is_dangerous: bool = False
    about: str = ""


def button(
    request: HttpRequest, permission: Permission, label: str, url: str, *, dangerous: bool = False, reason: str = ""
) -> Button:
    """A button for an action; disabled without the permission or for another reason."""
    return Button(label, url, refusal(request, permission) or reason, dangerous)
