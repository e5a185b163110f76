"""Run an operation in small batches and kill the process in the third, after its writes and before its commit.

Run as `python -m tests.failures.bulk_app OPERATION BATCH`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import uuid
from typing import Any

import django


def main() -> None:
    django.setup()
    from sqlqueue_app.conf import get_settings
    from sqlqueue_app.failures.operations import OperationRunner
    from sqlqueue_app.failures.retrying import RetryBatch

    run = RetryBatch.run
    batches: list[int] = []

    def trapped(self: Any, ids: Any) -> Any:
        outcome = run(self, ids)
        batches.append(outcome.done)
        if len(batches) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    RetryBatch.run = trapped  # type: ignore[method-assign]
    runner = OperationRunner(get_settings(), batch=int(sys.argv[2]))
    runner.run(uuid.UUID(sys.argv[1]), wait=threading.Event().wait)


if __name__ == "__main__":
    main()
