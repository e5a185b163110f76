"""After each test nothing may be left running or open: threads, transactions, sessions, files."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tests.support.waiting import poll_until

# On a busy machine a moment may be long.
SECONDS_TO_END = 30.0


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves a thread running or a transaction open. Sessions are looked for by the database fixtures.

    Threads count if they are not daemons, or if they are named sqlqueue…: a stopped worker has joined all of its own.
    """
    before = set(threading.enumerate())
    # pytest-django's `db` may have opened the test's own transaction already, and ends it after us
    around_test = open_transactions()
    yield
    let_event_loops_end(before)
    left = running_threads(before)
    left += [transaction for transaction in open_transactions() if transaction not in around_test]
    if left:
        pytest.fail("the test left something behind:\n" + "\n".join(left), pytrace=False)


def let_event_loops_end(before: set[threading.Thread]) -> None:
    """Waits for the threads in which asgiref ran event loops: nobody joins them, they end when nothing holds the call any more.

    That is a moment after the call, and where an error was raised the frames wait for the collector. A thread that stays is told by
    running_threads().
    """

    def ended() -> bool:
        if not any(thread.name.startswith("ThreadPoolExecutor") for thread in set(threading.enumerate()) - before):
            return True
        gc.collect()
        return False

    with contextlib.suppress(AssertionError):
        poll_until(ended, SECONDS_TO_END)


def running_threads(before: set[threading.Thread]) -> list[str]:
    """The threads that were started since, in words."""
    return [
        f"a thread is still running: {thread.name}" for thread in threading.enumerate() if thread not in before and _counts(thread)
    ]


def _counts(thread: threading.Thread) -> bool:
    return not thread.daemon or thread.name.startswith("sqlqueue")


def open_transactions() -> list[str]:
    """The connections of this thread that are inside a transaction, in words."""
    return [
        f"a transaction is still open on {connection.alias!r}"
        for connection in connections.all(initialized_only=True)
        if in_transaction(connection)
    ]


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    if connection.connection is None or connection.closed_in_transaction:
        return connection.in_atomic_block
    if connection.vendor == "sqlite":
        return connection.in_atomic_block or bool(connection.connection.in_transaction)
    if connection.vendor == "postgresql":
        # 0 is idle; a broken connection has no transaction either
        status = connection.connection.info.transaction_status
        return connection.in_atomic_block or (not connection.connection.closed and int(status) != 0)
    return connection.in_atomic_block or not connection.autocommit


def open_files(file: Path) -> list[str]:
    """How this process holds a file open: descriptors, where the system tells (Linux); else nothing."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        return []
    found = []
    for descriptor in descriptors.iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue  # the one that lists the folder is closed again
        if target.removesuffix(" (deleted)") == str(file):
            found.append(descriptor.name)
    return found
