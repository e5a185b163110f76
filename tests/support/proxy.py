"""A small TCP proxy in its own thread, with which a test cuts or stalls connections or drops a response."""

from __future__ import annotations

import contextlib
import queue
import select
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

_PORTION: Final = 65_536
# On one machine, a send that waits this long never completes.
_SECONDS_TO_SEND: Final = 30.0
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards data between the clients of `port` and a server. A context manager, thread-safe.

    `on_data` is called in the thread of the proxy with the number of a client connection and the data that the client sent.
    """

    def __init__(self, host: str, port: int, on_data: Callable[[int, bytes], None] | None = None) -> None:
        self._server = (host, port)
        self._on_data = on_data
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port: int = self._listener.getsockname()[1]
        self.answers_lost = 0
        """The number of responses dropped since `lose_answer_to`."""
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._losing: set[socket.socket] = set()
        self._question = b""
        self._stalled = self._ended = False
        self._selector = selectors.DefaultSelector()
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="proxy")

    def __enter__(self) -> Proxy:
        for each in (self._listener, self._wake_receiver):
            self._selector.register(each, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._order(self._end)
        self._thread.join(60)
        for each in (self._listener, self._wake_sender, self._wake_receiver):
            each.close()
        self._selector.close()

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        self._order(self._cut)

    def stall(self) -> None:
        """Forward nothing and accept no connections until `resume`; data that arrives in between waits."""
        self._order(lambda: self._stall(True))

    def resume(self) -> None:
        """Forward data again."""
        self._order(lambda: self._stall(False))

    def has_waiting_client(self) -> bool:
        """Whether a client has connected since `stall`."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def lose_answer_to(self, question: bytes) -> None:
        """Forward the next client message with these bytes, and reset its connection when the server responds."""

        def lose() -> None:
            self.answers_lost, self._question = 0, question

        self._order(lose)

    def _order(self, what: Callable[[], None]) -> None:
        done = threading.Event()

        def do() -> None:
            what()
            done.set()

        self._orders.put(do)
        self._wake_sender.send(b"!")
        assert done.wait(60), "the proxy does not answer"

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select():
                self._serve(key.fileobj)  # type: ignore[arg-type]

    def _serve(self, ready: socket.socket) -> None:
        if ready is self._wake_receiver:
            ready.recv(1)
            self._orders.get_nowait()()
        elif ready is self._listener:
            self._accept()
        elif ready in self._peers and not self._stalled:
            # the list of ready sockets may contain some that an order has closed
            self._pass_on(ready)

    def _accept(self) -> None:
        client = self._listener.accept()[0]
        try:
            server = socket.create_connection(self._server, _SECONDS_TO_SEND)
        except OSError:
            client.close()
            return
        self._clients.add(client)
        for one, other in ((client, server), (server, client)):
            one.settimeout(_SECONDS_TO_SEND)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        try:
            data = source.recv(_PORTION)
            if not data or source in self._losing:
                self.answers_lost += bool(data)
                self._break(source)
                return
            if source in self._clients and self._question and self._question in data:
                self._question = b""
                self._losing.add(self._peers[source])
            if self._on_data is not None and source in self._clients:
                self._on_data(source.fileno(), data)
            self._peers[source].sendall(data)
        except OSError:
            self._break(source)

    def _break(self, one: socket.socket) -> None:
        """Reset both ends instead of closing them."""
        for each in (one, self._peers[one]):
            del self._peers[each]
            self._clients.discard(each)
            self._losing.discard(each)
            with contextlib.suppress(KeyError):
                self._selector.unregister(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            each.close()

    def _cut(self) -> None:
        while self._peers:
            self._break(next(iter(self._peers)))

    def _stall(self, stalled: bool) -> None:
        if stalled is self._stalled:
            return
        self._stalled = stalled
        for each in (self._listener, *self._peers):
            if stalled:
                self._selector.unregister(each)
            else:
                self._selector.register(each, selectors.EVENT_READ)

    def _end(self) -> None:
        self._ended = True
        self._cut()
