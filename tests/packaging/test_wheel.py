"""The wheel works by itself: built, installed into a new environment and used by a new Django project."""

from __future__ import annotations

import sqlite3
import textwrap
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.packaging.conftest import run
from tests.support.databases import ROOT

NEEDED_SUFFIXES = {".py", ".sql", ".html", ".css", ".js", ".svg", ".typed"}

SETTINGS_OF_A_USER = """
INSTALLED_APPS += ["sqlqueue_app"]
DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 30}
SQLQUEUE = {"ENDPOINTS": {"Sales": {}}}
"""


def files_of_the_package() -> set[str]:
    package = ROOT / "sqlqueue_app"
    return {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix in NEEDED_SUFFIXES
    }


def test_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("sqlqueue_app/")}

    assert files_of_the_package() - shipped == set()


@pytest.mark.parametrize(
    "kind",
    [
        "py.typed",
        "dialects/sql/sqlserver/*.sql",
        "dialects/sql/postgresql/*.sql",
        "dialects/sql/sqlite/*.sql",
        "templates/**/*.html",
        "static/**/*.css",
    ],
)
def test_package_has_files_of_each_kind(kind: str) -> None:
    assert list((ROOT / "sqlqueue_app").glob(kind))


def test_wheel_contains_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"sqlqueue_app"}


def test_wheel_names_its_requirements_and_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        described = message_from_bytes(archive.read(metadata))

    assert described["Name"] == "django-sqlqueue"
    assert described["Requires-Python"] == ">=3.11"
    assert described.get_all("Provides-Extra") == ["metrics", "mssql", "postgres", "spark", "tasks", "tracing"]
    always = [text for text in described.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert always == ["apscheduler<4,>=3.11", "cronsim<3,>=2.8", "django>=5.2", "standardwebhooks<2,>=1.1"]


def test_new_project_can_install_and_migrate(python_of_a_user: Path, tmp_path: Path) -> None:
    run(python_of_a_user, "-m", "django", "startproject", "site_of_a_user", tmp_path, cwd=tmp_path)
    with (tmp_path / "site_of_a_user" / "settings.py").open("a", encoding="utf-8") as settings:
        settings.write(SETTINGS_OF_A_USER)

    run(python_of_a_user, "manage.py", "check", "--fail-level", "WARNING", cwd=tmp_path)
    run(python_of_a_user, "manage.py", "migrate", "--verbosity", "0", cwd=tmp_path)

    database = sqlite3.connect(tmp_path / "db.sqlite3")
    try:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    finally:
        database.close()
    assert {"Sales", "error"} <= tables


def test_metrics_without_the_extra_name_what_to_install(python_of_a_user: Path, tmp_path: Path) -> None:
    run(python_of_a_user, "-m", "django", "startproject", "site_of_a_user", tmp_path, cwd=tmp_path)
    with (tmp_path / "site_of_a_user" / "settings.py").open("a", encoding="utf-8") as settings:
        settings.write(f'{SETTINGS_OF_A_USER}ROOT_URLCONF = "sqlqueue_app.urls"\nSQLQUEUE["METRICS"] = {{"TOKEN": "x"}}\n')
    script = """
        from django.test import Client
        answer = Client().get("/metrics", headers={"Authorization": "Bearer x", "Host": "localhost"})
        print(answer.status_code, answer.content.decode())
    """

    printed = run(python_of_a_user, "manage.py", "shell", "-c", textwrap.dedent(script), cwd=tmp_path)

    assert printed.splitlines()[-1] == "500 prometheus-client is not installed: run pip install 'django-sqlqueue[metrics]'"


def test_package_can_be_imported_without_configured_django(python_of_a_user: Path, tmp_path: Path) -> None:
    printed = run(python_of_a_user, "-c", "import sqlqueue_app; print(sqlqueue_app.__file__)", cwd=tmp_path)

    assert Path(printed.strip()).is_relative_to(python_of_a_user.parents[1])
