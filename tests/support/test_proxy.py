"""The proxy forwards, stalls, cuts connections and drops a response."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.proxy import Proxy
from tests.support.waiting import join_all


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of an echo server."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(line: socket.socket) -> None:
        with line:
            try:
                while data := line.recv(1_000):
                    line.sendall(data)
            except OSError:
                pass  # reset

    def accept() -> None:
        while (line := listener.accept()[0]).getpeername()[1] != ending.getsockname()[1]:
            threads.append(threading.Thread(target=serve, args=[line]))
            threads[-1].start()
        line.close()

    ending = socket.socket()
    ending.bind(("127.0.0.1", 0))
    main = threading.Thread(target=accept)
    main.start()
    yield listener.getsockname()[1]
    with ending:
        ending.connect(listener.getsockname())
        join_all([main, *threads])
    listener.close()


def line_to(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 60)


def test_proxy_forwards_until_it_is_cut(echo: int) -> None:
    with Proxy("127.0.0.1", echo) as proxy, line_to(proxy) as first:
        first.sendall(b"one")
        assert first.recv(100) == b"one"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            first.recv(100)
        with line_to(proxy) as second:
            second.sendall(b"two")
            assert second.recv(100) == b"two"


def test_data_sent_during_a_stall_arrives_after_it(echo: int) -> None:
    with Proxy("127.0.0.1", echo) as proxy, line_to(proxy) as line:
        line.sendall(b"one")
        assert line.recv(100) == b"one"
        proxy.stall()
        line.sendall(b"two")
        line.setblocking(False)
        with pytest.raises(BlockingIOError):
            line.recv(100)
        line.settimeout(60)
        proxy.resume()
        assert line.recv(100) == b"two"


def test_an_answer_is_lost_once(echo: int) -> None:
    with Proxy("127.0.0.1", echo) as proxy:
        proxy.lose_answer_to(b"COMMIT")
        with line_to(proxy) as line:
            line.sendall(b"BEGIN")
            assert line.recv(100) == b"BEGIN"
            line.sendall(b"COMMIT")
            with pytest.raises(ConnectionResetError):
                line.recv(100)
        assert proxy.answers_lost == 1
        with line_to(proxy) as line:
            line.sendall(b"COMMIT")
            assert line.recv(100) == b"COMMIT"
