"""The parts of a soak: the workers, the kills, and the requester that waits for replies."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from django.db import DatabaseError as DjangoDatabaseError, connections, transaction

from sqlqueue_app import close_callbacks, request
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.sending.replies import Request
from tests.chaos.app import TO_SALES
from tests.chaos.books import assert_no_lock
from tests.chaos.failpoints import STEPS, STEPS_OF_TWO_PHASE
from tests.chaos.ledger_books import ledger_beside
from tests.chaos.load import note
from tests.chaos.servers import kill_server
from tests.chaos.workers import KILLED, step_of, worker
from tests.support.bench import Bench
from tests.support.databases import QueueDatabase
from tests.support.other_databases import OtherDatabase
from tests.support.postgresql import GivenServer, ThrowAwayServer, get_server
from tests.support.processes import children_of, is_gone
from tests.support.provisioning import PostgresqlProvider
from tests.support.waiting import join_all, poll_until

# Steps of two-phase commit are mixed in, so that a short run has some of both.
_STEPS = [step for steps in zip_longest(STEPS, STEPS_OF_TWO_PHASE) for step in steps if step is not None]
Server = GivenServer | ThrowAwayServer
SECONDS_FOR_A_STEP = 60.0
SECONDS_FOR_A_REPLY = 120.0
SECONDS_BETWEEN_QUESTIONS = 0.5


class Workers:
    """A supervisor with two worker processes and a separate worker that takes batches; killed ones are restarted."""

    def __init__(self, bench: Bench, server: Server, log: Path, stack: ExitStack) -> None:
        self.bench = bench
        self._server = server
        self._log = log
        self._stack = stack
        self.kills: Counter[str] = Counter()
        self._supervisor = self._start_supervisor()
        self._alone = self._start_alone()

    def _start_supervisor(self) -> subprocess.Popen[bytes]:
        return self._stack.enter_context(worker(self.bench, self._log, "--processes", "2", "--log-level", "error"))

    def _start_alone(self, **environment: str) -> subprocess.Popen[bytes]:
        arguments = ("--batch-size", "auto", "--log-level", "error")
        return self._stack.enter_context(worker(self.bench, self._log, *arguments, **environment))

    def kill_child(self, chance: random.Random) -> None:
        """Kill a supervised worker, which its supervisor restarts."""
        children = poll_until(lambda: children_of(self._supervisor.pid), what="the supervisor has children")
        os.kill(chance.choice(children), signal.SIGKILL)
        self.kills["supervised worker, at random"] += 1

    def kill_supervisor(self) -> None:
        """Kill the supervisor, with which its children end."""
        children = children_of(self._supervisor.pid)
        self._supervisor.kill()
        self._supervisor.wait(60)
        poll_until(lambda: all(is_gone(child) for child in children), what="the children of the supervisor are gone")
        self.kills["supervisor"] += 1
        self._supervisor = self._start_supervisor()

    def kill_alone(self) -> None:
        """Kill the separate worker."""
        self._alone.kill()
        self._alone.wait(60)
        self.kills["worker alone, at random"] += 1
        self._alone = self._start_alone()

    def kill_at(self, step: str, time: int) -> None:
        """Stop the separate worker and replace it by one that kills itself at a step."""
        self._end(self._alone)
        self._alone = self._start_alone(**step_of(step, time))
        try:
            code = self._alone.wait(SECONDS_FOR_A_STEP)
        except subprocess.TimeoutExpired:
            self._alone.kill()
            code = self._alone.wait(60)
            step = f"before {step}"
        assert code == KILLED, f"a worker ended by itself with {code}:\n{self._log.read_text()[-4_000:]}"
        self.kills[step] += 1
        self._alone = self._start_alone()

    def kill_server(self) -> None:
        """Kill the first process of the PostgreSQL server, which is restarted."""
        assert isinstance(self._server, ThrowAwayServer), "a server that is given is not ours to kill"
        kill_server(self._server)
        self._server.start()
        connections.close_all()
        self.kills["server"] += 1

    def stop(self) -> None:
        """Stop both in order."""
        for process in (self._alone, self._supervisor):
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        # It may have received the signal before its handler was installed.
        assert code in (0, -signal.SIGTERM), f"a worker that was stopped ended with {code}:\n{self._log.read_text()[-4_000:]}"


class Killer:
    """Spread the kills over the time: half at random moments, half at the named steps in turn."""

    def __init__(self, workers: Workers, chance: random.Random, *, kills: int, server_kills: int, seconds: float) -> None:
        self._workers = workers
        self._chance = chance
        self._seconds = seconds
        self._order = ["server"] * server_kills
        self._order += [_STEPS[number // 2 % len(_STEPS)] if number % 2 else "random" for number in range(kills)]
        chance.shuffle(self._order)

    def run(self) -> None:
        """Kill until the time is over, in the calling thread."""
        begun = time.monotonic()
        pause = threading.Event()
        moments = sorted(self._chance.uniform(0, self._seconds * 0.95) for _ in self._order)
        for moment, what in zip(moments, self._order, strict=True):
            pause.wait(max(0.0, begun + moment - time.monotonic()))
            self._kill(what)
        pause.wait(max(0.0, begun + self._seconds - time.monotonic()))

    def _kill(self, what: str) -> None:
        if what == "server":
            self._workers.kill_server()
        elif what == "random":
            self._kill_at_random()
        else:
            self._workers.kill_at(what, self._chance.randint(1, 3))

    def _kill_at_random(self) -> None:
        draw = self._chance.random()
        if draw < 0.15:
            self._workers.kill_supervisor()
        elif draw < 0.5:
            self._workers.kill_alone()
        else:
            self._workers.kill_child(self._chance)


class Asker:
    """A thread that sends requests one after the other and waits for each reply."""

    def __init__(self, bench: Bench) -> None:
        self._alias = bench.database.alias
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._errors: list[BaseException] = []
        self._request: Request[Any] | None = None
        self.answered = 0
        self.unanswered: set[str] = set()
        """Sent for sure, without a reply."""
        self.doubtful: set[str] = set()
        """The database did not say whether they were sent."""

    def __enter__(self) -> Asker:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is not None and self._request is not None:
            self._request.cancel()
        join_all([self._thread], 2 * SECONDS_FOR_A_REPLY)
        close_callbacks()
        assert self._errors == []

    def stop(self) -> None:
        """Stop sending requests."""
        self._stop.set()

    def _run(self) -> None:
        try:
            while not self._stop.wait(SECONDS_BETWEEN_QUESTIONS):
                self._send_request(str(uuid.uuid4()))
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            self._errors.append(error)
        finally:
            connections.close_all()

    def _send_request(self, name: str) -> None:
        try:
            pending = self._request = request(TO_SALES, {"id": name, "way": "ask"})
        except (SqlQueueError, DjangoDatabaseError):
            self.doubtful.add(name)
            connections.close_all()
            return
        self._note(name)
        try:
            assert pending.result(SECONDS_FOR_A_REPLY) == {"id": name}
            self.answered += 1
        except (TimeoutError, CancelledError, SqlQueueError):
            self.unanswered.add(name)

    def _note(self, name: str) -> None:
        """Write to the books, repeated while the server is unavailable."""
        while True:
            try:
                with transaction.atomic(using=self._alias):
                    with connections[self._alias].cursor() as cursor:
                        cursor.execute("SELECT count(*) FROM sent WHERE id = %s", [name])
                        if cursor.fetchone()[0]:
                            return
                    note(self._alias, [(name, "ask")])
                return
            except DjangoDatabaseError:
                connections.close_all()
                self._stop.wait(0.1)


@contextmanager
def server_and_ledger(database: QueueDatabase) -> Iterator[tuple[Server, OtherDatabase]]:
    """The PostgreSQL server, a separate one if the queues are elsewhere, and the ledger on it."""
    with ExitStack() as stack:
        provider = database.provider
        if not isinstance(provider, PostgresqlProvider):
            provider = PostgresqlProvider(get_server())
            stack.callback(provider.end)
        yield provider.server, stack.enter_context(ledger_beside(provider))


def left_behind(bench: Bench, ledger: OtherDatabase) -> list[str]:
    """Threads, locks, prepared transactions and sessions left after all work has ended. Drops the queues."""
    others = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    found = [f"thread {thread.name}" for thread in others if not thread.daemon]
    try:
        assert_no_lock(bench)
    except AssertionError as error:
        found.append(f"lock: {error}")
    connections[ledger.alias].close()
    try:
        poll_until(lambda: not ledger.sessions(), PostgresqlProvider.seconds_to_vanish)
    except AssertionError:
        found.append(f"{ledger.sessions()} sessions of the ledger")
    return found + bench.database.provider.discard()
