"""Where a worker process kills itself: CHAOS_STEP names the step, CHAOS_TIME at which time that it comes there."""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import Final

from sqlqueue_app.receiving.due_messages import DueMessages
from sqlqueue_app.receiving.error_queue import ErrorQueue
from sqlqueue_app.receiving.processing import MessageProcessor
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction
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
_step = os.environ.get("CHAOS_STEP", "")
_time = int(os.environ.get("CHAOS_TIME", "1"))
_times = itertools.count(1)


def reached(step: str) -> None:
    """The process is at the step; it may be its last. The handlers say so, and the traps below."""
    if step == _step and next(_times) == _time:
        die()


if _step:
    trap(MessageProcessor, "process", partial(reached, "received"), before=True)
    trap(Dispatcher, "dispatch", partial(reached, "sends written"))
    trap(Dispatcher, "dispatch_each", partial(reached, "sends written"))
    trap(ErrorQueue, "move", partial(reached, "moved to the error queue"))
    trap(DelayedTable, "take_due", partial(reached, "due messages taken"), if_found=True)
    trap(DueMessages, "move_batch", partial(reached, "due messages moved"), if_found=True)
    trap(ReceiveTransaction, "commit", partial(reached, "before commit"), before=True)
    trap(ReceiveTransaction, "commit", partial(reached, "after commit"))
