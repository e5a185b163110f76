"""The callback queue of a requesting process: leased at the first request, kept, lost, taken over, never shared."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from sqlqueue_app import handles, pause, request, set_concurrency
from sqlqueue_app.messages.errors import QueueNotFound, ReplyLost
from sqlqueue_app.models import Instance
from sqlqueue_app.receiving.instances import Heartbeat
from sqlqueue_app.receiving.reply_listeners import _of_this_process, reply_listeners
from sqlqueue_app.receiving.stopping import PartOfStop, StopSignal
from sqlqueue_app.sending.replies import PendingRequests, Request, pending
from sqlqueue_app.tables.installation import drop_queue
from tests.support.bench import Asking, Running, take
from tests.support.waiting import poll_until

SECONDS = 60.0
ELSEWHERE = 999_999_999


def give_away(asking: Asking) -> None:
    """Let another process take over the queue, because this one sent no heartbeat for too long."""
    Instance.objects.using(asking.bench.database.alias).filter(endpoint="Web").update(pid=ELSEWHERE)


def test_nothing_starts_before_the_first_request(asking: Asking) -> None:
    assert asking.instances() == []
    held = request("Test.Ask")
    (row,) = asking.instances()
    assert (row.callback_queue, row.pid, row.endpoint, row.concurrency) == ("Web.here", os.getpid(), "Web", 1)
    poll_until(lambda: asking.instances()[0].threads == {"Web.here": 1}, what="a heartbeat")
    assert request("Test.Ask").queue == held.queue
    assert len(asking.instances()) == 1


def test_each_process_takes_the_next_free_queue(asking: Asking) -> None:
    held = [take(asking) for _ in range(3)]
    assert [each.callback_queue for each in held] == ["Web.here", "Web.here-2", "Web.here-3"]
    held[0].release()
    assert request("Test.Ask").queue == "Web.here"
    for lease in held[1:]:
        lease.release()


def test_queue_of_dead_process_is_taken_over_with_its_messages(asking: Asking, events: Any) -> None:
    asking.configure(CALLBACK_QUEUES=1)
    take(asking)
    silent = timezone.now() - timedelta(seconds=41)
    Instance.objects.using(asking.bench.database.alias).update(heartbeat_at=silent, pid=ELSEWHERE)
    asking.answer("a request of the dead process")
    call = request("Test.Ask")
    assert call.queue == "Web.here"
    poll_until(lambda: events().count("reply_unclaimed") == 1, what="the reply to the dead process is removed")
    asking.answer(call.message_id)
    assert call.result(SECONDS) == {}


def test_process_that_lost_its_queue_reports_it_and_leases_another(asking: Asking, events: Any) -> None:
    lost = request("Test.Ask")
    give_away(asking)
    _of_this_process._receivers["Web"].heartbeat.beat()
    with pytest.raises(ReplyLost, match="another process has the queue now"):
        lost.result(SECONDS)
    assert "lease_lost" in events()
    call = request("Test.Ask")
    assert call.queue == "Web.here-2"
    asking.answer(call.message_id, queue="Web.here-2")
    assert call.result(SECONDS) == {}
    # the other process's row is not ours to delete
    Instance.objects.using(asking.bench.database.alias).filter(pid=ELSEWHERE).delete()


def test_request_is_not_sent_if_its_queue_is_lost(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    held = request("Test.Ask")
    monkeypatch.setattr(reply_listeners, "has", lambda listener: False)
    with pytest.raises(ReplyLost, match="nothing was sent"):
        request("Test.Ask")
    assert len(asking.bench.rows("Sales")) == len(pending) == 1
    assert not held.done()


def test_pause_is_recorded_but_replies_still_arrive(asking: Asking) -> None:
    held = request("Test.Ask")
    assert pause("Web") == set_concurrency("Web", 2) == 1
    receiver = _of_this_process._receivers["Web"]
    receiver.heartbeat.beat()
    (row,) = asking.instances()
    assert (row.paused_since is None, row.concurrency, receiver._receiver.maximum) == (False, 2, 2)
    asking.answer(held.message_id)
    assert held.result(SECONDS) == {}


def test_worker_receives_replies_for_its_own_process(asking: Asking) -> None:
    @handles("Test.Ask")
    def answer(message: Any, context: Any) -> None:
        context.reply(1)

    with Running(asking.bench, endpoints=["Sales", "Web"]):
        poll_until(lambda: reply_listeners.find("Web"))
        call = request("Test.Ask")
        assert call.result(SECONDS) == 1
        assert call.queue == "Web.here"
        assert [row.callback_queue for row in asking.instances()] == ["Web.here"]
        assert _of_this_process._receivers == {}
    assert reply_listeners.find("Web") is None


def test_worker_without_send_as_requests_as_its_endpoint(asking: Asking) -> None:
    asking.bench.database.configure(SEND_AS=None)
    with Running(asking.bench, endpoints=["Web"]):
        poll_until(lambda: reply_listeners.find("Web"))
        call = request("Test.Ask")
        asking.answer(call.message_id)
        assert call.result(SECONDS) == {}


def test_requests_end_with_the_worker_that_receives_their_replies(asking: Asking) -> None:
    with Running(asking.bench, endpoints=["Web"]):
        poll_until(lambda: reply_listeners.find("Web"))
        call = request("Test.Ask")
    with pytest.raises(ReplyLost, match=r"the worker that received from 'Web.here' has ended"):
        call.result(SECONDS)


def test_worker_that_lost_its_queue_leaves_it_alone(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[Heartbeat] = []
    kept = Heartbeat.__init__

    def remember(self: Heartbeat, *arguments: Any, **more: Any) -> None:
        beats.append(self)
        kept(self, *arguments, **more)

    monkeypatch.setattr(Heartbeat, "__init__", remember)
    with Running(asking.bench, endpoints=["Web"]):
        poll_until(lambda: reply_listeners.find("Web"))
        poll_until(lambda: asking.instances()[0].threads, what="the worker's own first heartbeat, because beats do not overlap")
        lost = request("Test.Ask")
        give_away(asking)
        beats[0].beat()
        with pytest.raises(ReplyLost, match="another process has taken over"):
            lost.result(SECONDS)
        call = request("Test.Ask")
        assert call.queue == "Web.here-2"
        (callback,) = [each for each in beats[0]._receivers if each.queue == "Web.here"]
        poll_until(lambda: callback.live_threads == 0, what="no thread receives from the lost queue")
    Instance.objects.using(asking.bench.database.alias).filter(pid=ELSEWHERE).delete()


def test_nothing_is_leased_without_error_queue(asking: Asking) -> None:
    asking.bench.database.configure(
        ENDPOINTS={"Web": {"HANDLERS": [], "INSTANCE": "here", "CALLBACK_QUEUES": 1, "ERROR_QUEUE": "missing"}}
    )
    with pytest.raises(QueueNotFound, match="missing"):
        request("Test.Ask", to="Sales")
    assert asking.instances() == []


def test_removed_queue_is_created_again(asking: Asking) -> None:
    drop_queue(asking.bench.database.alias, asking.bench.table("Web.here").address)
    call = request("Test.Ask")
    assert call.queue == "Web.here"
    asking.answer(call.message_id)
    assert call.result(SECONDS) == {}


def test_waiting_request_is_polled_after_an_eighth_of_its_age() -> None:
    now = 0.0
    table = PendingRequests(clock=lambda: now)
    assert table.longest_wait("Web.here") is None
    waiting: Request[Any] = Request(table, message_id="1", what="a message")
    table.add(waiting, "Web.here", str)
    assert table.longest_wait("Web.here") == 0.005
    now = 4.0
    assert table.longest_wait("Web.here") == 0.5
    assert table.longest_wait("Web.here-2") is None
    waiting.cancel()
    assert table.longest_wait("Web.here") is None


def test_part_of_stop_ends_alone_or_stops_everything() -> None:
    whole = StopSignal()
    alone, other, third = PartOfStop(whole), PartOfStop(whole), PartOfStop(whole)
    alone.retire()
    alone.set()
    assert (alone.is_set(), other.is_set(), whole.is_set()) == (True, False, False)
    other.set()
    assert (whole.is_set(), third.is_set()) == (True, True)


def test_replies_arrive_with_wake_up(asking: Asking) -> None:
    asking.configure(WAKE_UP=True)
    call = request("Test.Ask")
    asking.answer(call.message_id)
    assert call.result(SECONDS) == {}
