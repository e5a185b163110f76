"""Values that the settings take from outside: the database address, and secrets generated once per checkout."""

from __future__ import annotations

import os
import secrets
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from environ import Env

# One writer at a time, the others wait: docs/internals/decisions.md#sqlite. The journal mode persists in the file.
_SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 30,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
}
# The options of mssql-django itself; the rest of the query goes into the driver's connection string.
_MSSQL_OPTIONS = {"driver", "python_driver", "connection_timeout", "query_timeout"}


def database_from_url(url: str) -> dict[str, Any]:
    """An entry of DATABASES from `sqlite:///file`, `postgres://user:password@host:port/name` or `mssql://…` of the same form.

    The query contains driver options, such as `?sslmode=require` or `?TrustServerCertificate=yes`. Special characters in user and
    password are percent-encoded (`%40` for `@`). Opens no connection.
    """
    config: dict[str, Any] = Env.db_url_config(url)
    options = config.pop("OPTIONS", {})
    if config["ENGINE"] == "django.db.backends.sqlite3":
        options = {**_SQLITE_OPTIONS, **options}
    elif config["ENGINE"] == "mssql":
        options = _mssql_options(options)
        config["PORT"] = str(config["PORT"] or 1433)
    if options:
        config["OPTIONS"] = options
    return config


def _mssql_options(query: dict[str, Any]) -> dict[str, Any]:
    # mssql-python includes its own ODBC driver; an empty `?python_driver=` selects pyodbc instead
    options: dict[str, Any] = {"python_driver": "mssql_python"}
    extra = []
    for name, value in query.items():
        if name in _MSSQL_OPTIONS:
            options[name] = value
        else:
            extra.append(f"{name}={value}")
    if extra:
        options["extra_params"] = ";".join(extra)
    return options


def receiving_options(model: str, mode: str) -> dict[str, Any]:
    """The endpoint settings for a concurrency model and a transaction mode; none for an empty name.

    Mode none has no retries, and sqlqueue rejects settings for them. sqlqueue checks the names.
    """
    options: dict[str, Any] = {}
    if model:
        options["CONCURRENCY_MODEL"] = model
    if mode:
        options["TRANSACTION_MODE"] = mode
    if mode == "none":
        options |= {"IMMEDIATE_RETRIES": 0, "DELAYED_RETRIES": 0}
    return options


def pipeline_cron(given: str | None) -> str | None:
    """The schedule of the pipeline: as given, never if empty; by default every ten minutes if Spark is installed."""
    if given is None:
        return "*/10 * * * *" if find_spec("pyspark") else None
    return given or None


def secret_in(file: Path) -> str:
    """The secret in a file that only its owner can read. Created if missing; processes that start together get the same one."""
    try:
        return file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent)
    made = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_urlsafe(48) + "\n")
        # a link fails if another process was faster, and never exposes a partial file
        os.link(made, file)
    except FileExistsError:
        pass
    finally:
        made.unlink()
    return file.read_text(encoding="ascii").strip()
