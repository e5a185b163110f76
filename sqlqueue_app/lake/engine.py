"""The embedded engine that reads the lake: DuckDB, in the process that asks, with bounds on memory, threads and time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlqueue_app.lake.errors import LakeEngineMissing, LakeError

INSTALL: Final = "pip install 'django-sqlqueue[spark]'"
# Of one search. DuckDB needs about 125 MB for each thread that reads row groups; a search that needs more ends with an error.
MEMORY: Final = "512MB"
THREADS: Final = 4
# So many searches run at once in a process; others wait for their turn, which their time limit includes.
AT_ONCE: Final = 2
_turns = threading.BoundedSemaphore(AT_ONCE)


class OutOfTime(LakeError):
    """The time for a search was over."""


class FileProblem(LakeError):
    """The engine could not read what it was given: most likely a file that is broken, or gone."""


def _duckdb() -> Any:
    """The module DuckDB. Raises LakeEngineMissing where it is not installed."""
    try:
        import duckdb  # noqa: PLC0415 - an extra: only who searches a lake needs it
    except ImportError as error:
        raise LakeEngineMissing(f"Searching a lake needs DuckDB, which is not installed. Install it with: {INSTALL}") from error
    return duckdb


def is_installed() -> bool:
    """Whether a lake can be searched by this process."""
    try:
        _duckdb()
    except LakeEngineMissing:
        return False
    return True


class Engine:
    """A connection to an empty database in memory, for one search in one thread. Made by `engine`."""

    def __init__(self, connection: Any, duckdb: Any) -> None:
        self._connection = connection
        self._duckdb = duckdb

    def rows(self, sql: str, values: Sequence[object], *, seconds: float) -> list[tuple[Any, ...]]:
        """The rows of a statement. Raises OutOfTime after so many seconds, FileProblem where a file cannot be read, LakeError."""
        if seconds <= 0:
            raise OutOfTime("The time for the search was over.")
        timer = threading.Timer(seconds, self._connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            found: list[tuple[Any, ...]] = self._connection.execute(sql, list(values)).fetchall()
        except self._duckdb.InterruptException as error:
            raise OutOfTime("The time for the search was over.") from error
        except self._duckdb.OutOfMemoryException as error:
            raise LakeError(f"The search needs more memory than it may take ({MEMORY}): choose a shorter time.") from error
        except self._duckdb.Error as error:
            raise FileProblem(str(error).partition("\n")[0]) from error
        finally:
            timer.cancel()
            timer.join()
        return found


@contextmanager
def engine(root: str, *, wait: float) -> Iterator[Engine]:
    """An engine for files below this root, closed at the end. Raises LakeEngineMissing; OutOfTime if none is free in time.

    Of a lake on this machine it reads files below the root and nothing else, and it loads no extension.
    """
    duckdb = _duckdb()
    if not _turns.acquire(timeout=max(wait, 0)):
        raise OutOfTime("Other searches are running: try again in a moment.")
    try:
        connection = duckdb.connect(":memory:", config={"memory_limit": MEMORY, "threads": THREADS, "temp_directory": ""})
        try:
            _prepare(connection, duckdb, root)
            yield Engine(connection, duckdb)
        finally:
            connection.close()
    finally:
        _turns.release()


def _prepare(connection: Any, duckdb: Any, root: str) -> None:
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET parquet_metadata_cache = true")
    if Path(root).is_absolute():
        connection.execute("SET autoinstall_known_extensions = false")
        connection.execute(f"SET allowed_directories = [{_quoted(root)}]")
        connection.execute("SET enable_external_access = false")
        return
    # Credentials are those of the machine: environment, profile, or role.
    scheme = root.partition(":")[0]
    kinds = {"s3": "s3", "r2": "r2", "gs": "gcs", "az": "azure", "abfss": "azure"}
    try:
        connection.execute(f"CREATE SECRET (TYPE {kinds[scheme]}, PROVIDER credential_chain)")
    except duckdb.Error as error:
        raise LakeError(f"The store of {root!r} cannot be reached: {error}") from error


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
