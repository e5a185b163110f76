"""The SparkSession that sqlqueue works with: started with settings that suit it, ended with nothing left behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.java import java_home
from sqlqueue_app.spark.scratch import Scratch
from sqlqueue_app.spark.shipping import pack, package_root
from sqlqueue_app.spark.signals import JAVA_OPTION, kept_from_children
from sqlqueue_app.spark.source import SqlQueueDataSource

_SECONDS_TO_END = 60
# Options of the driver's Java are added to ours; every other setting of the caller takes the place of ours.
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Java's own choice takes all memory that it may have. This one takes what large bodies need, and for others a third of it less:
# `benchmarks/spark_pipeline.py`. Java starts with one collector alone, so a caller's own takes its place.
_COLLECTOR = "-XX:+UseSerialGC -XX:NewSize=192m -XX:MaxNewSize=192m"
# For the small Java that puts the command of the other one together.
_LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c: %m%n%ex
# An error of a task comes to the caller as an exception: it need not be told three times.
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.files.name = org.apache.spark.sql.execution.datasources
logger.files.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
# as the root's: where they differ Spark says so on every start
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
# Python workers that end with the session
logger.python.name = org.apache.spark.api.python.PythonRunner
logger.python.level = off
"""

_scratch: Scratch | None = None


def spark_session(master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """The SparkSession of this process on that master, with the data source `sqlqueue` known; started if there is none yet.

    `conf` are settings of Spark, which win over ours; `spark.driver.extraJavaOptions` are added to ours. A session that runs
    already is returned with those of `conf` that can be changed. Raises ConfigurationError where no Java is found, where a session
    runs on another master or with other settings that stand since its start, and where Spark does not start. One thread at a time.
    End it by `stop_spark()`; at the end of the process it ends by itself.
    """
    wanted = dict(conf or {})
    active = SparkContext._active_spark_context
    if active is not None:
        return _adapted(SparkSession.builder.getOrCreate(), active, master, wanted)
    return _started(master, wanted)


@contextmanager
def spark_running(master: str = "local[*]", conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A context with the session of `spark_session()`; ended with it if it was started for it."""
    is_ours = SparkContext._active_spark_context is None
    session = spark_session(master, conf)
    try:
        yield session
    finally:
        if is_ours:
            stop_spark()


def stop_spark() -> None:
    """End the session of this process, its Java and all of its files; does nothing where there is none."""
    global _scratch  # noqa: PLW0603 -- one Java per process, as pyspark has it
    gateway: Any = SparkContext._gateway
    active = SparkContext._active_spark_context
    with contextlib.suppress(Exception):
        # Java may have been killed: what is left is ended below all the same
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
        elif active is not None:
            active.stop()
    if gateway is not None:
        _end_java(gateway)
    if _scratch is not None:
        _scratch.remove()
        _scratch = None


def _end_java(gateway: Any) -> None:
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        if process.stdin is not None:
            # Java ends when this is closed
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _started(master: str, wanted: dict[str, str]) -> SparkSession:
    global _scratch  # noqa: PLW0603
    home = java_home()
    if SparkContext._gateway is not None:
        # a Java whose session was stopped by others: its settings are not ours
        stop_spark()
    _scratch = scratch = Scratch()
    pid = os.getpid()
    atexit.register(lambda: stop_spark() if os.getpid() == pid and _scratch is scratch else None)
    settings = _settings(master, scratch.folder, wanted)
    try:
        with _environment(master, home, scratch.folder, wanted), kept_from_children():
            builder: Any = SparkSession.builder
            session: SparkSession = builder.master(master).appName("sqlqueue").config(map=settings).getOrCreate()
            session.dataSource.register(SqlQueueDataSource)
    except Exception as error:
        stop_spark()
        raise ConfigurationError(f"Spark did not start on {master!r}: {_first_line(error)}; what Java said stands above") from error
    return session


def _first_line(error: Exception) -> str:
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    return (text or type(error).__name__).strip().splitlines()[0]


def _settings(master: str, scratch: Path, wanted: Mapping[str, str]) -> dict[str, str]:
    """All settings of a new session."""
    # the last one: no files of its own in the folder for temporary files
    java_options = [f"-Djava.io.tmpdir={scratch}", JAVA_OPTION, "-XX:-UsePerfData"]
    if "GC" not in wanted.get(_JAVA_OPTIONS, ""):
        java_options.append(_COLLECTOR)
    if "SPARK_CONF_DIR" not in os.environ:
        logging = scratch / "log4j2.properties"
        logging.write_text(_LOGGING, encoding="utf-8")
        java_options.append(f"-Dlog4j2.configurationFile=file:{logging}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Where in Python each column was made, which Java is told call by call: a batch is described by hundreds of them.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        # The plan as text is made for every query, also where no page shows it.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.maxPlanStringLength": "1000",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
        # A batch has one day or a few: a file of each stays open, so that the rows, with their bodies, need not be sorted by day.
        "spark.sql.maxConcurrentOutputFileWriters": "20",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
    }
    if _is_this_machine(master):
        settings |= {
            "spark.sql.shuffle.partitions": str(max(2, min(8, os.cpu_count() or 2))),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executorEnv.PYTHONPATH": _python_path(),
        }
    else:
        settings["spark.submit.pyFiles"] = ",".join(filter(None, [wanted.get("spark.submit.pyFiles"), str(pack(scratch))]))
        wanted = {key: value for key, value in wanted.items() if key != "spark.submit.pyFiles"}
    settings |= wanted
    settings[_JAVA_OPTIONS] = " ".join(filter(None, [*java_options, wanted.get(_JAVA_OPTIONS)]))
    return settings


def _is_this_machine(master: str) -> bool:
    return master.startswith("local")


def _python_path() -> str:
    """Where Python finds this package, also in a project that runs from its folder and is not installed."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(filter(None, [str(package_root()), *given])))


def _python_of_workers(master: str, wanted: Mapping[str, str]) -> str | None:
    """The Python that runs our code on executors, and reads the catalog of queues on this machine.

    None for Spark's own choice, the python3 on PATH of each machine. pyspark asks the environment alone, not its setting.
    """
    given = os.environ.get("PYSPARK_PYTHON") or wanted.get("spark.pyspark.python")
    return given or (sys.executable if _is_this_machine(master) else None)


@contextmanager
def _environment(master: str, home: Path, scratch: Path, wanted: Mapping[str, str]) -> Iterator[None]:
    """The environment in which Java is started; pyspark knows no other way to hand it on."""
    launcher = os.environ.get("SPARK_LAUNCHER_OPTS", _LAUNCHER_OPTIONS)
    changes = {"JAVA_HOME": str(home), "SPARK_LAUNCHER_OPTS": launcher}
    if "spark.local.dir" not in wanted:
        changes["SPARK_LOCAL_DIRS"] = str(scratch)
    if _is_this_machine(master):
        changes["SPARK_LOCAL_IP"] = "127.0.0.1"
    if (python := _python_of_workers(master, wanted)) is not None:
        changes["PYSPARK_PYTHON"] = python
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _adapted(session: SparkSession, active: SparkContext, master: str, wanted: Mapping[str, str]) -> SparkSession:
    if active.master != master:
        raise ConfigurationError(
            f"Spark runs in this process already, on {active.master!r}, and cannot also run on {master!r}: end that session first"
        )
    for key, value in wanted.items():
        if key == _JAVA_OPTIONS or session.conf.get(key, None) == value:
            continue
        if not session.conf.isModifiable(key):
            raise ConfigurationError(
                f"Spark runs in this process already, with {key}={session.conf.get(key, None)!r} and not {value!r}, which cannot "
                "be changed while it runs: end that session first"
            )
        session.conf.set(key, value)
    return session
