"""What browsers cost a worker beside which their pages are made: its rate with them and without, in turns, on one machine."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
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
    database: PostgreSQL, environment: dict[str, str], *, browsers: int, messages: int, threads: int, rounds: int, nice: int = 0
) -> dict[str, Any]:
    """The rates of a worker, messages a second: alone and with so many browsers that ask each second, by turns.

    `nice` is the priority of the site and of the browsers, from 0 to 19.
    """
    cookie = subprocess.run(
        [sys.executable, "-c", _LOG_IN], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    session = json.loads(cookie.stdout)
    rates: dict[str, list[float]] = {"alone": [], "beside": []}
    seen: list[dict[str, Any]] = []
    with _site(environment, nice) as address:
        # The first turn reads the table from the disk.
        database.top_up(messages + 1_000)
        _work(environment, threads, messages)
        for _round in range(rounds):
            database.top_up(messages * 2 + 1_000)
            rates["alone"].append(_work(environment, threads, messages))
            with _browsers(address, session, browsers, nice, seen):
                rates["beside"].append(_work(environment, threads, messages))
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


def _work(environment: dict[str, str], threads: int, messages: int) -> float:
    # The worker receives from the long queue alone; the site knows all the others.
    one_endpoint = {**environment, "SQLQUEUE_BENCH_ENDPOINTS": "0"}
    return float(run_child("benchmarks.worker_process", one_endpoint, str(threads), str(messages))["rate"])


@contextmanager
def _site(environment: dict[str, str], nice: int) -> Iterator[str]:
    """The admin under gunicorn, one process with four threads, as a small site has it."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        *("nice", "-n", str(nice), sys.executable, "-m", "gunicorn"),
        "--bind",
        address,
        "--threads",
        "4",
        "--log-level",
        "error",
        "benchmarks.dashboard_wsgi",
    ]
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
def _browsers(address: str, session: str, count: int, nice: int, seen: list[dict[str, Any]]) -> Iterator[None]:
    command = ["nice", "-n", str(nice), sys.executable, "-m", "benchmarks.dashboard_browsers", address, session, str(count)]
    with subprocess.Popen(
        command, cwd=ROOT, env=dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as browsers:
        yield
        told, _ = browsers.communicate()
    seen.append(json.loads(told))
