"""Replies to processes that have ended (docs: What happens when …). test_request_processes kills a real process."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from sqlqueue_app import close_callbacks, handles, request
from sqlqueue_app.models import Instance
from tests.support.bench import Asking, Calls, Running
from tests.support.waiting import poll_until

SECONDS = 60.0
ELSEWHERE = 999_999_999
MODES = pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"])


@pytest.fixture
def answering(asking: Asking) -> None:
    @handles("Test.Ask")
    def answer(message: Any, context: Any) -> None:
        context.reply(message.get("code", 0))


def request_and_die(asking: Asking) -> str:
    """Send a request as a process that dies before the reply. Returns its message id; its lease has expired."""
    message_id = request("Test.Ask", {"code": 1}).message_id
    rows = Instance.objects.using(asking.bench.database.alias)
    rows.update(pid=ELSEWHERE)
    # Its threads end; the row now belongs to another process, so it stays.
    close_callbacks()
    rows.update(heartbeat_at=timezone.now() - timedelta(seconds=41))
    return message_id


def test_next_process_takes_over_a_reply_to_a_dead_process(
    asking: Asking, answering: None, events: Callable[[], list[str]]
) -> None:
    asking.configure(AUDIT_QUEUE="audit", CALLBACK_QUEUES=1)
    dead = request_and_die(asking)
    asking.bench.run(endpoints=["Sales"])
    assert [headers["NServiceBus.CorrelationId"] for headers in asking.bench.headers("Web.here")] == [dead]
    assert asking.bench.rows("error") == []

    with Running(asking.bench, endpoints=["Sales"]):
        assert request("Test.Ask", {"code": 2}).result(SECONDS) == 2
        poll_until(lambda: events().count("reply_unclaimed") == 1, what="the reply to the dead process is logged")
    assert events().count("reply_unclaimed") == 1
    poll_until(lambda: dead in [headers["NServiceBus.CorrelationId"] for headers in asking.bench.headers("audit")])
    assert asking.bench.rows("Web.here") == asking.bench.rows("error") == []


@MODES
def test_reply_to_removed_queue_fails_only_its_request(asking: Asking, answering: None, mode: str) -> None:
    asking.configure(sales={"TRANSACTION_MODE": mode})
    dead = request_and_die(asking)
    call_command("sqlqueue_purge_callbacks", "--yes", "--format", "json", stdout=io.StringIO())
    assert not asking.bench.table("Web.here").exists()

    with Running(asking.bench, endpoints=["Sales"]):
        poll_until(lambda: asking.bench.rows("error"), what="the request of the dead process is in the error queue")
        call = request("Test.Ask", {"code": 2})
        assert call.queue == "Web.here"
        assert call.result(SECONDS) == 2
    (headers,) = asking.bench.headers("error")
    assert headers["NServiceBus.MessageId"] == dead
    assert "Web.here" in headers["NServiceBus.ExceptionInfo.Message"]
    assert "does not exist" in headers["NServiceBus.ExceptionInfo.Message"]


def test_reply_to_dead_process_completes_no_request_of_next_holder(asking: Asking, events: Any) -> None:
    asking.configure(CALLBACK_QUEUES=1)
    dead = request_and_die(asking)
    call = request("Test.Ask")
    assert call.queue == "Web.here"
    asking.answer(dead, b'{"of": "the dead"}', row=1)
    asking.answer(call.message_id, b'{"of": "the living"}', row=2)
    assert call.result(SECONDS) == {"of": "the living"}
    poll_until(lambda: events().count("reply_unclaimed") == 1)


def test_work_for_dead_requester_is_committed_or_rolled_back_as_a_whole(asking: Asking, calls: Calls) -> None:
    """The reply cannot be written: the handler's rows are rolled back with it, and committed once the queue exists."""
    asking.configure(sales={"IMMEDIATE_RETRIES": 1})
    database = asking.bench.database
    with database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE asked (number integer NOT NULL)")

    @handles("Test.Ask")
    def answer(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        with database.connection.cursor() as cursor:
            cursor.execute("INSERT INTO asked (number) VALUES (1)")
        context.reply(1)

    def request_count() -> int:
        with database.connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM asked")
            return int(cursor.fetchone()[0])

    request_and_die(asking)
    call_command("sqlqueue_purge_callbacks", "--yes", "--format", "json", stdout=io.StringIO())
    asking.bench.run(endpoints=["Sales"])
    assert (calls.seen, request_count()) == ([1, 2], 0)

    (failed,) = asking.bench.rows("error")
    asking.bench.install()
    asking.bench.put(failed.headers or "", failed.body or b"")
    asking.bench.run(endpoints=["Sales"])
    assert request_count() == 1
    assert len(asking.bench.rows("Web.here")) == 1
