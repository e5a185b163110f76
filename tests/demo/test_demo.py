"""`python -m project.demo` starts all programs and stops those it has started."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from project import processes
from project.processes import HOST, Ended, Line, Programs, name_of_exit
from tests.demo.running import SECONDS, environment, manage
from tests.support import waiting
from tests.support.databases import ROOT
from tests.support.ports import free_port

DEMO = [sys.executable, "-m", "project.demo"]


def on_own_port() -> list[str]:
    """Arguments for a demo with its own port: other demos may use the first free port at the same time."""
    return ["--port", str(free_port())]


@contextmanager
def demo(var: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running demo, which is always stopped at the end."""
    process = subprocess.Popen(
        [*DEMO, *on_own_port(), *arguments],
        cwd=ROOT,
        env=environment(var),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        assert process.stdout is not None
        process.stdout.close()
        process.wait(SECONDS)


def read_until(process: subprocess.Popen[str], sign: str) -> list[str]:
    return waiting.read_until(process, process.stdout, lambda line: sign in line, SECONDS, what=f"{sign!r} is printed")


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False, timeout=60)
    return [int(each) for each in listed.stdout.split()]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_demo_checks_itself(tmp_path: Path) -> None:
    answer = subprocess.run(
        [*DEMO, *on_own_port(), "--check"],
        cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip

    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.startswith("setting up the database ...\nstarting the site and the worker ...\n")
    assert re.search(r"Its overview    http://127\.0\.0\.1:\d+/admin/sqlqueue_app/dashboard/ ", answer.stdout)
    assert "check: orders are shipped" in answer.stdout


@pytest.mark.parametrize(
    ("model", "mode"), [("fixed", "sends_atomic_with_receive"), ("monitor", "receive_only"), ("adaptive", "none")]
)
def test_demo_runs_in_every_model_and_mode(tmp_path: Path, model: str, mode: str) -> None:
    """The test above covers the fourth mode and the defaults."""
    answer = subprocess.run(
        [*DEMO, *on_own_port(), "--check", "--model", model, "--mode", mode],
        cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip

    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"model {model}, mode {mode}" in answer.stdout
    assert "check: orders are shipped" in answer.stdout


@pytest.mark.parametrize(("option", "value"), [("--model", "fast"), ("--mode", "sometimes")])
def test_demo_refuses_unknown_models_and_modes(tmp_path: Path, option: str, value: str) -> None:
    answer = subprocess.run(
        [*DEMO, option, value], cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=SECONDS
    )

    assert answer.returncode == 2
    assert f"argument {option}: invalid choice: '{value}'" in answer.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_passes_model_and_mode_to_the_demo() -> None:
    def command(*arguments: str) -> str:
        shown = subprocess.run(
            ["make", "--dry-run", "--silent", "demo", *arguments],
            cwd=ROOT, env=environment(ROOT, PATH=os.environ["PATH"]), capture_output=True, text=True, check=True, timeout=SECONDS,
        )  # fmt: skip
        return " ".join(shown.stdout.splitlines()[-1].split()[1:])

    assert command() == "-m project.demo"
    assert command("MODEL=fixed", "MODE=receive_only") == "-m project.demo --model fixed --mode receive_only"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_announces_its_downloads(tmp_path: Path) -> None:
    steps = subprocess.run(
        ["make", "--dry-run", "demo", f"VENV={tmp_path / 'none'}"],
        cwd=ROOT, env=environment(ROOT, PATH=os.environ["PATH"]), capture_output=True, text=True, check=True, timeout=SECONDS,
    ).stdout  # fmt: skip

    assert "fetching what the demo and the tests need, once" in steps


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the children are looked for with ps --ppid, which Linux has")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_demo_and_its_programs(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path, "--per-minute", "600") as process:
        read_until(process, " is shipped")
        children = children_of(process.pid)
        process.send_signal(number)
        lines = read_until(process, "stopped\n")

        assert process.wait(SECONDS) == 0
    assert len(children) == 3
    assert all(map(is_gone, children))
    assert any(re.search(r"orders? placed", line) for line in lines)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the children are looked for with ps --ppid, which Linux has")
def test_dead_program_stops_the_demo(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        read_until(process, "Stop            Ctrl-C")
        read_until(process, " placed order ")
        children = children_of(process.pid)
        (worker,) = (pid for pid in children if b"run_sqlqueue_worker" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(worker, signal.SIGKILL)
        read_until(process, "worker ended by SIGKILL\n")
        read_until(process, "stopped\n")

        assert process.wait(SECONDS) == 1
    assert len(children) == 3
    assert all(map(is_gone, children))


def test_administrator_is_created_once_and_keeps_the_password(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    manage(environ, "migrate", "--verbosity", "0")
    script = (
        "from pathlib import Path; from project.administrator import ensure_administrator;"
        f"print(ensure_administrator('admin', Path({str(tmp_path / 'admin-password')!r})))"
    )

    first = manage(environ, "shell", "--no-imports", "-c", script).strip()
    again = manage(environ, "shell", "--no-imports", "-c", script).strip()
    change = "from django.contrib.auth.models import User; u = User.objects.get(); u.set_password('other'); u.save()"
    manage(environ, "shell", "--no-imports", "-c", change)
    changed = manage(environ, "shell", "--no-imports", "-c", script).strip()

    assert len(first) >= 50
    assert again == first
    assert changed == "None"


def test_programs_that_ignore_sigterm_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("project.processes.STOP_SECONDS", 0.5)
    programs = Programs()
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); signal.pause()"
    programs.start("stubborn", sys.executable, "-c", ignoring)

    assert programs.next_event(SECONDS) == Line("stubborn", "ready")
    assert programs.stop() == ["stubborn"]
    assert programs.next_event(SECONDS) == Ended("stubborn", -signal.SIGKILL)


def test_exit_of_a_program_is_reported_after_its_output() -> None:
    programs = Programs()
    programs.start("short", sys.executable, "-c", "import sys; print('one'); sys.stderr.write('two\\n'); sys.exit(3)")

    events = [programs.next_event(SECONDS) for _ in range(3)]

    assert events == [Line("short", "one"), Line("short", "two"), Ended("short", 3)]
    assert programs.stop() == []


def test_used_port_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, free_port())) as taken:
        ports = (taken.getsockname()[1], free_port())
        monkeypatch.setattr(processes, "PORTS", ports)

        assert processes.free_port() == ports[1]


def test_command_that_chooses_a_port_is_named_if_none_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, free_port())) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(processes, "PORTS", range(port, port + 1))

        with pytest.raises(SystemExit, match=r"python -m project\.demo --port"):
            processes.free_port()


def test_exit_codes_are_described_in_words() -> None:
    assert name_of_exit(3) == "ended with exit code 3"
    assert name_of_exit(-9) == "ended by SIGKILL"
