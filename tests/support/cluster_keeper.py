"""Keeps one PostgreSQL server alive exactly as long as the process that started this script.

Run as a program: `python cluster_keeper.py '{"bin": …, "directory": …, "data": …, "port": …, "user": …, "options": […]}'`.
It executes lines on standard input (`start`, `stop`) and answers each with `done` or `failed: reason`. When standard input ends,
which the kernel ensures even if the test session is killed, it stops the server and removes the directories.
It uses only the standard library, because it runs independently of what the session has loaded.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS_TO_START = 60
SECONDS_TO_STOP = 60
# Longer than both timeouts of pg_ctl; for a pg_ctl that hangs, and for initdb.
SECONDS_FOR_A_PROGRAM = 120


class Keeper:
    """One server: its data in one directory, socket and logs in another. Call every method from the main thread only."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.programs = Path(order["bin"])
        self.directory = Path(order["directory"])
        self.data = Path(order["data"])
        self.port: int = order["port"]
        self.user: str | None = order["user"]
        self.options: list[str] = order["options"]

    def _run(self, program: str, *arguments: str) -> None:
        """Run a program of the server as its user. Raises RuntimeError with its output if it fails."""
        identity: dict[str, Any] = {"user": self.user, "group": self._group(), "extra_groups": []} if self.user else {}
        log = self.directory / f"{program}.log"
        # to a file, because the server that pg_ctl starts would keep a pipe open
        try:
            with log.open("wb") as output:
                code = subprocess.run(
                    [str(self.programs / program), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.directory,
                    env={"PATH": os.defpath, "LC_ALL": "C"},
                    check=False,
                    timeout=SECONDS_FOR_A_PROGRAM,
                    **identity,
                ).returncode
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{program} has not ended within {SECONDS_FOR_A_PROGRAM} s") from None
        if code != 0:
            server_log = self.directory / "server.log"
            log_text = log.read_text(errors="replace") + (server_log.read_text(errors="replace") if server_log.exists() else "")
            raise RuntimeError(f"{program} ended with {code}: {log_text.strip()[-2000:]}")

    def _group(self) -> int:
        return pwd.getpwnam(str(self.user)).pw_gid

    def initialise(self) -> None:
        """Create the cluster: superuser `postgres`, no password for the socket's owner, password over TCP."""
        self._run(
            "initdb", f"--pgdata={self.data}", "--username=postgres", f"--pwfile={self.directory / 'password'}",
            "--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip

    def start(self) -> None:
        """Start the server; returns when it accepts connections."""
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": str(self.directory)}
        options = [f"-c {name}={value}" for name, value in settings.items()] + [f"-c {option}" for option in self.options]
        self._run(
            "pg_ctl", "start", f"--pgdata={self.data}", f"--log={self.directory / 'server.log'}", "--wait",
            f"--timeout={SECONDS_TO_START}", f"--options={' '.join(options)}",
        )  # fmt: skip

    def stop(self) -> None:
        """Stop the server at once, cutting open sessions. Does nothing if it is not running."""
        if (self.data / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", f"--pgdata={self.data}", "--mode=immediate", "--wait", f"--timeout={SECONDS_TO_STOP}")

    def follow_supervisor(self, line: str) -> str:
        actions = {"initialise": self.initialise, "start": self.start, "stop": self.stop}
        try:
            actions[line.strip()]()
        except (RuntimeError, OSError, KeyError) as error:
            return f"failed: {error!s}".replace("\n", " | ")
        return "done"

    def end(self) -> None:
        try:
            self.stop()
        except (RuntimeError, OSError):
            pass  # there is no process left to report to, and the directories are removed anyway
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)


def main() -> None:
    # Ctrl-C in the terminal is for the session, which ends us after its last test by closing our standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = Keeper(json.loads(sys.argv[1]))
    try:
        for line in sys.stdin:
            sys.stdout.write(keeper.follow_supervisor(line) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        pass  # the session died while we were answering
    finally:
        keeper.end()


if __name__ == "__main__":
    main()
