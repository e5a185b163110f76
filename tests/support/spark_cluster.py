"""A standalone cluster of Spark on this machine: a master and two workers, each a process, as on machines of their own."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.ports import HOST, free_port
from tests.support.processes import end
from tests.support.waiting import poll_until

WORKERS: Final = 2
_PATIENCE_SECONDS: Final = 120.0


@contextmanager
def spark_cluster(directory: Path, *, java: Path) -> Iterator[str]:
    """The URL of a master with two workers that are ready, of one core each; all of them are ended with it.

    `java` is the home of the Java that runs Spark. What the workers write is in `directory`.
    """
    port, ui_port = free_port(), free_port()
    url = f"spark://{HOST}:{port}"
    master = ("master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(ui_port))
    with ExitStack() as processes:
        processes.enter_context(_running(java, directory / "master", *master))
        poll_until(lambda: _status(ui_port) is not None, _PATIENCE_SECONDS)
        for number in range(WORKERS):
            work = directory / f"worker-{number}"
            options = ("--host", HOST, "--webui-port", str(free_port()), "--cores", "1", "--memory", "1g", "--work-dir", str(work))
            processes.enter_context(_running(java, work, "worker.Worker", *options, url))
        poll_until(lambda: (_status(ui_port) or {}).get("aliveworkers") == WORKERS, _PATIENCE_SECONDS)
        yield url


@contextmanager
def _running(java: Path, directory: Path, main: str, *arguments: str) -> Iterator[None]:
    """A process of Spark; what it says is in a file of the directory."""
    import pyspark

    home = Path(pyspark.__file__).parent
    directory.mkdir(parents=True)
    command = [
        str(java / "bin" / "java"),
        "-Xmx256m",
        f"-Djava.io.tmpdir={directory}",
        "-cp",
        f"{home}/jars/*",
        f"org.apache.spark.deploy.{main}",
        *arguments,
    ]
    # Without it a worker looks for the folders of a build from source, to learn the version.
    scala = {"SPARK_SCALA_VERSION": ".".join(next(home.glob("jars/scala-library-*")).stem.rpartition("-")[2].split(".")[:2])}
    environment = {**os.environ, **scala, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST, "SPARK_LOCAL_DIRS": str(directory)}
    # The workers start their executors with it.
    environment["JAVA_HOME"] = str(java)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    with process:
        try:
            yield
        finally:
            end(process, _PATIENCE_SECONDS)


def _status(ui_port: int) -> dict[str, Any] | None:
    """What the master says of itself; None while it does not."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{ui_port}/json/") as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (urllib.error.URLError, ConnectionError, ValueError):
        # before all of its pages are there it answers with the first one
        return None
