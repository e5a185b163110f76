"""The cost of browsers for a worker on the same machine: its rate with and without them, in turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.databases import ROOT, PostgreSQL, run_child
from tests.support.ports import free_port
from tests.support.processes import end
from tests.support.waiting import poll_until

_PATIENCE_SECONDS = 60.0
_LOG_IN = """
import django; django.setup()
from django.contrib.auth.models import User
from django.test import Client
user, _ = User.objects.get_or_create(username="operator", defaults={"is_staff": True, "is_superuser": True})
client = Client(); client.force_login(user)
print('"' + client.cookies["sessionid"].value + '"')
"""


def measure_beside(
    database: PostgreSQL, environment: dict[str, str], *, browsers: int, messages: int, threads: int, rounds: int, apart: bool
) -> dict[str, Any]:
    """The rates of a worker in messages per second, alone and with browsers that refresh each second, in turns.

    With `apart`, worker and server use the first processor and site and browsers the others, in both turns: the browsers then
    cost the worker only the load on the server. Raises RuntimeError on a machine with one processor.
    """
    cookie = subprocess.run(
        [sys.executable, "-c", _LOG_IN], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    session = json.loads(cookie.stdout)
    rates: dict[str, list[float]] = {"alone": [], "beside": []}
    seen: list[dict[str, Any]] = []
    with _places(database, apart=apart) as rest, _site(environment, rest) as address:
        # A warm-up turn reads the table from the disk.
        database.top_up(messages + 1_000)
        _work(environment, threads, messages)
        for number in range(rounds):
            # The second turn meets the dead rows of the first.
            for turn in ("alone", "beside") if number % 2 else ("beside", "alone"):
                database.top_up(messages + 1_000)
                with _browsers(address, session, browsers, rest, seen) if turn == "beside" else nullcontext():
                    rates[turn].append(_work(environment, threads, messages))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    requests = sum(each["requests"] for each in seen)
    return {
        **medians,
        "ratio": medians["beside"] / medians["alone"],
        "ratios": [beside / alone for alone, beside in zip(rates["alone"], rates["beside"], strict=True)],
        "requests": requests,
        "unchanged": sum(each["unchanged"] for each in seen) / max(1, requests),
        "median_ms": statistics.median(each["median_ms"] for each in seen),
    }


@contextmanager
def _places(database: PostgreSQL, *, apart: bool) -> Iterator[set[int]]:
    """The processors for site and browsers; inside the context this process, its workers and the server use others."""
    everywhere = os.sched_getaffinity(0)
    if not apart:
        yield everywhere
        return
    first, *rest = sorted(everywhere)
    if not rest:
        raise RuntimeError("there is one processor alone: site and worker cannot be kept apart")
    with database.connect() as connection:
        (directory,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    server = int((Path(directory) / "postmaster.pid").read_text().splitlines()[0])
    try:
        for process in (0, server):
            os.sched_setaffinity(process, {first})
        yield set(rest)
    finally:
        for process in (0, server):
            os.sched_setaffinity(process, everywhere)


def _on(processors: set[int]) -> list[str]:
    """The command that starts Python on these processors."""
    bind = f"import os, sys; os.sched_setaffinity(0, {processors}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [sys.executable, "-c", bind]


def _work(environment: dict[str, str], threads: int, messages: int) -> float:
    # The worker receives only from the long queue; the site knows all queues.
    one_endpoint = {**environment, "SQLQUEUE_BENCH_ENDPOINTS": "0"}
    return float(run_child("benchmarks.worker_process", one_endpoint, str(threads), str(messages))["rate"])


@contextmanager
def _site(environment: dict[str, str], rest: set[int]) -> Iterator[str]:
    """The admin under gunicorn with one process and four threads, as on a small site."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        *_on(rest),
        *("-m", "gunicorn"),
        "--bind",
        address,
        "--threads",
        "4",
        "--log-level",
        "error",
        "benchmarks.dashboard_wsgi",
    ]
    # A login for each request would cost the server more than most pages.
    connection = {**json.loads(environment["SQLQUEUE_BENCH_DATABASE"]), "CONN_MAX_AGE": 60}
    environment = {**environment, "SQLQUEUE_BENCH_DATABASE": json.dumps(connection)}
    with subprocess.Popen(command, env=environment, cwd=ROOT) as server:
        try:
            poll_until(lambda: _answers(f"http://{address}/admin/login/"), _PATIENCE_SECONDS)
            yield f"http://{address}"
        finally:
            end(server, _PATIENCE_SECONDS)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


@contextmanager
def _browsers(address: str, session: str, count: int, rest: set[int], seen: list[dict[str, Any]]) -> Iterator[None]:
    command = [*_on(rest), "-m", "benchmarks.dashboard_browsers", address, session, str(count)]
    with subprocess.Popen(
        command, cwd=ROOT, env=dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as browsers:
        yield
        output, _ = browsers.communicate()
    seen.append(json.loads(output))
