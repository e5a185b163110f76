"""Count the round trips to SQL Server on the connection: each message that waits for a response is one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from django.db import connections

from tests.support.provisioning import point
from tests.support.proxy import Proxy

# The first byte of a packet that is a request, and the bit of the last packet of a message
# (https://learn.microsoft.com/openspecs/windows_protocols/ms-tds, packet header).
_REQUESTS: Final = {1: "batch", 3: "RPC", 7: "bulk load", 14: "transaction"}
_END_OF_MESSAGE: Final = 1
_HEADER: Final = 8
# The types of TLS records. The login always uses TLS, the rest only if the connection string requires it.
_TLS: Final = range(20, 24)


class RoundTrips:
    """The requests on all connections since `clear`, oldest first: the kind and the readable text."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.encrypted = 0
        """TLS records since `clear`; `requests` lacks their content."""
        self._unread: dict[int, bytes] = {}
        self._message: dict[int, bytes] = {}

    def clear(self) -> None:
        """Restart the count."""
        self.requests, self.encrypted = [], 0

    def add_data(self, line: int, chunk: bytes) -> None:
        """Add data from a client; packets may arrive in parts."""
        data = self._unread.get(line, b"") + chunk
        while len(data) >= _HEADER:
            is_tls = data[0] in _TLS
            length = int.from_bytes(data[3:5], "big") + 5 if is_tls else int.from_bytes(data[2:4], "big")
            if len(data) < length:
                break
            packet, data = data[:length], data[length:]
            if is_tls:
                self.encrypted += 1
            elif packet[0] in _REQUESTS:
                self._packet(line, packet)
        self._unread[line] = data

    def _packet(self, line: int, packet: bytes) -> None:
        message = self._message.pop(line, b"") + packet[_HEADER:]
        if packet[1] & _END_OF_MESSAGE:
            self.requests.append((_REQUESTS[packet[0]], _text_of(message)))
        else:
            self._message[line] = message


def _text_of(message: bytes) -> str:
    """The readable part of a message, which is UTF-16 between numbers."""
    return "".join(letter for letter in message.decode("utf-16-le", "replace") if " " <= letter <= "~" or letter == "\n")


@contextlib.contextmanager
def line_to(alias: str, on_data: Callable[[int, bytes], None] | None = None) -> Iterator[Proxy]:
    """Within the context, connections of the alias go through the proxy."""
    given = connections.settings[alias]
    with Proxy(given["HOST"], int(given["PORT"]), on_data) as line:
        before = {"HOST": given["HOST"], "PORT": given["PORT"]}
        connections[alias].close()
        point(alias, HOST="127.0.0.1", PORT=str(line.port))
        try:
            yield line
        finally:
            connections[alias].close()
            point(alias, **before)


@contextlib.contextmanager
def counted(alias: str) -> Iterator[RoundTrips]:
    """Within the context, requests on connections of the alias are counted."""
    seen = RoundTrips()
    with line_to(alias, seen.add_data):
        yield seen
