"""A run of the pipeline that kills its process at a named step: `python -m tests.pipeline.kill_app LAKE STEP SIZE`.

Without a step (`-`) it runs to its end. Its Java dies with it. With the flag `terminate` it sends SIGTERM to all processes of
its session instead, as systemd does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import django


def main(lake: str, step: str, batch_size: str, *flags: str) -> None:
    django.setup()
    from sqlqueue_app.conf import get_settings
    from sqlqueue_app.pipeline.run import options_of, run_pipeline
    from sqlqueue_app.receiving.stopping import StopSignal
    from sqlqueue_app.worker.stop_signals import stop_on_signals
    from tests.support.spark import CONF, MASTER

    stop = StopSignal()
    terminated: list[int] = []

    def die(name: str) -> None:
        if name != step or terminated:
            return
        if "terminate" not in flags:
            os.kill(os.getpid(), signal.SIGKILL)
        terminated.extend(session_of(os.getpid()))
        for pid in terminated:
            os.kill(pid, signal.SIGTERM)
        stop.wait(60)

    settings = get_settings()
    options = options_of(
        settings, lake=lake, master=MASTER, spark=CONF, batch_size=int(batch_size), compact="compact" in flags,
        continuous="continuous" in flags, every_seconds=0.1,
    )  # fmt: skip
    with stop_on_signals(stop):
        done = run_pipeline(settings, options, stop, step=die)
    sys.stdout.write(json.dumps({**asdict(done), "terminated": len(terminated)}) + "\n")


def session_of(process: int) -> list[int]:
    """The processes in the session of this session leader."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # after the name, which may contain anything: state, parent, group, session
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == process:
                found.append(int(folder.name))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
