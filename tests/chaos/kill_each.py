"""Run a worker for each named step that dies there: `python -m tests.chaos.kill_each SIDE_BY_SIDE`; prints how each ended.

The workers are forked from one process with Python and Django loaded, which saves each a second of processor time.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import django

SECONDS_TO_DIE = 150


def main(side_by_side: int) -> None:
    django.setup()
    # Import once what every worker imports at its start.
    from django.conf import settings

    from tests.chaos import app, failpoints, ledger

    assert app.MODULE
    ended: dict[str, int] = {}
    steps = [*failpoints.STEPS, *(failpoints.STEPS_OF_TWO_PHASE if ledger.ALIAS in settings.DATABASES else ())]
    for first in range(0, len(steps), side_by_side):
        # do not always die at the first time
        running = {step: fork(step, 1 + first % 3) for step in steps[first : first + side_by_side]}
        ended.update({step: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for step, pid in running.items()})
    sys.stdout.write(json.dumps(ended) + "\n")


def fork(step: str, time: int) -> int:
    """Fork a worker that kills itself at the step, or is killed by the alarm if it does not reach it."""
    from tests.chaos import failpoints

    sys.stdout.flush()
    if pid := os.fork():
        return pid
    try:
        signal.alarm(SECONDS_TO_DIE)
        failpoints.arm(step, time)
        from django.core.management import call_command

        call_command("run_sqlqueue_worker", endpoint=["Sales", "Billing"])
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
