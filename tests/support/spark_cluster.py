"""A standalone Spark cluster on this machine: one process each for the master and two workers."""

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
    """Start a master and two workers with one core each; yields the URL of the master and ends all of them.

    `java` is the home of the Java that runs Spark. The workers write to `directory`.
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
    """A Spark process that logs to a file in the directory."""
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
    # Otherwise, a worker searches for the folders of a source build to determine the version.
    scala = {"SPARK_SCALA_VERSION": ".".join(next(home.glob("jars/scala-library-*")).stem.rpartition("-")[2].split(".")[:2])}
    environment = {**os.environ, **scala, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST, "SPARK_LOCAL_DIRS": str(directory)}
    # The workers start their executors with this Java.
    environment["JAVA_HOME"] = str(java)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    with process:
        try:
            yield
        finally:
            end(process, _PATIENCE_SECONDS)


def _status(ui_port: int) -> dict[str, Any] | None:
    """The status that the master reports; None while it is not ready."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{ui_port}/json/") as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (urllib.error.URLError, ConnectionError, ValueError):
        # until all pages exist, it responds with the first one
        return None
