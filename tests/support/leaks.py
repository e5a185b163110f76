"""Checks that no test leaves threads, transactions, sessions or files open."""

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

# Ending may take long on a busy machine.
SECONDS_TO_END = 30.0


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread running or a transaction open. The database fixtures check for sessions.

    Threads count if they are not daemons or are named sqlqueue…, because a stopped worker has joined all its threads.
    """
    before = set(threading.enumerate())
    # pytest-django's `db` may already have opened the test's transaction, and ends it after this fixture
    around_test = open_transactions()
    yield
    let_event_loops_end(before)
    left = running_threads(before)
    left += [transaction for transaction in open_transactions() if transaction not in around_test]
    if left:
        pytest.fail("the test left something behind:\n" + "\n".join(left), pytrace=False)


def let_event_loops_end(before: set[threading.Thread]) -> None:
    """Wait for the threads in which asgiref ran event loops: they are not joined, but end when nothing references the call.

    They end shortly after the call; after an error, the garbage collector must first free the frames. running_threads() reports
    those that stay.
    """

    def ended() -> bool:
        if not any(thread.name.startswith("ThreadPoolExecutor") for thread in set(threading.enumerate()) - before):
            return True
        gc.collect()
        return False

    with contextlib.suppress(AssertionError):
        poll_until(ended, SECONDS_TO_END)


def running_threads(before: set[threading.Thread]) -> list[str]:
    """A description of each thread started since then."""
    return [
        f"a thread is still running: {thread.name}" for thread in threading.enumerate() if thread not in before and _counts(thread)
    ]


def _counts(thread: threading.Thread) -> bool:
    return not thread.daemon or thread.name.startswith("sqlqueue")


def open_transactions() -> list[str]:
    """A description of each connection of this thread that is inside a transaction."""
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
    """The descriptors by which this process holds a file open; empty except on Linux."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        return []
    found = []
    for descriptor in descriptors.iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue  # the descriptor that listed the folder is already closed
        if target.removesuffix(" (deleted)") == str(file):
            found.append(descriptor.name)
    return found
