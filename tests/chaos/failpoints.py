"""Where a worker process kills itself: CHAOS_STEP names the step, CHAOS_TIME how often the process must reach it."""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import Final

from sqlqueue_app.receiving.delayed import DueMessages
from sqlqueue_app.receiving.error_queue import ErrorQueue
from sqlqueue_app.receiving.processing import MessageProcessor
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.tables import two_phase
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.managed import TransactionLog
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction
from sqlqueue_app.tables.two_phase import Participant
from tests.support.failpoints import die, trap

STEPS: Final = (
    "received",
    "handler running",
    "handler done",
    "in a batch",
    "sends written",
    "moved to the error queue",
    "due messages taken",
    "due messages moved",
    "before commit",
    "after commit",
)
# Steps of a transaction that another database has joined by two-phase commit.
STEPS_OF_TWO_PHASE: Final = ("recorded", "prepared", "decided", "branch committed")


class _Armed:
    step = ""
    time = 1
    times = itertools.count(1)


def reached(step: str) -> None:
    """Report that the process has reached the step, which may kill it. Called by handlers and the traps below."""
    if step == _Armed.step and next(_Armed.times) == _Armed.time:
        die()


def arm(step: str, time: int) -> None:
    """Have the process die when it reaches the step for the given time. Call it once, before anything is received."""
    _Armed.step, _Armed.time = step, time
    trap(MessageProcessor, "process", partial(reached, "received"), before=True)
    trap(Dispatcher, "dispatch", partial(reached, "sends written"))
    trap(Dispatcher, "dispatch_each", partial(reached, "sends written"))
    trap(ErrorQueue, "move", partial(reached, "moved to the error queue"))
    trap(DelayedTable, "take_due", partial(reached, "due messages taken"), if_found=True)
    trap(DueMessages, "move_batch", partial(reached, "due messages moved"), if_found=True)
    trap(ReceiveTransaction, "commit", partial(reached, "before commit"), before=True)
    trap(ReceiveTransaction, "commit", partial(reached, "after commit"))
    trap(TransactionLog, "record", partial(reached, "recorded"))
    trap(Participant, "prepare", partial(reached, "prepared"))
    trap(two_phase, "commit_prepared", partial(reached, "decided"), before=True)
    trap(two_phase, "commit_prepared", partial(reached, "branch committed"))


if "CHAOS_STEP" in os.environ:
    arm(os.environ["CHAOS_STEP"], int(os.environ["CHAOS_TIME"]))
