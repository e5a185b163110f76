"""What executors on other machines need of this package, as one archive: the parts without Django."""

from __future__ import annotations

import zipfile
from pathlib import Path

PARTS = ("messages", "policies", "databases", "lake", "spark")
_KINDS = (".py", ".sql")


def package_root() -> Path:
    """The folder that `import sqlqueue_app` finds the package in."""
    return Path(__file__).resolve().parents[2]


def pack(folder: Path) -> Path:
    """Write the archive into the folder and return its path; what other machines' Python puts on its path (`pyFiles`)."""
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
