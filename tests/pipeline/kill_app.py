"""A run of the pipeline that kills its process at a named step: `python -m tests.pipeline.kill_app LAKE STEP SIZE`.

Without a step (`-`) it runs to its end. Its Java dies with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict

import django


def main(lake: str, step: str, batch_size: str, *flags: str) -> None:
    django.setup()
    from sqlqueue_app.conf import get_settings
    from sqlqueue_app.pipeline.options import options_of
    from sqlqueue_app.pipeline.run import run_pipeline
    from sqlqueue_app.receiving.stopping import StopSignal
    from tests.support.spark import CONF, MASTER

    def die(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    settings = get_settings()
    options = options_of(
        settings, lake=lake, master=MASTER, spark=CONF, batch_size=int(batch_size), compact="compact" in flags,
        continuous="continuous" in flags, every_seconds=0.1,
    )  # fmt: skip
    done = run_pipeline(settings, options, StopSignal(), step=die)
    sys.stdout.write(json.dumps(asdict(done)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
