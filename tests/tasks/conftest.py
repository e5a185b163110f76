"""`office`: a project that uses Django's Tasks framework, its workers, and the contents of its tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pytest_django import Settings

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import Claim, TaskResult
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.support.bench import FAST, Bench
from tests.support.databases import QueueDatabase
from tests.tasks.framework import WRITTEN, task_enqueued, task_finished, task_started

BACKEND = "sqlqueue_app.tasks.SqlQueueBackend"
SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}


@dataclass
class Office(Bench):
    """A project whose endpoint `default` runs the tasks."""

    settings: Settings = field(kw_only=True)

    def tasks(self, queues: list[str] | None = None, **options: Any) -> None:
        """Set TASKS to our backend with these options."""
        queues = ["default"] if queues is None else queues
        self.settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": queues, "OPTIONS": options}}

    def endpoints(self, **endpoints: dict[str, Any]) -> None:
        """Set ENDPOINTS and create their tables."""
        self.database.configure(ENDPOINTS={name: {**FAST, **given} for name, given in endpoints.items()})
        self.install()

    def delayed(self, endpoint: str = "default") -> list[str]:
        """The headers of the delayed messages."""
        address = delayed_address(get_settings().address_book(self.database.vendor), endpoint)
        with self.database.connection.cursor() as cursor:
            cursor.execute(f"SELECT headers FROM {DelayedTable(self.database.alias, address).qualified} ORDER BY due")
            return [headers for (headers,) in cursor.fetchall()]

    def written(self) -> list[str]:
        """The texts that the tasks have written."""
        names = Claim.objects.using(self.database.alias).filter(name__startswith=WRITTEN).values_list("name", flat=True)
        return sorted(name.removeprefix(WRITTEN) for name in names)

    def row(self, result_id: str) -> TaskResult:
        return TaskResult.objects.using(self.database.alias).get(pk=result_id)


@pytest.fixture
def office(queue_database: QueueDatabase, settings: Settings, handler_registry: None) -> Office:
    return _open(queue_database, settings)


@pytest.fixture
def postgresql_office(postgresql_database: QueueDatabase, settings: Settings, handler_registry: None) -> Office:
    return _open(postgresql_database, settings)


def _open(database: QueueDatabase, settings: Settings) -> Office:
    made = Office(database, settings=settings)
    made.tasks()
    made.endpoints(default={})
    return made


@pytest.fixture
def handler_registry() -> Iterator[None]:
    """Remove the handlers of other modules during the test."""
    from sqlqueue_app.receiving.handlers import registry

    kept = registry.all()
    for handler in kept:
        registry.remove(handler)
    yield
    for handler in kept:
        registry.add(handler)


@dataclass
class Signals:
    """The signals of the framework in order, each by name with the status of the result at that time."""

    received: list[tuple[str, str]] = field(default_factory=list)
    senders: list[type] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        receivers = {word: self._receiver(word) for word in SIGNALS}
        for word, signal in SIGNALS.items():
            signal.connect(receivers[word], weak=False)
        try:
            yield
        finally:
            for word, signal in SIGNALS.items():
                signal.disconnect(receivers[word])

    def _receiver(self, word: str) -> Any:
        def receive(sender: type, task_result: Any, **_: Any) -> None:
            self.received.append((word, str(task_result.status)))
            self.senders.append(sender)
            self.results.append(task_result)

        return receive


@pytest.fixture
def signals() -> Iterator[Signals]:
    made = Signals()
    with made.recording():
        yield made


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Any:
    """The `event` of every log record, in order."""
    caplog.set_level(logging.DEBUG, logger="sqlqueue")
    return lambda: [record.event for record in caplog.records if hasattr(record, "event")]
