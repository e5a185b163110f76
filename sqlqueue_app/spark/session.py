"""Start and stop the SparkSession of this process with settings for sqlqueue, without leaving files or processes behind.

One session per process, controlled by one thread. SIGINT and SIGTERM sent to a process group reach only this process, not the Java
that it starts: Java would end while this process is still finishing its work. Java ends when its standard input closes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlqueue_app.messages.errors import ConfigurationError, SqlQueueError
from sqlqueue_app.spark.java import java_home, spark_home
from sqlqueue_app.spark.source import SqlQueueDataSource

_SECONDS_TO_END = 60
# The caller's options of the driver's Java are added to ours; any other setting replaces ours.
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Java's default collector uses all memory it may have; this one needs a third less (`benchmarks/spark_pipeline.py`). Java accepts
# only one collector, so a caller's choice replaces it.
_COLLECTOR = "-XX:+UseSerialGC -XX:NewSize=192m -XX:MaxNewSize=192m"
# Without the thorough compiler (C2), a session that starts for a small batch needs a third less processor time, and each message
# twice as much. C2 pays off from the first number of waiting messages on, a restart for it from the second.
_QUICK = "-XX:TieredStopAtLevel=1"
_WORTH_COMPILING: Final = 500_000
_WORTH_A_RESTART: Final = 1_500_000
# For the short-lived Java that builds the command line of the real one.
_LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c: %m%n%ex
# Task errors reach the caller as exceptions and need no further log lines.
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.files.name = org.apache.spark.sql.execution.datasources
logger.files.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
# same as the root: otherwise Spark logs the difference on every start
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
# Python workers ending with the session
logger.python.name = org.apache.spark.api.python.PythonRunner
logger.python.level = off
"""
_scratch: Scratch | None = None


