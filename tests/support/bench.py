"""A worker on a real database, with handlers defined by the test."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from sqlqueue_app import close_callbacks
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.installation import planned_tables
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.models import Instance
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.handlers import handles, registry
from sqlqueue_app.receiving.instances import InstanceLease, lease_instance
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.sending.replies import pending
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.rows import NewRow, PeekedRow
from sqlqueue_app.worker import run as worker_run
from sqlqueue_app.worker.run import RunOptions, run_worker
from tests.support.databases import QueueDatabase

# The worker of a test handles a few hundred messages at most.
SECONDS_TO_EMPTY = 120.0
FAST = {"CALLBACKS": False, "IMMEDIATE_RETRIES": 0, "DELAYED_RETRIES": 0, "PURGE_EXPIRED_EVERY": 0}
# Jobs of a worker for all endpoints. A worker calls each once at its start, which takes longer than handling a few messages.
# Only a run with `all_jobs=True` or without `until_empty` has them.
JOBS_FOR_ALL = {"queue samples", "index of failures", "checks", "bulk operations", "old callback queues", "expired instances"}
_without_jobs: ContextVar[bool] = ContextVar("_without_jobs", default=False)
MODES = ["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"]


@dataclass
class Calls:
    """The arguments of handler calls, readable in the test's own thread."""

    seen: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, value: Any) -> int:
        with self._lock:
            self.seen.append(value)
            return len(self.seen)


@dataclass
class Bench:
    """An endpoint `Sales` on the database of the test."""

    database: QueueDatabase

    def configure(self, *, routes: dict[str, str] | None = None, **endpoint: Any) -> None:
        self.database.configure(ENDPOINTS={"Sales": {**FAST, **endpoint}}, ROUTES=routes or {})
        self.install()

    def install(self) -> None:
        install_tables(self.database.alias, planned_tables(get_settings(), self.database.vendor))

    def install_queues(self, *names: str) -> None:
        book = get_settings().address_book(self.database.vendor)
        install_tables(self.database.alias, [PlannedTable(TableKind.QUEUE, book.of_queue(name)) for name in names])

    def table(self, name: str) -> QueueTable:
        book = get_settings().address_book(self.database.vendor, self.database.catalog())
        return queue_table(self.database.alias, book.resolve(QueueAddress(name, form=self.database.vendor)))

    def rows(self, name: str) -> list[PeekedRow]:
        return self.table(name).peek(1000, after=-1, body_limit=1_000_000_000)

    def headers(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(row.headers or "") for row in self.rows(name)]

    def put(self, headers: str, body: bytes, *, queue: str = "Sales", row_id: str = "11111111-2222-3333-4444-555555555555") -> None:
        """Insert a row as another program might write it."""
        self.table(queue).send([NewRow(row_id, headers, body)])

    def put_message(self, message_type: str, body: object = None, **headers: str) -> None:
        text = json.dumps({"NServiceBus.EnclosedMessageTypes": message_type, **headers})
        self.put(text, json.dumps({} if body is None else body).encode())

    def put_message_of(self, number: int, message_type: str, body: object = None) -> None:
        """Insert one of several messages; the number determines the row id."""
        text = json.dumps({"NServiceBus.EnclosedMessageTypes": message_type})
        self.put(text, json.dumps({} if body is None else body).encode(), row_id=f"00000000-0000-0000-0000-{number:012}")

    def run(self, stop: StopSignal | None = None, *, all_jobs: bool = False, **options: Any) -> int:
        """Run a worker until the queues are empty, or with `until_empty=False` until the stop, in this and its own threads."""
        chosen = RunOptions(**{"until_empty": True, **options})
        stop = stop or StopSignal()
        if not chosen.until_empty:
            return run_worker(get_settings(), chosen, stop)
        late = threading.Timer(SECONDS_TO_EMPTY, stop.set)
        late.start()
        before = _without_jobs.set(not all_jobs)
        try:
            return run_worker(get_settings(), chosen, stop)
        finally:
            _without_jobs.reset(before)
            in_time = late.is_alive()
            late.cancel()
            late.join()
            assert in_time, f"the worker has not found its queues empty within {SECONDS_TO_EMPTY} s"


