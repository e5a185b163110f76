"""A host that vanishes: `sudo python -m benchmarks.lost_host [--seconds 10] [--patience 90]`, on Linux, as root.

A worker runs in its own network namespace, behind a router that forwards its packets to a real PostgreSQL. Then the router drops
all packets silently, as when a machine loses power or a cable is unplugged: neither side sees a closed connection. A stalled proxy
could not show this, because both kernels would still acknowledge every packet.

Measured with and without the settings of docs/howto/connections.md: the seconds until the row of the lost worker can be received
again, until a worker notices the loss of its server, and until it works again once the server is back.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from sqlqueue_app.dialects.postgresql import options_for
from tests.support import postgresql, postgresql_programs

ROOT = Path(__file__).resolve().parents[1]
ROUTER, AWAY = "sqlqueue-router", "sqlqueue-away"
SERVER = "10.231.0.1"
NAME = "Bench"


def sh(command: str) -> None:
    subprocess.run(["sh", "-ec", command], check=True)


@contextmanager
def network() -> Iterator[None]:
    """Two namespaces: one routes, and the other reaches the server through it."""
    try:
        sh(f"""
            ip netns add {ROUTER}; ip netns add {AWAY}
            ip link add sq0 type veth peer name sq1 netns {ROUTER}
            ip -n {ROUTER} link add sq2 type veth peer name sq3 netns {AWAY}
            ip addr add {SERVER}/24 dev sq0; ip link set sq0 up
            ip -n {ROUTER} addr add 10.231.0.2/24 dev sq1; ip -n {ROUTER} link set sq1 up
            ip -n {ROUTER} addr add 10.231.1.1/24 dev sq2; ip -n {ROUTER} link set sq2 up
            ip -n {AWAY} addr add 10.231.1.2/24 dev sq3; ip -n {AWAY} link set sq3 up; ip -n {AWAY} link set lo up
            ip route add 10.231.1.0/24 via 10.231.0.2
            ip -n {AWAY} route add default via 10.231.1.1
        """)
        forward(True)
        yield
    finally:
        sh(f"ip netns del {AWAY} || true; ip netns del {ROUTER} || true")


def forward(passes: bool) -> None:
    """Set whether the router forwards packets; it drops them silently otherwise."""
    sh(f"ip netns exec {ROUTER} sh -c 'echo {int(passes)} > /proc/sys/net/ipv4/ip_forward'")


@contextmanager
def server() -> Iterator[postgresql.ThrowAwayServer]:
    found = postgresql.ThrowAwayServer(postgresql_programs.find_or_install(), ["listen_addresses=*", "max_connections=100"])
    try:
        with (found.data / "pg_hba.conf").open("a", encoding="utf-8") as rules:
            rules.write("host all all 10.231.0.0/16 trust\n")
        with found.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
        yield found
    finally:
        found.close()


class Worker:
    """A worker in the namespace and its output, line by line."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "django", "run_sqlqueue_worker", "--processes", "0", "--log-format", "json"]
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", AWAY, *command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)

    def until(self, *signs: str, patience: float) -> str | None:
        """The first line with one of the signs; None if there is none in time."""
        end = time.monotonic() + patience
        while (left := end - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left)
            except queue.Empty:
                break
            if any(sign in line for sign in signs):
                return line
        return None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def environment_of(found: postgresql.ThrowAwayServer, options: dict[str, Any], *, local: bool = False) -> dict[str, str]:
    database = {
        "ENGINE": "django.db.backends.postgresql",
        **found.settings("postgres"),
        **({} if local else {"HOST": SERVER}),
        "OPTIONS": options,
    }
    endpoint = {"name": NAME, "options": {"HANDLERS": ["benchmarks.lost_host_handlers"], "MAX_CONCURRENCY": 1, "CALLBACKS": False}}
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
        "SQLQUEUE_BENCH_DATABASE": json.dumps(database),
        "SQLQUEUE_BENCH_ENDPOINT": json.dumps(endpoint),
    }


def seconds_until(holds: Callable[[], bool], patience: float) -> float | None:
    """The seconds until the condition was true; None if it was not in time."""
    began = time.monotonic()
    while time.monotonic() - began < patience:
        if holds():
            return time.monotonic() - began
        time.sleep(0.05)
    return None


def put(connection: psycopg.Connection[Any], kind: str) -> None:
    headers = json.dumps({"NServiceBus.EnclosedMessageTypes": kind, "NServiceBus.MessageId": str(uuid.uuid4())})
    connection.execute('INSERT INTO "Bench" (id, headers, body) VALUES (%s, %s, %s)', [uuid.uuid4(), headers, b"{}"])


def lost_worker(found: postgresql.ThrowAwayServer, options: dict[str, Any], patience: float) -> float | None:
    """The host of a worker is lost while it holds a row: when can others receive the row?"""
    with psycopg.connect(**connecting(found), autocommit=True) as connection:
        connection.execute('TRUNCATE "Bench"')
        put(connection, "Bench.Hold")
        worker = Worker(environment_of(found, options))
        try:
            assert worker.until("holding", patience=60), "the worker has not taken the message"
            forward(False)

            def is_free() -> bool:
                return connection.execute('SELECT 1 FROM "Bench" FOR UPDATE SKIP LOCKED').fetchone() is not None

            return seconds_until(is_free, patience)
        finally:
            worker.end()
            forward(True)
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_addr IS NOT NULL")


def lost_server(found: postgresql.ThrowAwayServer, options: dict[str, Any], patience: float) -> tuple[float | None, float | None]:
    """The host of the server is lost while a worker waits for messages: when does it notice, and when is it back at work?"""
    with psycopg.connect(**connecting(found), autocommit=True) as connection:
        connection.execute('TRUNCATE "Bench"')
        put(connection, "Bench.Quick")
        worker = Worker(environment_of(found, options))
        try:
            assert worker.until("handled", patience=60), "the worker has not taken the message"
            began = time.monotonic()
            forward(False)
            noticed = worker.until("receive_failed", "critical_error", "connection_lost", patience=patience)
            seconds = time.monotonic() - began if noticed else None
            put(connection, "Bench.Quick")
            began = time.monotonic()
            forward(True)
            back = worker.until("handled", patience=120)
            return seconds, time.monotonic() - began if back else None
        finally:
            worker.end()
            forward(True)


def connecting(found: postgresql.ThrowAwayServer) -> dict[str, Any]:
    known = found.settings("postgres")
    return {"host": known["HOST"], "port": known["PORT"], "user": known["USER"], "dbname": known["NAME"]}


def describe_wait(seconds: float | None, patience: float) -> str:
    return f"not within {patience:g} s" if seconds is None else f"{seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=10, help="time limit that the connection settings are computed for (default %(default)s)"
    )
    parser.add_argument("--patience", type=float, default=90.0, help="maximum seconds to wait for each event (default %(default)s)")
    given = parser.parse_args()
    with network(), server() as found:
        install = [sys.executable, "-m", "django"]
        for command in (["migrate", "-v0"], ["sqlqueue_install"]):
            subprocess.run([*install, *command], cwd=ROOT, env=environment_of(found, {}, local=True), check=True)
        for name, options in (("with the settings", options_for(given.seconds)), ("without", {})):
            row = lost_worker(found, options, given.patience)
            noticed, back = lost_server(found, options, given.patience)
            print(f"{name}: the row of a lost worker is available after {describe_wait(row, given.patience)};", end=" ")
            print(f"a lost server is noticed after {describe_wait(noticed, given.patience)};", end=" ")
            print(f"work resumes {describe_wait(back, 120)} after it is back", flush=True)


if __name__ == "__main__":
    main()