def spark_session(master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the SparkSession of this process, with the data source `sqlqueue` registered; start it if necessary.

    `conf` overrides our Spark settings, except that `spark.driver.extraJavaOptions` are added to ours. On a running session,
    changeable settings of `conf` are applied. Raises ConfigurationError if there is no Java, if Spark does not start, or if a
    session is running with another master or other fixed settings. Not thread-safe. Ends with `stop_spark()` or with the process.
    """
    wanted = dict(conf or {})
    active = SparkContext._active_spark_context
    if active is not None:
        return _adapt(SparkSession.builder.getOrCreate(), active, master, wanted)
    return _start(master, wanted)


@contextmanager
def spark_running(master: str = "local[*]", conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A context with the session of `spark_session()`; stops it at the end if the context started it."""
    is_ours = SparkContext._active_spark_context is None
    session = spark_session(master, conf)
    try:
        yield session
    finally:
        if is_ours:
            stop_spark()


def stop_spark() -> None:
    """Stop the session of this process and its Java, and delete their files; does nothing without a session."""
    global _scratch  # noqa: PLW0603 -- one JVM per process, as in PySpark
    gateway: Any = SparkContext._gateway
    active = SparkContext._active_spark_context
    with contextlib.suppress(Exception):
        # Java may have been killed; the rest is cleaned up below
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


IDLE_SECONDS: Final = 900.0


class WarmSession:
    """The Spark session of a pipeline: starts when first used, and ends when it was not used for `idle_seconds`.

    A session that already runs in this process is used and left running. Used by one thread.
    """

    def __init__(
        self,
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
        *,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._master = master
        self._conf = dict(conf or {})
        self._is_quick = True
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._running = contextlib.ExitStack()
        self._session: SparkSession | None = None
        self._used_at: float | None = None

    def get(self) -> SparkSession:
        """The session; starts it if there is none or if its Java was killed. Raises like `spark_session`."""
        if self._session is not None and not _is_java_alive():
            self.stop()
        if self._session is None:
            with _same_sigint_handler():
                self._session = self._running.enter_context(spark_running(self._master, self._settings()))
        self._used_at = None
        return self._session

    def prepare(self, is_waiting: Callable[[int], bool]) -> None:
        """Choose how thoroughly Java compiles, before a batch; `is_waiting` returns whether at least that many messages wait.

        Only a very large backlog restarts a running session.
        """
        if self._session is None:
            self._is_quick = not is_waiting(_WORTH_COMPILING)
        elif self._is_quick and is_waiting(_WORTH_A_RESTART):
            self.stop()
            self._is_quick = False

    def _settings(self) -> dict[str, str]:
        if not self._is_quick:
            return self._conf
        # the caller's options come last, so that they win
        return {**self._conf, _JAVA_OPTIONS: f"{_QUICK} {self._conf.get(_JAVA_OPTIONS, '')}".rstrip()}

    def stop_if_idle(self) -> float | None:
        """Stop the session if it was not used for too long; call this between two uses.

        Returns the seconds until the next call is due, or None without a session.
        """
        if self._session is None:
            return None
        now = self._clock()
        if self._used_at is None:
            self._used_at = now
        left = self._used_at + self._idle_seconds - now
        if left > 0:
            return left
        self.stop()
        return None

    def stop(self) -> None:
        """Stop the session that this object has started; idempotent."""
        self._session = None
        self._running.close()


def _is_java_alive() -> bool:
    process = getattr(SparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


@contextmanager
def _same_sigint_handler() -> Iterator[None]:
    """Restore the SIGINT handler, which Spark replaces when it starts."""
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if in_main else None
    yield
    if before is not None:
        signal.signal(signal.SIGINT, before)


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


def _start(master: str, wanted: dict[str, str]) -> SparkSession:
    global _scratch  # noqa: PLW0603
    home = java_home()
    if SparkContext._gateway is not None:
        # a Java whose session was stopped elsewhere: its settings are not ours
        stop_spark()
    _scratch = scratch = Scratch()
    pid = os.getpid()
    atexit.register(lambda: stop_spark() if os.getpid() == pid and _scratch is scratch else None)
    settings = _settings(master, scratch.folder, wanted)
    try:
        with _environment(master, home, scratch.folder, wanted), signals_blocked():
            builder: Any = SparkSession.builder
            session: SparkSession = builder.master(master).appName("sqlqueue").config(map=settings).getOrCreate()
            session.dataSource.register(SqlQueueDataSource)
    except Exception as error:
        # before Java ends, because it has the text
        text = f"Spark did not start on {master!r}: {summarize(str(error))}; see the output of Java above"
        stop_spark()
        raise ConfigurationError(text) from error
    return session


def _settings(master: str, scratch: Path, wanted: Mapping[str, str]) -> dict[str, str]:
    # the last option keeps Java from writing files of its own to the temporary folder
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
        # Off: reports the Python line of each column to Java, hundreds of calls per batch.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        # The plan text is built for every query even without a user interface.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.maxPlanStringLength": "1000",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
        # A batch has few days: with a file open for each, rows need not be sorted by day.
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
    """A PYTHONPATH that contains this package even if it is not installed."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(filter(None, [str(package_root()), *given])))


@contextmanager
def _environment(master: str, home: Path, scratch: Path, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set the environment in which Java starts; pyspark has no parameter for it."""
    launcher = os.environ.get("SPARK_LAUNCHER_OPTS", _LAUNCHER_OPTIONS)
    changes = {"JAVA_HOME": str(home), "SPARK_LAUNCHER_OPTS": launcher}
    if "spark.local.dir" not in wanted:
        changes["SPARK_LOCAL_DIRS"] = str(scratch)
    if _is_this_machine(master):
        changes["SPARK_LOCAL_IP"] = "127.0.0.1"
        if "spark.pyspark.python" not in wanted and (spark := spark_home()) is not None:
            changes["SPARK_HOME"] = str(spark)
        changes["PYSPARK_PYTHON"] = sys.executable
    # pyspark does not read its own setting. Without either, a cluster uses the python3 on PATH of each machine.
    if python := os.environ.get("PYSPARK_PYTHON") or wanted.get("spark.pyspark.python"):
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


def _adapt(session: SparkSession, active: SparkContext, master: str, wanted: Mapping[str, str]) -> SparkSession:
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


_OURS = re.compile(r"sqlqueue_app\.messages\.errors\.(?P<kind>\w+): (?P<text>[^\n]+)")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(?P<name>[^']+)'")
_OF_CALL = "An error occurred while calling "
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:: .*)?)$", re.MULTILINE)
_MEANINGS = (
    ("No space left on device", "the disk is full: free space, and start again"),
    ("Disk quota exceeded", "the disk is full: free space, and start again"),
    ("Read-only file system", "the file system is read-only"),
    ("Permission denied", "the user of this process may not write there"),
    ("ClassNotFoundException: Class org.apache.hadoop.fs.s3a", "Spark needs the package hadoop-aws for s3a: (spark.jars.packages)"),
    ("No FileSystem for scheme", "Spark does not support this kind of store: add its package to spark.jars.packages"),
    ("OutOfMemoryError", "Java has too little memory: raise spark.driver.memory, or use smaller batches"),
)


class SparkFailed(SqlQueueError):
    """A Spark job failed; the cause is Spark's exception."""


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    """Convert Spark's errors to SparkFailed; `doing` completes "failed to ..."."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise SparkFailed(f"failed to {doing}: {summarize(str(error))}") from error


def summarize(text: str) -> str:
    """Reduce an error text of hundreds of lines to one: our own error, a known cause, or its first line."""
    ours = _OURS.search(text)
    if ours is not None:
        return ours["text"]
    missing = _MISSING.search(text)
    if missing is not None:
        return (
            f"the Python that Spark starts lacks the module {missing['name']}: install it on every machine of the cluster, or name "
            "another Python in the setting spark.pyspark.python"
        )
    for sign, meaning in _MEANINGS:
        if sign in text:
            return meaning
    _before, found, traceback = text.rpartition(_TRACEBACK)
    if found and (raised := _RAISED.findall(traceback)):
        return str(raised[0])
    # py4j names its own call first
    lines = [line.strip(" :") for line in text.splitlines() if line.strip() and not line.startswith(_OF_CALL)]
    return lines[0] if lines else "Java has ended; see its output above"


if sys.platform == "win32":  # no way to detect folders of dead processes there
    HAS_LOCKS = False
else:
    import fcntl

    HAS_LOCKS = True


class Scratch:
    """A temporary folder of this process, locked while in use.

    A killed Spark leaves gigabytes behind, so each start deletes the folders that no process has locked.
    """

    def __init__(self) -> None:
        root = _root()
        with _lock(root / "starting"):
            _remove_stale(root)
            self.folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
            self._lock_file = root / f"{self.folder.name}.lock"
            self._held: IO[str] | None = _lock(self._lock_file)

    def remove(self) -> None:
        """Delete the folder with its content; idempotent."""
        if self._held is None:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self._held.close()
        self._held = None
        if not self.folder.exists():
            # otherwise the next start retries
            self._lock_file.unlink(missing_ok=True)


def _root() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else "user"
    root = Path(tempfile.gettempdir()) / f"sqlqueue-spark-{user}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"Spark's folder for temporary files cannot be created: {error}; set TMPDIR to a writable folder"
        ) from None
    if hasattr(os, "getuid") and root.stat().st_uid != os.getuid():
        raise ConfigurationError(f"{root} belongs to another user: remove it, or set TMPDIR to another folder")
    return root


def _lock(path: Path, *, wait: bool = True) -> IO[str]:
    """Open and lock the file until it is closed or the process ends. Raises BlockingIOError if it is locked, without `wait`."""
    file = path.open("w", encoding="utf-8")
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            raise
    return file


def _remove_stale(root: Path) -> None:
    if not HAS_LOCKS:
        return
    for lock_file in root.glob("*.lock"):
        with contextlib.suppress(BlockingIOError), _lock(lock_file, wait=False):
            folder = lock_file.with_suffix("")
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                lock_file.unlink(missing_ok=True)


PARTS = ("messages", "policies", "dialects", "lake", "spark")
_KINDS = (".py", ".sql")


def package_root() -> Path:
    """The folder that contains the package."""
    return Path(__file__).resolve().parents[2]


def pack(folder: Path) -> Path:
    """Write an archive of the parts without Django for remote executors (`pyFiles`); return its path."""
    root = package_root()
    package = root / "sqlqueue_app"
    archive = folder / "sqlqueue_app.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(package / "__init__.py", "sqlqueue_app/__init__.py")
        for part in PARTS:
            for path in sorted((package / part).rglob("*")):
                if path.suffix in _KINDS:
                    packed.write(path, path.relative_to(root).as_posix())
    return archive


JAVA_OPTION: Final = "-Xrs"


@contextmanager
def signals_blocked() -> Iterator[None]:
    """A context in which child processes start with SIGINT and SIGTERM blocked. Does nothing on Windows.

    Children inherit the block whatever handlers they set; Java needs JAVA_OPTION for that. Within the context, signals
    to this process go to its other threads, or arrive at its end.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
