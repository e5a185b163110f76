"""`sqlqueue_install` creates tables, prints scripts and compares."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections

from tests.installation.shop import ENDPOINTS, NAMES, TABLES, install
from tests.support.databases import ROOT, QueueDatabase
from tests.support.tables import layout_without_findings
from tests.support.waiting import join_all

INSTALL = [sys.executable, "-m", "django", "sqlqueue_install"]


def tables_in(database: QueueDatabase) -> set[str]:
    return set(database.connection.introspection.table_names()) & NAMES


def test_missing_tables_are_created_once(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    first = install()
    assert tables_in(queue_database) == NAMES
    assert "created queue table" in first
    assert f"{len(TABLES)} created, 0 were there already" in first
    assert install() == f"0 created, {len(TABLES)} were there already\n"


def test_output_is_machine_readable(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    document = json.loads(install("--format", "json"))
    assert document["database"] == queue_database.alias
    assert [each["kind"] for each in document["tables"]] == [kind for kind, _ in TABLES]
    assert {each["created"] for each in document["tables"]} == {True}
    assert {each["created"] for each in json.loads(install("--format", "json"))["tables"]} == {False}


def test_nothing_to_do_is_reported(queue_database: QueueDatabase) -> None:
    assert "names no endpoint" in install()


def test_callback_queues_of_other_machines_are_installed(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS={"Web": {"CALLBACK_QUEUES": 1}})
    install("--instance", "a", "--instance", "b")
    names = set(queue_database.connection.introspection.table_names())
    assert {name for name in names if name.startswith("Web.")} == {"Web.a", "Web.b", "Web.Delayed"}


def test_script_creates_the_same_tables(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS, TABLE_LAYOUT=layout_without_findings(queue_database))
    script = install("--sql")
    assert json.loads(install("--sql", "--format", "json")) == {"dialect": queue_database.vendor, "sql": script}
    for _ in range(2):  # it can be run twice
        for batch in re.split(r"^GO$", script, flags=re.MULTILINE) if queue_database.vendor == "sqlserver" else [script]:
            run_script(queue_database, batch)
    assert tables_in(queue_database) == NAMES
    assert install("--check") == f"{len(TABLES)} tables are as they should be\n"


def run_script(database: QueueDatabase, script: str) -> None:
    with database.connection.cursor() as cursor:
        if database.vendor == "sqlite":
            cursor.connection.executescript(script)
        elif script.strip():
            cursor.execute(script)


def test_check_lists_missing_and_different_tables(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}})
    install()
    quote = queue_database.connection.ops.quote_name
    with queue_database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {quote('error')}")
        cursor.execute(f"DROP TABLE {quote('Sales.Delayed')}")
        cursor.execute(f"CREATE TABLE {quote('Sales.Delayed')} (id int)")
        index = "Index_Expires ON [Sales]" if queue_database.vendor == "sqlserver" else quote("Sales_Expires")
        cursor.execute(f"DROP INDEX {index}")

    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("sqlqueue_install", "--check", "--format", "json", stdout=out)

    assert ended.value.code == 1
    document = json.loads(out.getvalue())
    found = {each["problem"]: each for each in document["findings"] if each["problem"] != "non-Unicode Headers"}
    assert document["ok"] is False
    assert found.keys() == {"missing", "mismatch", "no index on Expires"}
    assert "CREATE TABLE" in found["missing"]["sql"]
    assert "due" in found["mismatch"]["text"]

    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("sqlqueue_install", "--check", stdout=out)
    assert "does not exist" in out.getvalue()
    assert "CREATE" in out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dialect", "sqlserver"], "--dialect requires --sql"),
        (["--grant", "shop"], "--grant requires --sql"),
        (["--sql", "--check"], "not allowed with argument"),
        (["--sql", "--dialect", "oracle"], "invalid choice: 'oracle'"),
        (["--sql", "--grant", "shop", "--dialect", "sqlite"], "SQLite has no roles"),
        (["--sql", "--grant", " ", "--dialect", "postgresql"], "expected the name of a role"),
        (["--instance", "a@b"], "expected the name of a machine, got 'a@b'"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--make-migration", "nope"], "no app with the label 'nope', expected one of admin"),
        (["--make-migration", "sqlqueue_app"], "is sqlqueue's own app"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(sqlite_database: QueueDatabase, arguments: list[str], message: str) -> None:
    sqlite_database.configure(ENDPOINTS=ENDPOINTS)
    ended = subprocess.run(
        [*INSTALL, *arguments], env=sqlite_database.child_environment(), capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_wrong_settings_are_one_line_and_exit_2(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={"Sales": {"MAX_CONCURENCY": 1}}, DATABSE="x")
    ended = subprocess.run(INSTALL, env=sqlite_database.child_environment(), capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "MAX_CONCURENCY" in ended.stderr
    assert "DATABSE" in ended.stderr


def test_missing_database_is_one_line_and_exit_1(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS)
    environment = json.loads(postgresql_database.child_environment()["SQLQUEUE_TEST_CHILD"])
    environment["DATABASES"]["postgresql"]["HOST"] = "/nonexistent"
    variables = postgresql_database.child_environment(SQLQUEUE_TEST_CHILD=json.dumps(environment))
    for arguments in ([], ["--check"]):
        ended = subprocess.run([*INSTALL, *arguments], env=variables, capture_output=True, text=True, timeout=120)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1), ended.stderr
        assert "/nonexistent" in ended.stderr


def test_twenty_installers_run_at_once(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    start = threading.Barrier(20)
    made: list[list[str]] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            start.wait(60)
            document = json.loads(install("--format", "json"))
            made.append([each["table"] for each in document["tables"] if each["created"]])
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, name=f"installer-{number}") for number in range(20)]
    for thread in threads:
        thread.start()
    join_all(threads, 120)

    assert errors == []
    # exactly one installer created each table
    every = [name for names in made for name in names]
    assert len(every) == len({*every}) == len(TABLES)
    assert tables_in(queue_database) == NAMES


def test_four_installer_processes_run_at_once(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    command = [*INSTALL, "--format", "json"]
    environment = queue_database.child_environment()
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    answers = [process.communicate(timeout=120) for process in running]
    assert [(process.returncode, err) for process, (_, err) in zip(running, answers, strict=True)] == [(0, "")] * 4
    created = [each for out, _ in answers for each in json.loads(out)["tables"] if each["created"]]
    assert len(created) == len(TABLES)


def test_a_missing_alias_is_a_command_error(settings: Any) -> None:
    settings.SQLQUEUE = {"DATABASE": "queues", "ENDPOINTS": ENDPOINTS}
    with pytest.raises(CommandError, match="queues") as refused:
        install()
    assert refused.value.returncode == 2


def test_the_help_shows_examples() -> None:
    ended = subprocess.run(
        [*INSTALL, "--help"],
        cwd=Path(ROOT),
        env={"DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "--sql --dialect sqlserver --grant shop" in ended.stdout
    assert "exit codes: 0 done" in ended.stdout
