"""Each condition that needs attention is one alert in all places and ends with the condition."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sqlqueue_app import pause, resume
from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import CheckResult, Event, FailedMessage, Instance, PipelineRun, QueueSample, RunState, ScheduleTick
from sqlqueue_app.monitoring.check_results import CheckRunner, ProcessChecks
from sqlqueue_app.monitoring.checks import EXPIRED_LIMIT, GROWING
from sqlqueue_app.receiving import instances
from sqlqueue_app.status.endpoints import set_minimum
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.in_doubt import InDoubt
from sqlqueue_app.status.overview import read_status
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.status.samples import MINUTE as MINUTES, Sampling
from sqlqueue_app.status.schedules import Schedules
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.support.alerts import alerts, one_alert, states
from tests.support.bench import Bench, Calls, Running
from tests.support.clocks import DatabaseClock
from tests.support.filling import instance, message
from tests.support.pages import client_of
from tests.support.waiting import poll_until
from tests.support.worker_processes import prepare, wait_for_event, worker_process

SALES = "/admin/sqlqueue_app/endpoint/Sales/"
MINUTE = timedelta(minutes=1)
# The last heartbeat of processes that must not count as dead, however slow the machine is.
IN_AN_HOUR = -60 * MINUTE


@pytest.fixture(autouse=True)
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", 0.1)


def put(bench: Bench, count: int = 1, queue: str = "Sales", **fields: int) -> None:
    bench.table(queue).send([message(**fields) for _ in range(count)])  # type: ignore[arg-type]


def instance_states() -> list[str]:
    return [each.state.value for each in read_status(get_settings()).instances]


class Watching:
    """Samples and checks of a worker, at times set by the test, up to now."""

    def __init__(self, bench: Bench, begin: timedelta) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0) - begin
        own = ProcessChecks(bench.database.alias)
        self.sampling = Sampling(get_settings(), now=lambda: self.now)
        self.checks = CheckRunner(get_settings(), own, InDoubt(bench.database.alias), now=lambda: self.now, local=lambda: self.now)

    def run_for(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.now += timedelta(seconds=10)
            self.sampling.sample()
            self.checks.run_due()


# --- paused, unconsumed ---------------------------------------------------------------------------------------------------------


def test_paused_endpoint_is_an_alert(bench: Bench, calls: Calls, counting: object) -> None:
    with Running(bench):
        poll_until(lambda: instance_states() == ["alive"], what="a worker")
        assert alerts().are_none
        pause("Sales", by="anna")
        poll_until(lambda: instance_states() == ["paused"], what="the worker has paused")
        assert alerts().are_none, "no alert for five minutes if no message waits"
        Instance.objects.update(paused_since=datetime.now(UTC) - 6 * MINUTE)
        one_alert("paused", "Endpoint Sales : Paused by anna; messages waiting: 0.")
        Instance.objects.update(paused_since=datetime.now(UTC))
        bench.put_message("Test.Message")
        found = one_alert("paused", "Endpoint Sales : Paused by anna; messages waiting: 1.")
        assert SALES in found.links
        assert "Sales main Sales Paused" in states("queue")
        assert "Sales Paused" in states("endpoint")
        resume("Sales", by="bert")
        poll_until(lambda: calls.seen and instance_states() == ["alive"], what="the worker receives again")
        assert alerts().are_none
    kinds = [(each.kind, each.details["by"]) for each in Event.objects.filter(kind__startswith="endpoint_").order_by("id")]
    assert kinds == [("endpoint_paused", "anna"), ("endpoint_resumed", "bert")]
    assert "anna paused Sales" in states("event")


def test_messages_without_a_receiver_are_an_alert(bench: Bench, calls: Calls, counting: object) -> None:
    assert "No live worker" in states("queue")
    bench.put_message("Test.Message", **{"NServiceBus.TimeSent": "2026-01-01 00:00:00:000000 Z"})
    found = one_alert("no_live_instance", "Endpoint Sales : No live worker; messages waiting: 1")
    assert SALES in found.links
    with Running(bench):
        poll_until(lambda: calls.seen and instance_states() == ["alive"], what="the message is handled")
        assert alerts().are_none


@pytest.mark.parametrize("by", ["SEND_AS", "HANDLERS"])
def test_messages_for_a_send_only_endpoint_are_an_alert(bench: Bench, by: str) -> None:
    sections = {"Web": {"HANDLERS": [], "CALLBACKS": False}} if by == "HANDLERS" else {}
    bench.database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}, **sections}, SEND_AS="Web")
    bench.install()
    bench.install_queues("Web")
    instance(callback_queue=None, threads={"Sales": 1}, silent=IN_AN_HOUR)
    assert alerts().are_none
    put(bench, 2, "Web")
    one_alert("no_live_instance", "Endpoint Web : Send-only endpoint: no process receives; messages waiting: 2")
    assert "Send-only" in states("queue")
    assert "Web Send-only" in states("endpoint").replace("(not in the settings)", "")
    bench.table("Web").purge()
    assert alerts().are_none


# --- growing, expired, late, failing ----------------------------------------------------------------------------------------------


def test_process_that_has_just_paused_receives_nothing(bench: Bench) -> None:
    """Until the next heartbeat, its row shows the threads of the last one."""
    instance(callback_queue=None, threads={"Sales": 1}, silent=IN_AN_HOUR)
    pause("Sales", by="anna")
    put(bench, 1)
    assert "Pausing" in states("queue")
    Instance.objects.update(paused_since=datetime.now(UTC))
    one_alert("paused", "messages waiting: 1")
    assert "Sales main Sales Paused" in states("queue")


def test_growing_queue_is_an_alert(bench: Bench) -> None:
    instance(callback_queue=None, threads={"Sales": 2}, silent=IN_AN_HOUR)
    watching = Watching(bench, 12 * MINUTE)
    for number in range(12):
        put(bench, 30)
        watching.run_for(60)
        assert "growing" not in alerts().checks or number >= 6
    found = one_alert("growing", "Queue Sales : Growing: messages waiting: 3", "more than 10 minutes ago; receiving threads: 2.")
    assert f"{'/admin/sqlqueue_app/queue/'}Sales/" in found.links
    pause("Sales", by="anna")
    Instance.objects.update(threads={"Sales": 0})
    one_alert("paused", "messages waiting: 360")
    resume("Sales", by="anna")
    Instance.objects.update(threads={"Sales": 2})
    bench.table("Sales").purge()
    watching.run_for(120)
    assert alerts().are_none


def test_growing_queue_stays_an_alert_while_samples_are_missing(bench: Bench) -> None:
    """After a restart of the workers the samples have a gap, and for a while they do not show whether the queue still grows."""
    instance(callback_queue=None, threads={"Sales": 2}, silent=IN_AN_HOUR)
    watching = Watching(bench, 15 * MINUTE)
    for _minute in range(12):
        put(bench, 30)
        watching.run_for(60)
    failing = CheckResult.objects.filter(name=GROWING.name, subject="Sales", failing=True)
    assert failing.exists()
    newest = QueueSample.objects.filter(seconds=MINUTES.seconds).latest("taken_at").taken_at
    QueueSample.objects.filter(taken_at__gt=newest - timedelta(minutes=3)).delete()
    for _minute in range(3):
        put(bench, 30)
        watching.run_for(60)
        assert failing.exists()
    one_alert("growing")
    bench.table("Sales").purge()
    watching.run_for(60)
    assert not failing.exists()


def test_unsteady_long_queue_is_no_alert(bench: Bench) -> None:
    instance(callback_queue=None, threads={"Sales": 2}, silent=IN_AN_HOUR)
    watching = Watching(bench, 14 * MINUTE)
    for number in range(14):
        # A burst at each fourth minute, drained in the next.
        put(bench, 200) if number % 4 == 0 else bench.table("Sales").purge()
        watching.run_for(60)
        assert "growing" not in alerts().checks


def test_unpurged_expired_messages_are_an_alert(bench: Bench) -> None:
    bench.configure(PURGE_EXPIRED_EVERY=60)
    instance(callback_queue=None, threads={"Sales": 2}, silent=IN_AN_HOUR)
    put(bench, EXPIRED_LIMIT + 1, lifetime_ms=-1000)
    watching = Watching(bench, 20 * MINUTE)
    watching.run_for(1200)
    one_alert("expired", "Queue Sales : More than 1,000 expired messages have been waiting for 15 minutes.")
    bench.table("Sales").purge()
    assert alerts().are_none, "the page counts the messages itself"
    watching.run_for(180)
    assert alerts().are_none


def test_late_recurring_message_is_an_alert(bench: Bench) -> None:
    bench.database.configure(
        ENDPOINTS={"Sales": {"CALLBACKS": False}}, ROUTES={"Test.*": "Sales"},
        SCHEDULES={"minutely": {"CRON": "* * * * *", "SEND": "Test.Message"}},
    )  # fmt: skip
    instance(callback_queue=None, threads={"Sales": 1}, silent=IN_AN_HOUR)
    now = datetime.now(UTC)
    Schedules(get_settings(), "Sales", now=lambda: now - 30 * MINUTE).send_due()
    assert ScheduleTick.objects.exists()
    found = one_alert("late_schedule", "Schedule minutely : The recurring message minutely that was due at ")
    assert "/admin/sqlqueue_app/schedule/" in found.links
    Schedules(get_settings(), "Sales", now=lambda: now).send_due()
    bench.table("Sales").purge()
    assert alerts().are_none


def test_failed_run_of_the_pipeline_is_an_alert(bench: Bench) -> None:
    bench.database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}}, PIPELINE={"LAKE": "/srv/lake"})
    instance(callback_queue=None, threads={"Sales": 1}, silent=IN_AN_HOUR)
    now = datetime.now(UTC)
    run = PipelineRun.objects.create(
        started_at=now, heartbeat_at=now, ended_at=now, state=RunState.FAILED, pid=1, error="No space left on device"
    )
    found = one_alert("pipeline", "Pipeline : The last run of the pipeline failed: No space left on device")
    assert "/admin/sqlqueue_app/pipelinerun/" in found.links
    run.state = RunState.STOPPED
    run.save()
    assert alerts().are_none


def test_failed_messages_are_an_alert_until_archived(bench: Bench, failing: Calls) -> None:
    with Running(bench):
        bench.put_message("Test.Message")
        poll_until(lambda: FailedMessage.objects.exists(), deadline=60, what="the failure is in the index")
        found = one_alert("failed", "Queue error : Failed messages that wait for a decision: 1.", "The newest: LookupError")
        assert "/admin/sqlqueue_app/failedmessage/" in found.links
        (failed,) = FailedMessage.objects.all()
        client_of("superuser").post(f"/admin/sqlqueue_app/failedmessage/archive/?ids={failed.pk}", {"confirmed": "1"})
        assert len(bench.rows("error")) == 1
        assert alerts().are_none


# --- processes --------------------------------------------------------------------------------------------------------------------


def stop_in_order(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def test_stale_samples_after_an_orderly_stop_are_the_only_alert(bench: Bench) -> None:
    clock = DatabaseClock(bench.database)
    with clock.running():
        with Running(bench):
            poll_until(lambda: CheckResult.objects.exists(), deadline=60, what="checks were run")
        assert not Instance.objects.exists()
        assert alerts().are_none
        clock.jump(3 * MINUTE)
        one_alert("stale", "Workers : No worker is alive")
        before = CheckResult.objects.get(name="sqlqueue.instances").checked_at
        with Running(bench):
            poll_until(
                lambda: CheckResult.objects.get(name="sqlqueue.instances").checked_at > before, deadline=60, what="checks are run"
            )
            assert "stale" not in alerts().checks


def test_killed_process_is_one_alert_until_it_has_a_successor(bench: Bench) -> None:
    prepare(bench, CALLBACKS=True, INSTANCE="here", CALLBACK_QUEUES=1, SATELLITES={"Sales.Priority": {}})
    set_minimum("Sales", 1, actor=Actor("anna"))
    with worker_process(bench, "--log-format", "json") as process:
        wait_for_event(process, "worker_started")
        poll_until(lambda: Instance.objects.exclude(threads={}).exists(), deadline=60, what="a heartbeat")
        process.kill()
        process.communicate(timeout=60)
    killed = Instance.objects.get()
    for queue in ("Sales", "Sales.Priority", "Sales.here"):
        put(bench, 2, queue)
    delayed = DelayedTable(bench.database.alias, delayed_address(address_book_of(get_settings()), "Sales"))
    delayed.add("{}", b"", datetime(2026, 1, 1, tzinfo=UTC))
    silent_for(killed, MINUTE)
    found = one_alert("dead_instances", "Process Sales on ", "Messages waiting that no process receives: 4.")
    assert SALES in found.links
    page = states("checkresult")
    assert "Processes Sales on " in page
    assert page.count(" Fails ") == 1, "the page of checks shows the same"
    for queue in ("Sales", "Sales.Priority", "Sales.here"):
        bench.table(queue).purge()
    with worker_process(bench, "--log-format", "json") as process:
        wait_for_event(process, "worker_started")
        poll_until(lambda: alerts().are_none, deadline=60, what="a successor runs and no alert remains")
        poll_until(lambda: CheckResult.objects.exists(), deadline=60, what="checks were run")
        stop_in_order(process)
    set_minimum("Sales", 0, actor=Actor("anna"))
    if Instance.objects.exists():  # the successor has another callback queue
        silent_for(killed, 11 * MINUTE)
    assert (instance_states(), alerts().are_none) == ([], True), "the row of the killed process no longer counts"


def silent_for(process: Instance, time: timedelta) -> None:
    Instance.objects.filter(pk=process.pk).update(heartbeat_at=datetime.now(UTC) - time)


@pytest.fixture
def requesting_process(bench: Bench, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that awaits replies as `Web` without a handler for SIGTERM, as under `runserver`."""
    bench.database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}}, SEND_AS="Web")
    bench.install()
    program = (
        "import django, time; django.setup()\n"
        "from sqlqueue_app.receiving import instances; instances.HEARTBEAT_SECONDS = 0.1\n"
        "from sqlqueue_app.receiving.reply_listeners import reply_listener\n"
        "reply_listener('Web')\n"
        "print('asking', flush=True)\n"
        "import sys; sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program], env=bench.database.child_environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "asking\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_stopped_web_process_is_not_dead(bench: Bench, requesting_process: subprocess.Popen[str]) -> None:
    now = datetime.now(UTC)
    CheckResult.objects.create(name="sqlqueue.instances", since=now, checked_at=now + 60 * MINUTE)  # by an earlier worker
    poll_until(lambda: Instance.objects.exclude(threads={}).exists(), deadline=60, what="a heartbeat")
    assert (instance_states(), alerts().are_none) == (["alive"], True)
    requesting_process.terminate()
    assert requesting_process.wait(60) == -signal.SIGTERM, "no exit hook has run"
    assert Instance.objects.get().pid == requesting_process.pid
    assert (instance_states(), alerts().are_none) == ([], True)
    assert str(requesting_process.pid) not in states("instance")
    with Running(bench):
        poll_until(
            lambda: not Instance.objects.filter(pid=requesting_process.pid).exists(), deadline=60, what="a worker deletes the row"
        )
