"""A mail server that accepts every address except those of `nobody`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from aiosmtpd.controller import Controller
from django.test import override_settings

from tests.support.ports import free_port


def mail_settings(backend: str, **options: Any) -> dict[str, Any]:
    """The mail settings for a backend, in the form of this Django version."""
    if django.VERSION >= (6, 1):
        return {"MAILERS": {"default": {"BACKEND": backend, "OPTIONS": options}}}
    return {"EMAIL_BACKEND": backend, **{f"EMAIL_{name.upper()}": value for name, value in options.items()}}


@contextmanager
def mail_server() -> Iterator[list[Any]]:
    """Have Django send through a local server; yields the envelopes it received."""
    received: list[Any] = []

    class Keeper:
        async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:  # noqa: N802
            if address.startswith("nobody"):
                return "550 no such mailbox"
            envelope.rcpt_tos.append(address)
            return "250 OK"

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
            received.append(envelope)
            return "250 OK"

    controller = Controller(Keeper(), hostname="127.0.0.1", port=free_port())
    controller.start()
    backend = "django.core.mail.backends.smtp.EmailBackend"
    try:
        with override_settings(**mail_settings(backend, host=controller.hostname, port=controller.port)):
            yield received
    finally:
        controller.stop()
