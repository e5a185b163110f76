"""One peer on the measured server: its database, its sender, its workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.databases import OURS as OUR_DATABASE, QUEUE, PostgreSQL
from benchmarks.messages import body
from benchmarks.peers.adapters import handling, serving
from benchmarks.peers.catalogue import ADAPTERS, OURS, Peer, Variant
from benchmarks.peers.notes import Notes
from benchmarks.peers.workers import Sender, Worker


class Play:
    """The measurements of one peer. Messages are numbered from 1; numbers are not reused."""

    def __init__(self, peer: Peer, python: Path, server: PostgreSQL, directory: Path, broker: str = "") -> None:
        """Install the peer and start its sender. Raises RuntimeError with the output on failure."""
        self.peer, self.server = peer, server
        self.python = Path(sys.executable) if peer.key == OURS else python
        self.database = OUR_DATABASE if peer.key == OURS else peer.key
        self._directory = directory / peer.key
        self._directory.mkdir()
        self._files = count(1)
        self._next = 1
        if peer.key == OURS:
            self._environment = self._ours()
        else:
            server.create(self.database)
            self._environment = self._theirs(broker)
        with self.connect() as connection:
            connection.execute("CREATE TABLE bench_done (number bigint NOT NULL)")
        if peer.key != OURS:
            self._install()
        self._sender = Sender(self.python, f"{ADAPTERS}.{peer.adapter}", self._environment, self._directory / "sender.log")

    def _ours(self) -> dict[str, str]:
        options = {"HANDLERS": [f"{ADAPTERS}.handlers_ours"], "WAKE_UP": True}
        environment = self.server.environment(QUEUE, **options)
        install = [sys.executable, "-m", "django", "sqlqueue_install", "--wake-up"]
        subprocess.run(install, env=environment, check=True, stdout=subprocess.DEVNULL)
        return environment | self._common()

    def _theirs(self, broker: str) -> dict[str, str]:
        plain = {name: value for name, value in self.server.environment().items() if not name.startswith(("DJANGO_", "SQLQUEUE_"))}
        django = {"ENGINE": "django.db.backends.postgresql", **self.server.settings(self.database)}
        own = {"BENCH_DJANGO_DATABASE": json.dumps(django), "OBAN_DSN": self.server.url(self.database), "BENCH_BROKER": broker}
        return plain | self._common() | own | dict(self.peer.environment)

    def _common(self) -> dict[str, str]:
        return {handling.DATABASE: self.server.url(self.database), serving.BODY: json.dumps(body())}

    def _install(self) -> None:
        answer = subprocess.run(
            [self.python, "-m", f"{ADAPTERS}.{self.peer.adapter}", "install"],
            env=self._environment, check=False, capture_output=True, text=True,
        )  # fmt: skip
        if answer.returncode != 0:
            raise RuntimeError(f"{self.peer.name} could not be installed into its database: {answer.stderr[-2000:]}")

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection to its database in autocommit mode; the caller closes it."""
        return self.server.connect(self.database)

    def notes(self) -> Notes:
        """A new file of notes for its workers."""
        return Notes(self._directory / f"notes-{next(self._files)}")

    def start(self, variant: Variant, notes: Notes, name: str = "w", *, together: bool = False) -> Worker:
        """Start a worker with this name; with `together` its processes begin at the same time."""
        environment: Mapping[str, str] = {
            **self._environment,
            **variant.environment,
            handling.NOTES: str(notes.path),
            handling.WORKER: name,
            handling.TOGETHER: str(variant.handling if together else 1),
        }
        commands = [[argument.replace("{worker}", name) for argument in command] for command in variant.commands]
        return Worker(self.python, commands, environment, self._directory / "worker.log")

    def send(self, count_messages: int, **more: Any) -> tuple[range, dict[str, float]]:
        """Send messages; returns their numbers and the answer. `more` is documented in `benchmarks.peers.adapters.serving`."""
        first = self._next
        answer = self._sender.send(first, count_messages, **more)
        self._next += int(answer["sent"])
        return range(first, self._next), answer

    def clear(self) -> None:
        """Remove all messages and results, and leave statistics and disk in a settled state."""
        if self.peer.broker:
            self._sender.clear()
        with self.connect() as connection:
            connection.execute("TRUNCATE " + ", ".join([*map(_quoted, self.peer.tables), "bench_done"]) + " CASCADE")

    def settle(self) -> None:
        """After many sends: update the statistics and write everything to disk."""
        with self.connect() as connection:
            for table in self.peer.tables:
                connection.execute(f"VACUUM ANALYZE {_quoted(table)}")
            connection.execute("CHECKPOINT")

    def close(self) -> None:
        """Stop its sender."""
        self._sender.close()


def _quoted(table: str) -> str:
    return ".".join(f'"{part}"' for part in table.split("."))