@dataclass
class Asking:
    """The test sends requests as `Web`, which has two callback queues and no handlers; `Sales` replies."""

    bench: Bench

    def configure(self, *, sales: dict[str, Any] | None = None, **web: Any) -> None:
        asking = {**FAST, "HANDLERS": [], "CALLBACKS": True, "INSTANCE": "here", "CALLBACK_QUEUES": 2, **web}
        self.bench.database.configure(
            ENDPOINTS={"Sales": {**FAST, **(sales or {})}, "Web": asking}, ROUTES={"Test.*": "Sales"}, SEND_AS="Web"
        )
        self.bench.install()

    def instances(self) -> list[Instance]:
        return list(Instance.objects.using(self.bench.database.alias).filter(endpoint="Web").order_by("callback_queue"))

    def answer(
        self,
        correlation_id: str,
        body: bytes = b"{}",
        headers: dict[str, str] | None = None,
        *,
        queue: str = "Web.here",
        row: int = 1,
    ) -> None:
        """Insert a reply as another program might write it."""
        all_headers = {"NServiceBus.MessageIntent": "Reply", "NServiceBus.CorrelationId": correlation_id, **(headers or {})}
        self.bench.put(json.dumps(all_headers), body, queue=queue, row_id=f"00000000-0000-0000-0000-{row:012}")


class Running:
    """A worker in a thread of the test."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        self.stop = StopSignal()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(bench, options), name="test-worker")

    def _run(self, bench: Bench, options: dict[str, Any]) -> None:
        try:
            bench.run(self.stop, until_empty=False, **options)
        except BaseException as error:  # noqa: BLE001 - handed to the thread of the test
            self.error = error
        finally:
            connections.close_all()

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def take(asking: Asking) -> InstanceLease:
    """Lease a callback queue, as another process would."""
    return lease_instance(
        get_settings().endpoint("Web"),
        alias=asking.bench.database.alias,
        concurrency=1,
        exists=lambda name: asking.bench.table(name).exists(),
        make=asking.bench.install_queues,
    )


def write_instance(bench: Bench, name: str) -> None:
    """Write a row as a handler's own work; any managed table will do."""
    now = timezone.now()
    Instance.objects.using(bench.database.alias).create(endpoint="T", name=name, host="h", pid=1, started_at=now, heartbeat_at=now)


def written(bench: Bench) -> list[str]:
    return sorted(Instance.objects.using(bench.database.alias).filter(endpoint="T").values_list("name", flat=True))


@pytest.fixture
def bench(queue_database: QueueDatabase, handler_registry: None) -> Bench:
    made = Bench(queue_database)
    made.configure()
    return made


@pytest.fixture
def postgresql_bench(postgresql_database: QueueDatabase, handler_registry: None) -> Bench:
    made = Bench(postgresql_database)
    made.configure()
    return made


@pytest.fixture
def sqlite_bench(sqlite_database: QueueDatabase, handler_registry: None) -> Bench:
    made = Bench(sqlite_database)
    made.configure()
    return made


def _wanted_jobs(jobs: Callable[..., list[BackgroundJob]]) -> Callable[..., list[BackgroundJob]]:
    def wanted(*args: Any) -> list[BackgroundJob]:
        return [each for each in jobs(*args) if not (_without_jobs.get() and each.name in JOBS_FOR_ALL)]

    return wanted


@pytest.fixture
def handler_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove all other handlers during the test, and those that it registers after it.

    No message counts as slow: on a busy machine, another thread would take the next one, and tests check the order.
    """
    monkeypatch.setattr("sqlqueue_app.receiving.background.BUSY_PROBE_SECONDS", 3600.0)
    monkeypatch.setattr("sqlqueue_app.worker.run._jobs_for_all", _wanted_jobs(worker_run._jobs_for_all))
    kept = registry.all()
    for handler in kept:
        registry.remove(handler)
    yield
    for handler in registry.all():
        registry.remove(handler)
    for handler in kept:
        registry.add(handler)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def failing(calls: Calls) -> Calls:
    """A handler for `Test.Message` that always fails."""

    def fail(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        raise LookupError("always")

    handles("Test.Message")(fail)
    return calls


@pytest.fixture
def counting(calls: Calls) -> Callable[..., None]:
    """A handler for `Test.Message` that only counts."""

    def count(message: Any, context: Any) -> None:
        calls.add(message)

    handles("Test.Message")(count)
    return count


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The `event` of every log record, in order."""
    caplog.set_level(logging.DEBUG, logger="sqlqueue")
    return lambda: [record.event for record in caplog.records if hasattr(record, "event")]


@pytest.fixture
def asking(bench: Bench) -> Iterator[Asking]:
    pending.reset()
    made = Asking(bench)
    made.configure()
    yield made
    close_callbacks()
    assert made.instances() == [], "the callback queue was not given back"
