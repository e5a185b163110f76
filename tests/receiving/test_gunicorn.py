"""A worker and four gunicorn processes on one machine: each reply reaches the requesting process, even after one is killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from sqlqueue_app.models import Instance
from tests.receiving.gunicorn_app import MODULE
from tests.support.bench import Asking
from tests.support.waiting import join_all, poll_until
from tests.support.worker_processes import worker_process

pytest.importorskip("gunicorn", reason="gunicorn is in requirements.txt, and not installed here")

PROCESSES, THREADS, CLIENTS = 4, 2, 8
REQUESTS = 1_000
MAX_ATTEMPTS = 2_000
QUEUES = {"Web.here", "Web.here-2", "Web.here-3", "Web.here-4"}


class Server:
    """gunicorn behind its own socket."""

    def __init__(self, address: Path) -> None:
        self.address = address

    def send_request(self, code: int) -> dict[str, Any] | None:
        """Return the response of the view, from any process; None if its process was killed or it reported an error."""
        with closing(_Connection(self.address)) as connection:
            try:
                connection.request("GET", f"/ask/{code}")
                answer = connection.getresponse()
                decoded: dict[str, Any] = json.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError):
                return None
            return decoded if answer.status == 200 else None


class _Connection(http.client.HTTPConnection):
    def __init__(self, address: Path) -> None:
        super().__init__("localhost", timeout=120)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._address))


@contextmanager
def gunicorn(asking: Asking, directory: Path) -> Iterator[Server]:
    """Start gunicorn, which loads the site and forks; at the end all its processes exit normally."""
    server = Server(directory / "gunicorn.sock")
    command = [
        sys.executable, "-m", "gunicorn", f"{MODULE}:site()", "--preload", "--bind", f"unix:{server.address}",
        "--workers", str(PROCESSES), "--worker-class", "gthread", "--threads", str(THREADS), "--worker-tmp-dir", str(directory),
        "--log-level", "warning", "--no-control-socket",
    ]  # fmt: skip
    with (directory / "errors").open("w+") as errors:
        process = subprocess.Popen(command, env=asking.bench.database.child_environment(), stderr=errors)
        try:
            poll_until(lambda: server.address.exists() or process.poll() is not None, what="gunicorn listens")
            yield server
            process.terminate()
            assert process.wait(60) == 0, (directory / "errors").read_text()
        except BaseException as error:
            error.add_note((directory / "errors").read_text())
            raise
        finally:
            process.kill()
            process.wait(60)


def send_all(server: Server, codes: list[int]) -> list[dict[str, Any]]:
    """Send all requests from several threads, again if a process was killed; returns the answers in the order of the codes."""
    answers: list[dict[str, Any]] = [{}] * len(codes)

    def client(first: int) -> None:
        for number in range(first, len(codes), CLIENTS):
            for _ in range(MAX_ATTEMPTS):
                if answer := server.send_request(codes[number]):
                    answers[number] = answer
                    break

    threads = [threading.Thread(target=client, args=(first,)) for first in range(CLIENTS)]
    for thread in threads:
        thread.start()
    join_all(threads, 120)
    return answers


def test_each_of_a_thousand_requests_gets_its_reply(asking: Asking, tmp_path: Path) -> None:
    asking.configure(sales={"HANDLERS": [MODULE]}, CALLBACK_QUEUES=PROCESSES)
    connections.close_all()
    with worker_process(asking.bench, "--endpoint", "Sales"), gunicorn(asking, tmp_path) as server:
        first = send_all(server, list(range(REQUESTS // 2)))
        assert [answer.get("code") for answer in first] == list(range(REQUESTS // 2))
        queue_of = {answer["pid"]: answer["queue"] for answer in first}

        def all_send() -> bool:
            # The system chooses the process that accepts a connection.
            queue_of.update((answer["pid"], answer["queue"]) for answer in send_all(server, list(range(CLIENTS))))
            return len(queue_of) == PROCESSES

        poll_until(all_send, what="each of the processes has sent its request")
        assert {(row.pid, row.callback_queue) for row in asking.instances()} == set(queue_of.items())
        assert set(queue_of.values()) == QUEUES

        killed = Counter(answer["pid"] for answer in first).most_common(1)[0][0]
        os.kill(killed, signal.SIGKILL)
        # Do not wait 40 seconds here: its last heartbeat was long ago.
        Instance.objects.using(asking.bench.database.alias).filter(pid=killed).update(
            heartbeat_at=timezone.now() - timedelta(seconds=41)
        )
        second = send_all(server, list(range(REQUESTS // 2, REQUESTS)))
        assert [answer.get("code") for answer in second] == list(range(REQUESTS // 2, REQUESTS))

        def taken_over() -> bool:
            server.send_request(0)
            return any(row.callback_queue == queue_of[killed] and row.pid != killed for row in asking.instances())

        poll_until(taken_over, what="another process has the queue of the killed one")
        assert killed not in {row.pid for row in asking.instances()}
        poll_until(lambda: not any(asking.bench.rows(queue) for queue in QUEUES), what="replies to the killed process are removed")
    assert asking.instances() == [], "every process has given its queue back"
    assert {queue: asking.bench.rows(queue) for queue in ("Sales", "error")} == {"Sales": [], "error": []}
