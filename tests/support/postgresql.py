"""A PostgreSQL server for one test session: throw-away, on a socket and a loopback port, gone when the session is.

With SQLQUEUE_TEST_POSTGRES_URL set, that server is used instead; its role must be allowed to make databases and roles.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import psycopg

from tests.support import postgresql_programs
from tests.support.directories import directory_for_databases
from tests.support.ports import free_port

URL_VARIABLE = "SQLQUEUE_TEST_POSTGRES_URL"

# Settings of the throw-away server. Nothing here must survive a power cut, so nothing waits for the disk; commits are
# synchronous all the same, so that what was committed survives a killed server, as tests expect.
OPTIONS = [
    "fsync=off",
    "full_page_writes=off",
    "max_connections=200",
    "max_prepared_transactions=100",
    "shared_buffers=64MB",
    "max_wal_size=256MB",
    "checkpoint_timeout=1h",
    "autovacuum_naptime=1h",
    "log_min_messages=warning",
]


class PostgreSQLServer(Protocol):
    """What the fixtures need of a server, whoever runs it."""

    @property
    def description(self) -> str: ...

    def settings(self, database: str) -> dict[str, Any]:
        """HOST, PORT, USER, PASSWORD and NAME for Django."""
        ...

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection in autocommit mode, past Django; the caller closes it."""
        ...

    def close(self) -> None: ...


def _connect(settings: dict[str, Any]) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(
        host=settings["HOST"],
        port=settings["PORT"],
        user=settings["USER"],
        password=settings["PASSWORD"] or None,
        dbname=settings["NAME"],
        application_name="sqlqueue-tests",
        autocommit=True,
    )


class GivenServer:
    """The server that SQLQUEUE_TEST_POSTGRES_URL names."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"postgres", "postgresql"} or not parts.hostname:
            raise RuntimeError(f"{URL_VARIABLE} must look like postgresql://user:password@host:port/database")
        self._parts = parts
        with self.connect() as connection:
            self._version = connection.info.parameter_status("server_version") or "?"

    @property
    def description(self) -> str:
        return f"{self._version} (given by {URL_VARIABLE})"

    def settings(self, database: str) -> dict[str, Any]:
        return {
            "NAME": database,
            "HOST": unquote(self._parts.hostname or ""),
            "PORT": str(self._parts.port or 5432),
            "USER": unquote(self._parts.username or "postgres"),
            "PASSWORD": unquote(self._parts.password or ""),
        }

    def connect(self, database: str = "") -> psycopg.Connection[tuple[Any, ...]]:
        return _connect(self.settings(database or self._parts.path.strip("/") or "postgres"))

    def close(self) -> None:
        """Nothing: the server is somebody else's."""


class ThrowAwayServer:
    """A cluster in temporary directories, kept by a process of its own that ends it with this session.

    `settings()` names the socket (no password, fastest); `port` and `password` serve clients that need TCP.
    """

    def __init__(self, programs: postgresql_programs.Programs, options: Sequence[str] | None = None) -> None:
        """`options` are `name=value` settings of the server, instead of OPTIONS; its data are on the disk then, for benchmarks."""
        self._programs = programs
        # short, for the path of a socket may have 107 bytes
        self.directory = Path(tempfile.mkdtemp(prefix="sqlq-pg-"))
        # apart: programs may be copied into the other, and those in memory are often not allowed to run
        self.data = directory_for_databases("sqlq-pg-data-") if options is None else Path(tempfile.mkdtemp(prefix="sqlq-pg-data-"))
        self.password = secrets.token_urlsafe(12)
        (self.directory / "password").write_text(self.password)
        self.port = free_port()
        user = self._hand_over() if os.geteuid() == 0 else None
        order = {
            "bin": str(self._programs.directory),
            "directory": str(self.directory),
            "data": str(self.data),
            "port": self.port,
            "user": user,
            "options": list(OPTIONS if options is None else options),
        }
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("cluster_keeper.py")), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self._order("initialise")
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def description(self) -> str:
        return f"{self._programs.version} ({self._programs.origin})"

    def settings(self, database: str) -> dict[str, Any]:
        return {
            "NAME": database,
            "HOST": str(self.directory),
            "PORT": str(self.port),
            "USER": "postgres",
            "PASSWORD": "",
        }

    def url(self, database: str) -> str:
        """The address over TCP, for programs that know no sockets."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        return _connect(self.settings(database))

    def start(self) -> None:
        """Starts the server again after stop(); returns when it takes connections."""
        self._order("start")

    def stop(self) -> None:
        """Cuts all sessions and stops the server, as a crash would; what was committed stays."""
        self._order("stop")

    def close(self) -> None:
        """Ends the keeper, and with it server and directories."""
        with self._keeper as keeper:
            if keeper.stdin:
                keeper.stdin.close()
            keeper.wait(timeout=60)

    def _order(self, word: str) -> None:
        assert self._keeper.stdin
        assert self._keeper.stdout
        self._keeper.stdin.write(word + "\n")
        self._keeper.stdin.flush()
        answer = self._keeper.stdout.readline().strip()
        if answer != "done":
            raise RuntimeError(f"could not {word} the PostgreSQL server for tests: {answer or 'its keeper died'}")

    def _hand_over(self) -> str:
        """Gives the directories to an ordinary user, for PostgreSQL refuses to run as root; returns the user's name."""
        user = _ordinary_user()
        for path in (self.directory, self.directory / "password", self.data):
            os.chown(path, user.pw_uid, user.pw_gid)
        if not _can_run(self._programs.directory / "postgres", user):
            self._programs = _copy_to(self.directory / "programs", self._programs)
        return user.pw_name


def _ordinary_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody", "daemon"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL refuses to run as root, and there is no user 'postgres', 'nobody' or 'daemon' to run it as")


def _can_run(program: Path, user: pwd.struct_passwd) -> bool:
    try:
        answer = subprocess.run(
            [str(program), "--version"],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def _copy_to(target: Path, programs: postgresql_programs.Programs) -> postgresql_programs.Programs:
    """Copies the wheel's server to where the other user may read it: the project may lie under a closed home."""
    installation = programs.directory.parent
    package = installation.parent
    shutil.copytree(installation, target / package.name / installation.name)
    libraries = package.with_name(package.name + ".libs")
    if libraries.is_dir():
        # the programs look for them beside the package
        shutil.copytree(libraries, target / libraries.name)
    return postgresql_programs.Programs(target / package.name / installation.name / "bin", programs.version, programs.origin)


def describe() -> str:
    """The version that this session's tests will use, without starting anything; for the report header."""
    url = os.environ.get(URL_VARIABLE)
    if url:
        return GivenServer(url).description
    programs = postgresql_programs.find()
    return f"{programs.version} ({programs.origin})" if programs else "none found, apt-get will be asked"


def get_server() -> GivenServer | ThrowAwayServer:
    """The given server, else a new throw-away one. Raises RuntimeError where neither can be had."""
    url = os.environ.get(URL_VARIABLE)
    return GivenServer(url) if url else ThrowAwayServer(postgresql_programs.find_or_install())
