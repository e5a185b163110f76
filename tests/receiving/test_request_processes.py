"""Requests of several processes on one machine: each reply reaches the process that sent the request, even after one is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from typing import Any

from django.db import connections
from django.utils import timezone

from sqlqueue_app import handles, request
from sqlqueue_app.models import Instance
from tests.support.bench import Asking, Running
from tests.support.waiting import poll_until, read_until

PROCESSES, REQUESTS = 4, 25


def start(asking: Asking, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.receiving.request_app", *arguments],
        env=asking.bench.database.child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_each_forked_process_gets_its_own_replies(asking: Asking) -> None:
    asking.configure(CALLBACK_QUEUES=PROCESSES)

    @handles("Test.Ask")
    def answer(message: Any, context: Any) -> None:
        context.reply(message["code"])

    connections.close_all()
    with Running(asking.bench, endpoints=["Sales"]), start(asking, str(PROCESSES), str(REQUESTS)) as server:
        out, err = server.communicate(timeout=180)
    assert server.returncode == 0, err
    printed = [json.loads(line) for line in out.splitlines()]
    assert [each["wrong"] for each in printed] == [[]] * PROCESSES
    assert all(len(each["queues"]) == 1 for each in printed), printed
    # a child that has ended releases its queue, and the next one may take it
    assert {queue for each in printed for queue in each["queues"]} <= {"Web.here", "Web.here-2", "Web.here-3", "Web.here-4"}
    assert asking.instances() == [], "every child has given its queue back"
    assert all(asking.bench.rows(queue) == [] for queue in ("Web.here", "Web.here-2", "Web.here-3", "Web.here-4", "error"))


def test_queue_of_killed_process_is_taken_over(asking: Asking, events: Any) -> None:
    asking.configure(CALLBACK_QUEUES=1)
    with start(asking, "hold") as killed:
        try:
            (line,) = read_until(killed, killed.stdout, lambda line: line.startswith("{"), what="the process has sent its request")
        finally:
            killed.kill()
            killed.communicate(timeout=60)
    printed = json.loads(line)
    (row,) = asking.instances()
    assert (row.pid, row.callback_queue) == (printed["pid"], printed["queue"]) == (killed.pid, "Web.here")
    Instance.objects.using(asking.bench.database.alias).update(heartbeat_at=timezone.now() - timedelta(seconds=41))
    asking.answer(printed["message_id"], row=1)

    call = request("Test.Hold")
    assert call.queue == "Web.here"
    (row,) = asking.instances()
    assert [*row.threads] == ["Web.here"], "from its first request on, it is registered as awaiting replies"
    asking.answer(call.message_id, row=2)
    assert call.result(60) == {}
    poll_until(lambda: events().count("reply_unclaimed") == 1, what="the reply to the killed process is logged")


def test_ending_process_stops_receiving_before_drivers_close_connections(asking: Asking) -> None:
    asking.configure(CALLBACK_QUEUES=1)
    with start(asking, "end") as ending:
        out, err = ending.communicate(timeout=60)
    assert ending.returncode == 0, err
    assert json.loads(out) == {"alive": []}
    assert asking.instances() == [], "the queue was given back"
