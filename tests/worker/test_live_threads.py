"""The number of live receive threads: by the operating system, by `sqlqueue_status` and in the admin."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
from collections import Counter
from typing import Any

import pytest

from sqlqueue_app import handles, send, set_concurrency
from sqlqueue_app.management.output import status_document, status_lines
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import Instance
from sqlqueue_app.receiving import instances as heartbeat
from sqlqueue_app.receiving.concurrency import FixedReceiver
from sqlqueue_app.receiving.instances import DesiredState, Heartbeat
from sqlqueue_app.status.overview import read_status
from tests.support.bench import Bench, Running
from tests.support.pages import OVERVIEW, Markup, client_of, numbers_of
from tests.support.receivers import Script, running
from tests.support.waiting import poll_until, read_until
from tests.support.worker_processes import address, prepare, wait_for_event, worker_process
from tests.worker.instances import lease
from tests.worker.threads_app import MODULE

SATELLITES = ("Sales.Retries", "Sales.Timeouts", "Sales.TimeoutsDispatcher")


def started(process: subprocess.Popen[str]) -> None:
    """Wait until the worker receives. From then on its log is read and discarded, so that it never blocks."""
    wait_for_event(process, "worker_started")
    stderr = process.stderr
    assert stderr is not None

    def forget() -> None:
        # The end of the test may close it before the reading has begun.
        with contextlib.suppress(ValueError):
            stderr.read()

    threading.Thread(target=forget, daemon=True).start()


def receive_threads(bench: Bench, process: subprocess.Popen[str]) -> Counter[str]:
    """The receive threads of each queue in the worker, according to the operating system; a message requests their ids."""
    send("Worker.Threads", {}, to=address(bench, "Sales"))
    (line,) = read_until(process, process.stdout, lambda _: True, what="the handler reports the threads")
    reported = json.loads(line)
    tasks = set(map(int, os.listdir(f"/proc/{reported['pid']}/task")))
    names = [name for name, number in reported["threads"].items() if number in tasks]
    return Counter(name.removeprefix("sqlqueue-Sales-").rpartition("-")[0] for name in names if name.startswith("sqlqueue-Sales-"))


@pytest.mark.parametrize("callbacks", [False, True])
def test_fixed_model_runs_the_configured_number_of_threads(postgresql_bench: Bench, callbacks: bool) -> None:
    bench = postgresql_bench
    prepare(bench, HANDLERS=[MODULE], LEGACY_SATELLITES=True, CALLBACKS=callbacks, INSTANCE="here", CALLBACK_QUEUES=1)
    wanted = {"Sales": 10, **dict.fromkeys(SATELLITES, 10), **({"Sales.here": 1} if callbacks else {})}
    arguments = ("--model", "fixed", "--max-concurrency", "10", "--log-format", "json")
    with worker_process(bench, *arguments, HEARTBEAT_SECONDS="0.5") as process:
        started(process)
        found = receive_threads(bench, process)
        assert found == wanted
        assert found.total() == 40 + callbacks
        assert shown(bench) == wanted
        if callbacks:
            # The change needs no restart, and the operating system counts the same threads.
            assert set_concurrency("Sales", 3) == 1
            fewer = {name: 1 if name == "Sales.here" else 3 for name in wanted}
            poll_until(lambda: receive_threads(bench, process) == fewer, deadline=60, what=f"{fewer} live")


@pytest.mark.parametrize(("model", "idle"), [("adaptive", 1), ("monitor", 0)])
def test_idle_models_run_the_minimum_of_threads(bench: Bench, model: str, idle: int) -> None:
    prepare(bench, HANDLERS=[MODULE], LEGACY_SATELLITES=True, MAX_CONCURRENCY=10)
    with worker_process(bench, "--model", model, "--log-format", "json") as process:
        started(process)
        found = receive_threads(bench, process)
        # In the monitor model two or more threads received our message: a second peek still sees it.
        assert found.pop("Sales") >= 2 - idle
        # One for each idle queue: the only polling thread, or the monitor, which peeks and takes nothing.
        assert found == dict.fromkeys(SATELLITES, 1)
        assert {name: shown(bench)[name] for name in SATELLITES} == dict.fromkeys(SATELLITES, idle)


def shown(bench: Bench) -> dict[str, int]:
    """The live threads in `sqlqueue_status` after the first heartbeat, for queues that have any."""

    def reported() -> dict[str, int]:
        queues = status_document(read_status())["queues"]
        return {each["name"]: each["threads"] for each in queues if each["threads"] is not None}

    return poll_until(reported, deadline=60, what="a heartbeat")


@pytest.mark.parametrize(("model", "sales", "fast"), [("fixed", 4, 1), ("adaptive", 1, 1), ("monitor", 1, 0)])
def test_status_and_admin_show_the_live_threads_of_every_model(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, model: str, sales: int, fast: int
) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.1)
    # At the second tick the adaptive model starts another thread beside a slow handler.
    monkeypatch.setattr("sqlqueue_app.receiving.background.SLOW_TASK_TICK_SECONDS", 3600.0)
    bench.configure(MAX_CONCURRENCY=4, SATELLITES={"Sales.Fast": {"MAX_CONCURRENCY": 1}})
    go_on = threading.Event()

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        assert go_on.wait(60)

    # On SQLite a busy handler holds the one write lock, and the heartbeat waits for it.
    is_busy = bench.database.vendor != "sqlite"
    if is_busy:
        bench.put_message("Test.Message")
    wanted = {"Sales": sales if is_busy or model != "monitor" else 0, "Sales.Fast": fast}
    with Running(bench, model=model):
        try:
            poll_until(lambda: shown(bench) == wanted, deadline=60, what=f"{wanted} in the status")
            html = client_of("superuser").get(OVERVIEW).content.decode()
            assert {name: numbers_of(html, name)[-1] for name in wanted} == wanted
            lines = [line.split() for line in status_lines(read_status())]
            assert {line[0]: line[7] for line in lines if line and line[0] in wanted and line[1] in ("main", "satellite")} == {
                name: str(number) for name, number in wanted.items()
            }
            page = Markup(client_of("superuser").get(f"{OVERVIEW}Sales/").content.decode()).text()
            assert f"Live threads {wanted['Sales']} " in page
            instances = Markup(client_of("superuser").get("/admin/sqlqueue_app/instance/").content.decode()).text()
            listed = re.findall(r"(Sales\S*) : (\d+), \d+ busy", instances)
            assert listed == [(name, str(number)) for name, number in wanted.items()]
        finally:
            go_on.set()


def test_threads_of_dead_instances_do_not_count(bench: Bench) -> None:
    lease(bench).heartbeat({"Sales": 3})
    lease(bench).heartbeat({"Sales": 4, "Sales.Fast": 1})
    assert shown(bench) == {"Sales": 7}
    Instance.objects.using(bench.database.alias).filter(threads__Sales=3).update(heartbeat_at="2020-01-01T00:00:00Z")
    assert shown(bench) == {"Sales": 4}


def test_heartbeat_applies_the_number_in_the_row_and_vice_versa(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    held = lease(bench)
    with (
        running(FixedReceiver, Script(), maximum=2) as (main, _),
        running(FixedReceiver, Script(), maximum=2) as (satellite, _),
        running(FixedReceiver, Script(), maximum=1) as (apart, _),
    ):
        beats = Heartbeat(held, [main, satellite, apart], [main, satellite])
        assert set_concurrency("Sales", 5) == 1
        beats.beat()
        assert [each.live_threads for each in (main, satellite, apart)] == [5, 5, 1]
        main.change_concurrency(3)
        beats.beat()
        assert held.desired_state() == DesiredState(3, paused=False)
        Instance.objects.using(bench.database.alias).update(concurrency=0)
        beats.beat()
        assert (held.desired_state(), main.maximum) == (DesiredState(3, paused=False), 3)
    assert [record.levelname for record in caplog.records if getattr(record, "event", "") == "concurrency_refused"] == ["ERROR"]


def test_invalid_request_is_refused_with_its_value(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="the concurrency of 'Sales' cannot be 0: expected an integer of at least 1"):
        set_concurrency("Sales", 0)
    with pytest.raises(ConfigurationError, match="the concurrency of 'Sales' cannot be '4': expected an integer of at least 1"):
        set_concurrency("Sales", "4")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"cannot be 10{30}: expected an integer of at least 1 and at most 10000"):
        set_concurrency("Sales", 10**30)
    with pytest.raises(ConfigurationError, match="no process of endpoint 'Sales', host 'there', process 1 is registered"):
        set_concurrency("Sales", 2, host="there", pid=1)
