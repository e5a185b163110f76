"""Notifications by mail, with the mail framework of Django: its backend, DEFAULT_FROM_EMAIL and EMAIL_SUBJECT_PREFIX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.conf import settings as django_settings
from django.core import mail

from sqlqueue_app.operations.notifications.outcome import SendFailed


def send_mail(delivery_id: UUID, addresses: Sequence[str], title: str, text: str, *, timeout: float) -> None:
    """Send one mail to all addresses. SendFailed with what the backend or the server says.

    `timeout`, in seconds, is that of each step of the talk with the server; EMAIL_TIMEOUT goes before it. A mail that is sent again
    has the same Message-ID.
    """
    message = mail.EmailMessage(
        " ".join(f"{django_settings.EMAIL_SUBJECT_PREFIX}{title}".split()),
        text,
        to=list(addresses),
        headers={"Message-ID": f"<{delivery_id}@{mail.DNS_NAME}>", "Auto-Submitted": "auto-generated"},
    )
    try:
        sent = _backend(timeout).send_messages([message])
    except Exception as error:
        # Whatever a backend of anybody's raises.
        raise SendFailed(f"{type(error).__name__}: {error}") from error
    if not sent:
        raise SendFailed("the mail backend has sent nothing")


def _backend(timeout: float) -> Any:
    # Django 6.1 has mailers; what makes a connection elsewhere is deprecated there.
    mailers = getattr(mail, "mailers", None)
    backend: Any = mail.get_connection() if mailers is None else mailers.default
    if getattr(backend, "timeout", timeout) is None:
        backend.timeout = timeout
    return backend
