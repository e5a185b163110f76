"""The settings of the demo follow the environment variables."""

from __future__ import annotations

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from runpy import run_path

import pytest

from project.environment import database_from_url, pipeline_cron, secret_in
from tests.demo.running import environment, manage
from tests.support.databases import ROOT
from tests.support.spark import has_spark


def test_sqlite_url_allows_several_writers() -> None:
    assert database_from_url("sqlite:////srv/shop/demo.sqlite3") == {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "/srv/shop/demo.sqlite3",
        "USER": "",
        "PASSWORD": "",
        "HOST": "",
        "PORT": "",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    }


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_postgresql_url(scheme: str) -> None:
    assert database_from_url(f"{scheme}://shop:p%40ss@db.example:5433/orders?sslmode=require") == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "orders",
        "USER": "shop",
        "PASSWORD": "p@ss",
        "HOST": "db.example",
        "PORT": 5433,
        "OPTIONS": {"sslmode": "require"},
    }


def test_postgresql_url_with_a_socket() -> None:
    config = database_from_url("postgres://shop@:5432//var/run/postgresql/orders")

    assert (config["HOST"], config["PORT"], config["NAME"]) == ("/var/run/postgresql", 5432, "orders")


def test_sql_server_url_selects_the_driver_of_pip() -> None:
    url = "mssql://sa:p%40ss@db.example:14330/orders?TrustServerCertificate=yes&Encrypt=no&query_timeout=30"

    assert database_from_url(url) == {
        "ENGINE": "mssql",
        "NAME": "orders",
        "USER": "sa",
        "PASSWORD": "p@ss",
        "HOST": "db.example",
        "PORT": "14330",
        "OPTIONS": {"python_driver": "mssql_python", "query_timeout": 30, "extra_params": "TrustServerCertificate=yes;Encrypt=no"},
    }


def test_sql_server_url_has_a_default_port() -> None:
    assert database_from_url("mssql://sa:secret@db.example/orders")["PORT"] == "1433"


def test_pipeline_runs_by_default_only_with_spark() -> None:
    assert pipeline_cron(None) == ("*/10 * * * *" if has_spark() else None)
    assert pipeline_cron("") is None
    assert pipeline_cron("*/5 * * * *") == "*/5 * * * *"


def test_empty_crontab_line_disables_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`PIPELINE_CRON= make demo` runs without the pipeline."""
    monkeypatch.setenv("PIPELINE_CRON", "")
    monkeypatch.setenv("VAR_DIR", str(tmp_path))
    assert run_path(str(ROOT / "project" / "settings.py"))["SQLQUEUE"]["PIPELINE"]["CRON"] is None


def test_secret_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "var" / "secret"

    first = secret_in(file)

    assert len(first) >= 50
    assert secret_in(file) == first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_concurrent_processes_get_the_same_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(secret_in, [tmp_path / "secret"] * 40))

    assert len(secrets) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(
    ("name", "value", "expression", "expected"),
    [
        ("DEBUG", "off", "settings.DEBUG", "False"),
        ("SECRET_KEY", "given from outside", "settings.SECRET_KEY", "given from outside"),
        ("ALLOWED_HOSTS", "a.example,b.example", "settings.ALLOWED_HOSTS", "['a.example', 'b.example']"),
        ("DATABASE_URL", "postgres://u:p@h/n", "settings.DATABASES['default']['ENGINE']", "django.db.backends.postgresql"),
        ("DATABASE_URL", "mssql://u:p@h/n", "settings.DATABASES['default']['ENGINE']", "mssql"),
        ("CONCURRENCY_MODEL", "fixed", "settings.SQLQUEUE['ENDPOINTS']['Sales']['CONCURRENCY_MODEL']", "fixed"),
        ("METRICS_TOKEN", "s3cret", "settings.SQLQUEUE['METRICS']['TOKEN']", "s3cret"),
        ("TRANSACTION_MODE", "none", "settings.SQLQUEUE['ENDPOINTS']['Billing']['TRANSACTION_MODE']", "none"),
        ("TRANSACTION_MODE", "none", "settings.SQLQUEUE['ENDPOINTS']['Billing']['IMMEDIATE_RETRIES']", "0"),
        ("TRANSACTION_MODE", "receive_only", "'IMMEDIATE_RETRIES' in settings.SQLQUEUE['ENDPOINTS']['Sales']", "False"),
    ],
)
def test_environment_variable_changes_the_setting(tmp_path: Path, name: str, value: str, expression: str, expected: str) -> None:
    assert value_in_settings(expression, {**environment(tmp_path), name: value}) == expected


def test_check_reports_an_unknown_mode(tmp_path: Path) -> None:
    printed = manage(environment(tmp_path, TRANSACTION_MODE="sometimes"), "check", code=1)

    assert "'sometimes', expected 'transaction_scope'" in printed


def test_default_database_is_sqlite_in_var(tmp_path: Path) -> None:
    file = value_in_settings("settings.DATABASES['default']['NAME']", environment(tmp_path))

    assert file == str(tmp_path / "demo.sqlite3")


def value_in_settings(expression: str, environ: dict[str, str]) -> str:
    """The value of an expression on the settings in a new process; loads no driver."""
    command = [sys.executable, "-c", f"from project import settings; print({expression})"]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
