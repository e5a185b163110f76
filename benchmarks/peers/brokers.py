"""RabbitMQ and Redis from system packages, removed after the run and listening only on the loopback interface."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.ports import HOST, free_port

_SECONDS_TO_START = 90.0
# The command in PATH switches the user; this one runs as the caller.
_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_PACKAGES = {"rabbitmq": "rabbitmq-server", "redis": "redis-server"}


class BrokerMissing(Exception):
    """The broker is not available on this machine; the text gives the reason."""


class Broker:
    """A running broker; `url` is for celery."""

    def __init__(self, kind: str) -> None:
        """Start it, installing it by apt-get if missing. Raises BrokerMissing if it is not available."""
        self.directory = Path(tempfile.mkdtemp(prefix=f"sqlq-{kind}-"))
        self.port = free_port()
        self._after: list[str] = []
        self._environment = dict(os.environ)
        try:
            command = self._rabbitmq() if kind == "rabbitmq" else self._redis()
            self.url = f"amqp://guest:guest@{HOST}:{self.port}//" if kind == "rabbitmq" else f"redis://{HOST}:{self.port}/0"
            self.version = _version(_PACKAGES[kind])
            with (self.directory / "log").open("wb") as log:
                self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, cwd=self.directory)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self._wait()

    def _rabbitmq(self) -> list[str]:
        program = _find("rabbitmq", lambda: str(_RABBITMQ) if _RABBITMQ.exists() else None)
        epmd = free_port()
        self._environment |= {
            "HOME": str(self.directory),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory),
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq"),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": HOST,
        }
        # it registers the nodes and stays after their end
        self._after = ["epmd", "-port", str(epmd), "-kill"]
        return [program]

    def _redis(self) -> list[str]:
        program = _find("redis", lambda: shutil.which("redis-server"))
        return [
            program, "--port", str(self.port), "--bind", HOST, "--dir", str(self.directory),
            "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
        ]  # fmt: skip

    def _wait(self) -> None:
        end = time.monotonic() + _SECONDS_TO_START
        while True:
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    log = (self.directory / "log").read_text("utf-8", errors="replace")[-1000:]
                    self.close()
                    raise BrokerMissing(f"it did not start: {log}") from None
                threading.Event().wait(0.1)
            else:
                return

    def close(self) -> None:
        """Stop it and remove its files."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._after:
            subprocess.run(self._after, env=self._environment, check=False, capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)


def _find(kind: str, search: Callable[[], str | None]) -> str:
    found = search()
    if found is None:
        _install(_PACKAGES[kind])
        found = search()
    if found is None:
        raise BrokerMissing(f"{_PACKAGES[kind]} is not installed, and apt-get (as root) did not bring it")
    return found


def _install(package: str) -> None:
    """Install the system package without starting its service, which would be a second broker."""
    apt = shutil.which("apt-get")
    if apt and os.geteuid() == 0:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for arguments in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", package]):
            subprocess.run([apt, *arguments], env=environment, check=False, capture_output=True)


def _version(package: str) -> str:
    answer = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], check=False, capture_output=True, text=True)
    return f"{package} {answer.stdout.strip() or '(version unknown)'}"
