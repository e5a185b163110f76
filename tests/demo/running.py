"""Run the demo's commands as a user does: in separate processes, on the database of a URL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from django.db import connections

from tests.support.databases import ROOT, QueueDatabase

SECONDS = 120


def environment(var: Path, database_url: str = "", **more: str) -> dict[str, str]:
    """The environment of a demo with its files in `var` and without Spark; without a URL it runs on SQLite."""
    ours = {"DJANGO_SETTINGS_MODULE", "SQLQUEUE_TEST_CHILD", "SECRET_KEY", "DEBUG", "ALLOWED_HOSTS"}
    ours |= {"CONCURRENCY_MODEL", "METRICS_TOKEN", "TRANSACTION_MODE", "MODEL", "MODE", "MAKEFLAGS"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {**kept, "VAR_DIR": str(var), "DATABASE_URL": database_url, "PIPELINE_CRON": "", "PYTHONUNBUFFERED": "1", **more}


def manage(environ: dict[str, str], *arguments: str, code: int = 0) -> str:
    """Run manage.py and return its output; an exit code other than `code` fails with the output."""
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    answer = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert answer.returncode == code, f"{arguments} ended with {answer.returncode}:\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout + answer.stderr


def database_url(database: QueueDatabase) -> str:
    """The DATABASE_URL of a test's database."""
    values = connections.settings[database.alias]
    if database.vendor == "sqlite":
        return f"sqlite:///{values['NAME']}"
    scheme = {"postgresql": "postgres", "sqlserver": "mssql"}[database.vendor]
    user = ":".join(quote(values[part], safe="") for part in ("USER", "PASSWORD") if values.get(part))
    host = str(values["HOST"])
    # the folder of a socket precedes the name
    place, path = (f":{values['PORT']}", f"/{host}/{values['NAME']}") if host.startswith("/") else (f"{host}:{values['PORT']}", "")
    query = values["OPTIONS"].get("extra_params", "").replace(";", "&")
    return f"{scheme}://{user}@{place}/{path or values['NAME']}?{query}".replace("///", "//")
