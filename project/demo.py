"""`python -m project.demo`: run the whole shop in one terminal, as `make demo` does.

Sets up the database and an administrator, then runs the site, a worker and customers until Ctrl-C.
With `--check` it waits until an order has been processed completely and another has failed, checks the pages, and ends.
`--model` and `--mode` choose how the worker receives; they are passed to the settings as CONCURRENCY_MODEL and TRANSACTION_MODE.

Exit codes: 0 stopped normally, or --check succeeded; 1 a program ended by itself, or --check found a problem.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import django
from django.core.management import call_command
from django.db import connections

from project.processes import HOST, SITE_IS_UP, Ended, Line, Programs, Signalled, free_port, name_of_exit
from sqlqueue_app import pause
from sqlqueue_app.conf import ConcurrencyModel, get_settings
from sqlqueue_app.conf.settings import TransactionMode

MANAGE: Final = str(Path(__file__).resolve().parent.parent / "manage.py")
ADMIN: Final = "admin"

# Lines that the programs print once they are working.
SIGNS: Final = {"web": SITE_IS_UP, "worker": "[event=worker_started]"}
# An endpoint that nothing else depends on, so that the overview shows a paused one.
PAUSED: Final = "Reports"
CHECK_SECONDS: Final = 120.0
SETTLE_SECONDS: Final = 15.0


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m project.demo", description="Run the shop: site, worker, customers.")
    parser.add_argument("--port", type=int, help="port of the site (default: the first free one from 8000 on)")
    parser.add_argument("--per-minute", type=float, default=20.0, metavar="N", help="orders a minute (default: 20)")
    parser.add_argument("--check", action="store_true", help="check that orders are processed and pages work, then end")
    parser.add_argument("--model", choices=get_args(ConcurrencyModel), help="the worker's concurrency model (default: adaptive)")
    parser.add_argument("--mode", choices=get_args(TransactionMode), help="its transaction mode (default: transaction_scope)")
    chosen = parser.parse_args(arguments)

    for name, value in (("CONCURRENCY_MODEL", chosen.model), ("TRANSACTION_MODE", chosen.mode)):
        if value is not None:
            os.environ[name] = value
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    print_line("setting up the database ...")
    call_command("migrate", verbosity=0, interactive=False)
    # Django's settings must be configured before this import
    from project.administrator import ensure_administrator  # noqa: PLC0415

    # the settings read the environment when they are imported
    from project.settings import VAR_DIR  # noqa: PLC0415

    print_line("starting the site and the worker ...")
    password = ensure_administrator(ADMIN, VAR_DIR / "admin-password")
    connections.close_all()
    port = chosen.port or free_port()
    programs = Programs()
    with events_of_signals(programs):
        try:
            code = run(programs, port, 600.0 if chosen.check else chosen.per_minute, password, check=chosen.check)
        finally:
            killed = programs.stop()
            for line in programs.rest():
                show(line)
    for name in killed:
        print_line(f"{name} did not stop on SIGTERM and was killed")
    print_line("stopped")
    return 1 if killed else code


def run(programs: Programs, port: int, per_minute: float, password: str | None, *, check: bool) -> int:
    """Start all programs and forward their output until the end; return the exit code."""
    programs.start("web", sys.executable, MANAGE, "runserver", "--noreload", f"{HOST}:{port}")
    programs.start("worker", sys.executable, MANAGE, "run_sqlqueue_worker")
    waiting = dict(SIGNS)
    progress = Progress()
    deadline = time.monotonic() + CHECK_SECONDS if check else None
    last_check: float | None = None
    while True:
        event = programs.next_event(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if event is None:
            print_line(f"not within {CHECK_SECONDS:g} seconds: {progress.missing()}")
            return 1
        if isinstance(event, Signalled):
            print_line("stopping ...")
            return 0
        if isinstance(event, Ended):
            print_line(f"{event.program} {name_of_exit(event.code)}")
            return 1
        show(event)
        if waiting and SIGNS.get(event.program, "\n") in event.text:
            waiting.pop(event.program, None)
            if not waiting:
                pause(PAUSED, by="the demo")
                connections.close_all()
                print_line(box(port, password))
                programs.start("customers", sys.executable, MANAGE, "place_orders", "--per-minute", f"{per_minute:g}")
        progress.saw(event)
        if check and not progress.missing():
            # A handler's line appears just before its transaction commits, so a missing row may exist by the next line.
            last_check = last_check or time.monotonic() + SETTLE_SECONDS
            if not (problems := check_everything(port, password)) or time.monotonic() >= last_check:
                return report(problems)


class Progress:
    """Tracks which signs of a working shop have been seen."""

    _WANTED: Final = {
        "an order that was shipped": " is shipped",
        "an order whose customer was thanked": " is thanked",
        "a message in the error queue": "[event=moved_to_error_queue",
    }

    def __init__(self) -> None:
        self._left = dict(self._WANTED)

    def saw(self, line: Line) -> None:
        """Process a line of output."""
        if line.program == "worker":
            self._left = {what: sign for what, sign in self._left.items() if sign not in line.text}

    def missing(self) -> str:
        """A description of the signs not seen yet; empty when all have been seen."""
        return " and ".join(self._left)


def check_everything(port: int, password: str | None) -> list[str]:
    """Compare database and pages with the expected state; return a description of each difference."""
    from project.inspection import problems_found  # noqa: PLC0415 - needs Django's apps to be ready

    problems = problems_found(f"http://{HOST}:{port}", ADMIN, password)
    connections.close_all()
    return problems


def report(problems: list[str]) -> int:
    """Print the result of the check and return the exit code."""
    for problem in problems:
        print_line(f"check: {problem}")
    if not problems:
        print_line("check: orders are shipped, events delivered, a request answered, and one message is in the error queue")
    return 1 if problems else 0


def box(port: int, password: str | None) -> str:
    """The addresses to visit, framed so that they stand out in the output of three programs."""
    site = f"http://{HOST}:{port}"
    secret = f"password {password}" if password else "with the password that you set"
    sales = get_settings().endpoint("Sales")
    rows = [
        f"The shop        {site}/",
        f"Its overview    {site}/admin/sqlqueue_app/dashboard/",
        f"Paused          endpoint {PAUSED}: its alert on the overview leads to the button that resumes it",
        f"Its worker      model {sales.concurrency_model}, mode {sales.transaction_mode}",
        f"Sign in as      {ADMIN}, {secret}",
        "Stop            Ctrl-C",
    ]
    width = max(map(len, rows))
    edge = f"+{'-' * (width + 4)}+"
    return "\n".join(["", edge, *(f"|  {row:<{width}}  |" for row in rows), edge, ""])


@contextlib.contextmanager
def events_of_signals(programs: Programs) -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and a closed terminal into events; the first one starts the shutdown, later ones do not disturb it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda got, _frame: programs.record_signal(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_noise(line: Line) -> bool:
    """Whether a line only logs a page view; the site prints one every two seconds for an open home page."""
    return line.program == "web" and any(f'" {status} ' in line.text for status in (200, 302, 304))


def show(line: Line) -> None:
    """Print a line with the name of its program, unless it is noise."""
    if not is_noise(line):
        print_line(f"{line.program:<9} | {line.text}")


def print_line(text: str) -> None:
    """Print and flush. A closed terminal must not leave programs running."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
