"""Run by benchmarks.peers in an environment where procrastinate is installed; imports nothing of this project.

python peer_procrastinate.py CONNINFO COUNT BODY
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

# Without an import statement: the environment that checks the types has no procrastinate.
procrastinate: Any = import_module("procrastinate")
TIMES: list[float] = []


def main() -> None:
    conninfo, count, body = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=conninfo))

    def nothing(**_message: Any) -> None:
        TIMES.append(time.perf_counter())

    task = app.task(name="nothing")(nothing)

    connector = procrastinate.SyncPsycopgConnector(conninfo=conninfo)
    with app.replace_connector(connector), app.open():
        if not app.check_connection():
            app.schema_manager.apply_schema()
        connector.execute_query("TRUNCATE procrastinate_jobs CASCADE")
        for begin in range(0, count, 1000):
            task.batch_defer(*[body] * min(1000, count - begin))
        connector.execute_query("ANALYZE procrastinate_jobs")
    app.run_worker(wait=False, concurrency=8, install_signal_handlers=False)
    seconds = max(TIMES) - min(TIMES)
    print(json.dumps({"messages": len(TIMES), "rate": (len(TIMES) - 1) / seconds}))


if __name__ == "__main__":
    main()
