"""Notifications to an HTTP URL, signed according to the Standard Webhooks convention (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import http.client
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from urllib.parse import SplitResult, urlsplit

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from standardwebhooks import Webhook

from sqlqueue_app import __version__
from sqlqueue_app.messages.errors import SqlQueueError

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the prefix of all secrets, not a secret
# The convention requires 24 to 64 bytes.
MIN_SECRET_BYTES, MAX_SECRET_BYTES, _SECRET_BYTES = 24, 64, 32
MAX_URL_LENGTH: Final = 2_000
# The stored length of an error response, for troubleshooting.
_KEPT_CHARACTERS: Final = 200
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def new_secret() -> str:
    """A random secret that cannot be guessed."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """The key of a secret; raises ValueError, which does not show the text, for an invalid secret."""
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("no base64") from error
    if not secret.startswith(SECRET_PREFIX) or not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise ValueError("wrong prefix or length")
    return key


def signed_headers(secret: str, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that prove sender, time and identity of a request. ValueError for an invalid secret."""
    # The library reads the digits of a time as UTC, whatever its zone.
    signature = Webhook(key_of(secret)).sign(message_id, at.astimezone(UTC), body.decode())
    return {"webhook-id": message_id, "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}


def validate_secret(text: str) -> None:
    """Raise ValidationError, which does not show the text, for an invalid secret."""
    try:
        key_of(text)
    except ValueError:
        words = {"least": MIN_SECRET_BYTES, "most": MAX_SECRET_BYTES}
        raise ValidationError(_("Expected “whsec_” and the base64 of %(least)s to %(most)s bytes.") % words) from None


def validate_url(url: str, patterns: Sequence[str] | None) -> None:
    """Raise ValidationError for an invalid webhook URL, or one that WEBHOOK_HOSTS does not allow."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise ValidationError(_("This is not a URL such as https://hooks.example.com/sqlqueue.")) from None
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise ValidationError(_("A webhook URL begins with https:// or http:// and a host."))
    if parts.username is not None or parts.password is not None:
        raise ValidationError(_("A webhook URL must not contain a user name and password."))
    if len(url) > MAX_URL_LENGTH:
        raise ValidationError(_("A webhook URL has at most 2,000 characters."))
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValidationError(_("Percent-encode spaces and characters that are not ASCII."))
    if not host_is_allowed(url, patterns):
        error = _("The setting WEBHOOK_HOSTS does not allow this host, only: %(hosts)s.")
        raise ValidationError(error % {"hosts": ", ".join(patterns or ()) or "–"})


def host_is_allowed(url: str, patterns: Sequence[str] | None) -> bool:
    """Whether WEBHOOK_HOSTS allows the URL; None allows any host."""
    host = (urlsplit(url).hostname or "").lower().rstrip(".")
    allowed = [pattern.lower().strip("[]").rstrip(".") for pattern in patterns or ()]
    return patterns is None or host in allowed or any(host.endswith(each[1:]) for each in allowed if each.startswith("*."))


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout: float) -> None:
    """POST once, without redirects. Raises SendFailed for any response but success, and if there is none in `timeout` seconds.

    The timeout covers the whole request, so a receiver that sends a byte at a time cannot delay it. Proxies are not used.
    """
    parts = urlsplit(url)
    end = time.monotonic() + timeout
    try:
        with _connected(parts, end) as connection:
            connection.request("POST", _path(parts), body, {**_COMMON, **headers})
            response = connection.getresponse()
            if time.monotonic() >= end:
                raise TimeoutError  # closed in the middle of the headers: the received part looks like a response
            if 200 <= response.status < 300:
                return
            text = _cut(response.read(4 * _KEPT_CHARACTERS))
    except (OSError, http.client.HTTPException, ValueError) as error:
        late = isinstance(error, TimeoutError) or time.monotonic() >= end
        raise SendFailed(f"no answer in {timeout:g} s" if late else f"{type(error).__name__}: {error}") from error
    redirect = " (redirects are not followed)" if 300 <= response.status < 400 else ""
    raise SendFailed(f"HTTP {response.status} {_cut(response.reason.encode())}{redirect}{': ' if text else ''}{text}")


_COMMON: Final = {"Content-Type": "application/json", "User-Agent": f"sqlqueue/{__version__}", "Connection": "close"}


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


@contextmanager
def _connected(parts: SplitResult, end: float) -> Iterator[http.client.HTTPConnection]:
    """A connection that is closed at the deadline; otherwise only each step would have a timeout."""
    host = parts.hostname or ""
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    sockets = [_socket(host, port, end)]

    def shut() -> None:
        try:
            sockets[-1].shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed already

    timer = threading.Timer(max(0.0, end - time.monotonic()), shut)
    timer.name, timer.daemon = "sqlqueue-webhook-timeout", True
    timer.start()
    try:
        connection = http.client.HTTPConnection(host, port)
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(host, port, context=context)
            wrapped = context.wrap_socket(sockets[-1], server_hostname=host, do_handshake_on_connect=False)
            sockets.append(wrapped)
            wrapped.do_handshake()
        connection.sock = sockets[-1]
        yield connection
    finally:
        timer.cancel()
        timer.join()
        sockets[-1].close()


def _socket(host: str, port: int, end: float) -> socket.socket:
    """A connection to the first address of the host that accepts one, before the common deadline."""
    failure: OSError = OSError(f"the host {host!r} has no address")
    for family, kind, protocol, _name, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left = end - time.monotonic()
        if left <= 0:
            break
        found = socket.socket(family, kind, protocol)
        try:
            found.settimeout(left)
            found.connect(address)
        except OSError as error:
            found.close()
            failure = error
        else:
            return found
    raise failure


def _cut(text: bytes) -> str:
    """The beginning of an untrusted text, as one line of printable characters."""
    decoded = " ".join(text.decode("utf-8", "replace").split())
    return "".join(each if each.isprintable() else "�" for each in decoded)[:_KEPT_CHARACTERS]


class SendFailed(SqlQueueError):
    """A failed attempt; the message is the reason, without secrets. `is_final`: a retry would fail too."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final
