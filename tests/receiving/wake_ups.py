"""Senders that wake receivers, and a connection that receives the notifications."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from sqlqueue_app import send
from sqlqueue_app.dialects.schema import wake_up_channel
from sqlqueue_app.receiving.waiting import WakeUp
from sqlqueue_app.tables.announcements import ListeningConnection
from tests.support.bench import Bench, Calls, Running
from tests.support.tables import execute
from tests.support.waiting import poll_until
from tests.support.worker_processes import address

NEVER = 3600.0
HEADERS = json.dumps({"NServiceBus.EnclosedMessageTypes": "Test.Message"})


def prepare(bench: Bench, *, trigger: bool = True, **endpoint: Any) -> None:
    bench.configure(**endpoint)
    if not trigger:
        execute(bench.database, "DROP FUNCTION sqlqueue_wake_up() CASCADE")


def by_insert(bench: Bench, number: int) -> None:
    sql = "INSERT INTO \"Sales\" (id, headers, body) VALUES (gen_random_uuid(), %s, convert_to(%s, 'UTF8'))"
    execute(bench.database, sql, HEADERS, json.dumps({"n": number}))


def by_own_send(bench: Bench, number: int) -> None:
    send("Test.Message", {"n": number}, to=address(bench, "Sales"))


def by_command(bench: Bench, number: int) -> None:
    """Send from another process."""
    command = ["sqlqueue_send", address(bench, "Sales"), "--type", "Test.Message", "--body", json.dumps({"n": number})]
    subprocess.run([sys.executable, "-m", "django", *command], env=bench.database.child_environment(), check=True)


def at_rest(wake_ups: list[WakeUp], threads: int = 1) -> Callable[[], bool]:
    """Return whether this number of threads of each queue wait for a wake-up only."""
    return lambda: bool(wake_ups) and all(each.push_enabled and each.waiting == threads for each in wake_ups)


def wakes_an_idle_worker(bench: Bench, calls: Calls, rests: Callable[[], bool], sent: Callable[[Bench, int], None]) -> None:
    """Send two messages to a resting worker, which handles each of them."""
    with Running(bench):
        for number in (1, 2):
            poll_until(rests, 60)
            sent(bench, number)
            poll_until(lambda expected=number: len(calls.seen) == expected, 60)  # type: ignore[misc]
    assert calls.seen == [{"n": 1}, {"n": 2}]


class Line:
    """A listening connection on the channels of these queues, which asks senders to announce."""

    def __init__(self, bench: Bench, *queues: str, requests: bool = True) -> None:
        self._requests = requests
        self.channels = {name: wake_up_channel(bench.table(name).qualified) for name in queues}
        self.connection = ListeningConnection(bench.database.alias)

    def __enter__(self) -> Line:
        self.connection.open(self.channels.values())
        if self._requests:
            self.request_locks()
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.dispose()

    def request_locks(self) -> set[str]:
        """Request announcements; returns the queues for which every sender has been asked."""
        confirmed = self.connection.request(self.channels.values())
        return {name for name, channel in self.channels.items() if channel in confirmed}

    def wait(self) -> set[str]:
        """Wait for the next announcements and return their queues."""
        received = {channel for channel, _ in self.connection.wait(60)}
        return {name for name, channel in self.channels.items() if channel in received}
