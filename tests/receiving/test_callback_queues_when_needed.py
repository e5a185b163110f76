"""Callback queues created on request, omitted if they cannot be created, and dropped when old."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils import timezone

from sqlqueue_app import close_callbacks, handles, request, send
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import CallbackQueue, Instance
from sqlqueue_app.status.instances import drop_old_callback_queues
from sqlqueue_app.status.overview import callback_queues, read_status
from sqlqueue_app.tables.installation import drop_queue
from sqlqueue_app.tables.listing import list_tables
from tests.support.bench import FAST, Asking, Bench, Running, take
from tests.support.tables import execute
from tests.support.waiting import join_all, poll_until

SECONDS = 60.0


@pytest.fixture
def ready(asking: Asking) -> Asking:
    """`Web` has no callback queue until its first request."""
    asking.configure(CALLBACKS="on_request", INSTANCE="new")
    return asking


def answered(message: Any, context: Any) -> None:
    context.reply(1)


def known(asking: Asking) -> Any:
    return CallbackQueue.objects.using(asking.bench.database.alias)


def grow_old(asking: Asking, **more: Any) -> None:
    known(asking).update(used_at=timezone.now() - timedelta(days=1, minutes=1), **more)


def used_and_left(asking: Asking) -> None:
    request("Test.Ask")
    close_callbacks()
    assert asking.bench.table("Web.new").exists()


@contextmanager
def as_worker(bench: Bench, *, closed: str = "") -> Iterator[None]:
    """Run as a role that may read and write but not create or drop. Another role owns the table `closed`."""
    role = bench.database.create_role("worker")
    execute(bench.database, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    for what in ("TABLES", "SEQUENCES"):
        execute(bench.database, f'GRANT ALL ON ALL {what} IN SCHEMA public TO "{role}"')
    if closed:
        execute(bench.database, f'REVOKE ALL ON "{closed}" FROM "{role}"')
    with bench.database.as_role(role):
        try:
            yield
        finally:
            close_callbacks()


def test_quickstart_creates_few_queue_tables(bench: Bench) -> None:
    before = {each.address.table for each in list_tables(bench.database.alias)}
    bench.database.configure(ENDPOINTS={"Shop": {}}, SEND_AS="Web", ROUTES={"Shop.*": "Shop"})
    bench.install()
    made = {each.address.table for each in list_tables(bench.database.alias)} - before
    assert made == {"Shop", "Shop.Delayed", "Web", "Web.Delayed"}


def test_first_request_creates_the_queue_and_receives_the_reply(ready: Asking) -> None:
    assert not ready.bench.table("Web.new").exists()
    handles("Test.Ask")(answered)
    with Running(ready.bench, endpoints=["Sales"]):
        pending = request("Test.Ask")
        assert (pending.result(SECONDS), pending.queue) == (1, "Web.new")
    assert [each.name for each in callback_queues(read_status())] == ["Web.new"]


def test_other_messages_name_the_endpoint_as_reply_address(ready: Asking) -> None:
    request("Test.Ask")
    send("Test.Ask")
    book = get_settings().address_book(ready.bench.database.vendor, ready.bench.database.catalog())
    addresses = [book.parse(each["NServiceBus.ReplyToAddress"]) for each in ready.bench.headers("Sales")]
    assert [each.table for each in addresses] == ["Web.new", "Web"]


def test_worker_has_no_callback_queue_until_first_request(ready: Asking) -> None:
    ready.bench.database.configure(SEND_AS=None)
    with Running(ready.bench, endpoints=["Web"]):
        poll_until(lambda: ready.instances() and ready.instances()[0].threads, what="the worker's heartbeat")
        assert [row.callback_queue for row in ready.instances()] == [None]
        assert callback_queues(read_status()) == []
        pending = request("Test.Ask")
        ready.answer(pending.message_id, queue="Web.new")
        assert pending.result(SECONDS) == {}
        assert {row.callback_queue for row in ready.instances()} == {None, "Web.new"}


def test_queue_has_its_trigger_with_wake_up(postgresql_bench: Bench) -> None:
    asking = Asking(postgresql_bench)
    asking.configure(CALLBACKS="on_request", INSTANCE="new", WAKE_UP=True)
    pending = request("Test.Ask")
    with postgresql_bench.database.connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = '\"Web.new\"'::regclass")
        assert cursor.fetchone() == (1,)
    asking.answer(pending.message_id, queue="Web.new")
    assert pending.result(SECONDS) == {}
    close_callbacks()


def test_role_without_create_uses_installed_queue(postgresql_bench: Bench) -> None:
    asking = Asking(postgresql_bench)
    asking.configure(CALLBACKS="on_request", INSTANCE="new")
    postgresql_bench.install_queues("Web.new-2")
    with as_worker(postgresql_bench):
        pending = request("Test.Ask")
        assert pending.queue == "Web.new-2"
        with pytest.raises(
            ConfigurationError, match=r"no callback queue.*permission denied.*sqlqueue_install --instance new.*\(2\)"
        ):
            take(asking)
        asking.answer(pending.message_id, queue="Web.new-2")
        assert pending.result(SECONDS) == {}


def test_queue_of_another_role_is_skipped(postgresql_bench: Bench) -> None:
    """Another role owns it, such as an administrator who sent a request from this machine."""
    asking = Asking(postgresql_bench)
    asking.configure(CALLBACKS="on_request", INSTANCE="new")
    postgresql_bench.install_queues("Web.new", "Web.new-2")
    with as_worker(postgresql_bench, closed="Web.new"):
        pending = request("Test.Ask")
        assert [row.callback_queue for row in asking.instances()] == ["Web.new-2"]
        asking.answer(pending.message_id, queue="Web.new-2")
        assert pending.result(SECONDS) == {}


def test_error_names_the_remedy_without_rights_on_any_queue(postgresql_bench: Bench) -> None:
    asking = Asking(postgresql_bench)
    asking.configure(CALLBACKS="on_request", INSTANCE="new")
    postgresql_bench.install_queues("Web.new")
    with (
        as_worker(postgresql_bench, closed="Web.new"),
        pytest.raises(ConfigurationError, match=r"permission denied.*sqlqueue_install --instance new.*--sql --grant ROLE"),
    ):
        request("Test.Ask")
    assert asking.instances() == []


@pytest.mark.parametrize("callbacks", ["on_request", True])
def test_worker_runs_without_callback_queue(postgresql_bench: Bench, events: Any, callbacks: Any) -> None:
    """The host has another name than the one that installed, as in a container."""
    asking = Asking(postgresql_bench)
    asking.configure(CALLBACKS="on_request", INSTANCE="new")
    seen: list[Any] = []
    handles("Test.Message")(lambda message, context: seen.append(message))
    settings = {"Sales": {**FAST, "CALLBACKS": callbacks, "INSTANCE": "container"}}
    postgresql_bench.database.configure(ENDPOINTS=settings, SEND_AS="Sales", ROUTES={"Test.*": "Sales"})
    with as_worker(postgresql_bench), Running(postgresql_bench):
        send("Test.Message")
        poll_until(lambda: len(seen) == 1, what="the message is handled")
        with pytest.raises(ConfigurationError, match="sqlqueue_install --instance container"):
            request("Test.Ask")
    assert events().count("no_callback_queue") == (callbacks is True)


def test_empty_queue_is_dropped_a_day_after_its_last_process(ready: Asking) -> None:
    used_and_left(ready)
    settings = get_settings()
    assert drop_old_callback_queues(settings) == []
    grow_old(ready)
    assert drop_old_callback_queues(settings) == ["Web.new"]
    assert not ready.bench.table("Web.new").exists()
    assert (known(ready).count(), ready.instances()) == (0, [])
    assert request("Test.Ask").queue == "Web.new"


def test_queue_with_holder_or_message_is_kept(ready: Asking) -> None:
    pending = request("Test.Ask")
    grow_old(ready)
    assert drop_old_callback_queues(get_settings()) == []
    assert known(ready).get().used_at > timezone.now() - timedelta(minutes=1)
    pending.cancel()
    close_callbacks()
    ready.answer("too late", queue="Web.new")
    grow_old(ready)
    assert drop_old_callback_queues(get_settings()) == []
    assert len(ready.bench.rows("Web.new")) == 1
    # that does not count as a use
    assert known(ready).get().used_at < timezone.now() - timedelta(days=1)
    assert ready.instances() == []


def test_queue_of_killed_process_is_dropped(ready: Asking) -> None:
    take(ready)
    rows = Instance.objects.using(ready.bench.database.alias)
    rows.update(heartbeat_at=timezone.now() - timedelta(days=2), pid=999_999_999)
    assert drop_old_callback_queues(get_settings()) == []
    grow_old(ready)
    assert drop_old_callback_queues(get_settings()) == ["Web.new"]
    assert ready.instances() == []


def test_queue_of_the_installer_is_kept(ready: Asking) -> None:
    ready.bench.install_queues("Web.new")
    used_and_left(ready)
    grow_old(ready)
    assert drop_old_callback_queues(get_settings()) == []
    assert ready.bench.table("Web.new").exists()


def test_uncommitted_reply_keeps_the_queue(postgresql_bench: Bench) -> None:
    asking = Asking(postgresql_bench)
    asking.configure(CALLBACKS="on_request", INSTANCE="new")
    used_and_left(asking)
    grow_old(asking)
    dropped: list[str] = []

    def drop() -> None:
        dropped.extend(drop_old_callback_queues(get_settings()))
        connections.close_all()

    dropping = threading.Thread(target=drop)
    with transaction.atomic(using=postgresql_bench.database.alias):
        asking.answer("late", queue="Web.new")
        dropping.start()
        join_all([dropping])
    assert (dropped, len(postgresql_bench.rows("Web.new"))) == ([], 1)


def test_role_without_drop_leaves_the_queue(postgresql_bench: Bench) -> None:
    asking = Asking(postgresql_bench)
    asking.configure(CALLBACKS="on_request", INSTANCE="new")
    used_and_left(asking)
    grow_old(asking)
    with as_worker(postgresql_bench):
        assert drop_old_callback_queues(get_settings()) == []
    assert asking.instances() == []
    assert drop_old_callback_queues(get_settings()) == ["Web.new"]


def test_entry_without_table_is_forgotten(ready: Asking) -> None:
    used_and_left(ready)
    drop_queue(ready.bench.database.alias, ready.bench.table("Web.new").address)
    assert callback_queues(read_status()) == []
    grow_old(ready)
    assert drop_old_callback_queues(get_settings()) == ["Web.new"]
    assert known(ready).count() == 0
