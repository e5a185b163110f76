"""A worker for each named step, which it dies at: `python -m tests.chaos.kill_each SIDE_BY_SIDE`; prints how each has ended.

Forked from one process that has started Python and Django, where each would take a second of a processor to do so.
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
    # Whatever a worker imports at its start, once.
    from django.conf import settings

    from tests.chaos import app, failpoints, ledger

    assert app.MODULE
    ended: dict[str, int] = {}
    steps = [*failpoints.STEPS, *(failpoints.STEPS_OF_TWO_PHASE if ledger.ALIAS in settings.DATABASES else ())]
    for first in range(0, len(steps), side_by_side):
        # not always the first time that they come there
        running = {step: fork(step, 1 + first % 3) for step in steps[first : first + side_by_side]}
        ended.update({step: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for step, pid in running.items()})
    sys.stdout.write(json.dumps(ended) + "\n")


def fork(step: str, time: int) -> int:
    """The process of a worker that kills itself there, or is killed by the alarm when it has not come there."""
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
