"""A command in a broken environment prints one line with the remedy, and does not retry what waiting cannot fix."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from sqlqueue_app.models import managed_models
from tests.commands.running import Ran, refused
from tests.support import sqlserver
from tests.support.databases import QueueDatabase
from tests.support.filling import install
from tests.support.postgresql import ThrowAwayServer
from tests.support.spark import has_spark
from tests.support.tables import execute

WORKER = ("run_sqlqueue_worker",)
SEND = ("sqlqueue_send", "Sales", "--type", "T", "--body", "{}")
CANNOT_CONNECT = (
    "; correct NAME, USER and PASSWORD in DATABASES, or create the database; a SQLite file and its folder must be writable"
)

RIGHTS = "; give the user the rights that sqlqueue_install --sql --grant ROLE prints"
DENIED = "permission denied for table sqlqueue_app_"


def run(database: QueueDatabase, command: tuple[str, ...], **changed: Any) -> Ran:
    """Run a command in a process with changed DATABASES values for the test database."""
    environment = database.child_environment()
    seen = json.loads(environment["SQLQUEUE_TEST_CHILD"])
    seen["DATABASES"][database.alias].update(changed)
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", *command],
        env={**environment, "SQLQUEUE_TEST_CHILD": json.dumps(seen)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Ran(answer.returncode, answer.stdout, answer.stderr)


@pytest.mark.parametrize("command", [WORKER, SEND])
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"NAME": "no_such_database"}, 'database "no_such_database" does not exist'),
        ({"USER": "nobody_known", "HOST": "127.0.0.1"}, 'password authentication failed for user "nobody_known"'),
        ({"PASSWORD": "wrong", "HOST": "127.0.0.1"}, 'password authentication failed for user "postgres"'),
    ],
)
def test_a_wrong_database_user_or_password_on_postgresql(
    postgresql_database: QueueDatabase, command: tuple[str, ...], changed: dict[str, str], reason: str
) -> None:
    install(postgresql_database)

    line = refused(run(postgresql_database, command, **{"PASSWORD": "wrong", **changed}), 1)

    assert line.startswith("CommandError: failed to ")
    assert line.endswith(reason + CANNOT_CONNECT)


@pytest.mark.skipif(not sqlserver.is_named(), reason=f"{sqlserver.URL_VARIABLE} is not set")
@pytest.mark.parametrize("command", [WORKER, SEND])
@pytest.mark.parametrize("changed", [{"NAME": "no_such_database"}, {"USER": "nobody_known"}, {"PASSWORD": "wrong"}])
def test_a_wrong_database_user_or_password_on_sqlserver(
    sqlserver_database: QueueDatabase, command: tuple[str, ...], changed: dict[str, str]
) -> None:
    install(sqlserver_database)

    line = refused(run(sqlserver_database, command, **changed), 1)

    assert line.startswith("CommandError: failed to ")
    assert line.endswith(CANNOT_CONNECT)


def test_a_database_that_is_down(postgresql_database: QueueDatabase, postgresql_server: ThrowAwayServer) -> None:
    """A worker waits for the database instead: see tests/worker/test_outages.py."""
    install(postgresql_database)
    connections.close_all()
    postgresql_server.stop()
    try:
        with pytest.raises(
            CommandError, match=r"^failed to .*; start the database, or correct HOST and PORT in DATABASES$"
        ) as caught:
            call_command(*SEND)
    finally:
        connections.close_all()
        postgresql_server.start()
    assert caught.value.returncode == 1
    assert str(caught.value).startswith("failed to ")
    assert str(caught.value).endswith("; start the database, or correct HOST and PORT in DATABASES")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", [WORKER, SEND])
def test_a_role_without_rights(postgresql_database: QueueDatabase, command: tuple[str, ...]) -> None:
    install(postgresql_database)

    line = refused(run(postgresql_database, command, USER=postgresql_database.create_role("rightless")), 1)

    assert "permission denied for " in line
    assert line.endswith(RIGHTS)


def test_a_status_without_rights(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)

    ran = run(postgresql_database, ("sqlqueue_status",), USER=postgresql_database.create_role("rightless"))

    denied = [line for line in ran.out.splitlines() if "permission denied" in line]
    assert {line.partition(":")[0] for line in denied} >= {"Sales", "error", "instances"}
    assert all(line.endswith(RIGHTS) for line in denied)


def test_a_retry_without_rights(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)

    ran = run(postgresql_database, ("sqlqueue_retry", "--all"), USER=postgresql_database.create_role("rightless"))

    assert (ran.code, ran.out) == (1, "")
    warning, error = ran.err.splitlines()
    assert warning == f'warning: error: failed to look for failures in "public"."error": {DENIED}failedattempt{RIGHTS}'
    assert error == f"CommandError: {DENIED}failedmessage{RIGHTS}"


@pytest.mark.skipif(not has_spark(), reason="the extra spark is not installed")
@pytest.mark.parametrize(("rights", "denied"), [("no", "sqlqueue_app_claim"), ("managed", "audit")])
def test_a_pipeline_without_rights(postgresql_database: QueueDatabase, tmp_path: Path, rights: str, denied: str) -> None:
    database = postgresql_database
    install(database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    role = database.create_role("rightless")
    for table in managed_models() if rights == "managed" else ():
        execute(database, f'GRANT ALL ON {table._meta.db_table} TO "{role}"')

    line = refused(run(database, ("run_sqlqueue_pipeline", "--lake", str(tmp_path / "lake")), USER=role), 1)

    assert line.endswith(f"permission denied for table {denied}{RIGHTS}")


@pytest.mark.parametrize("command", [WORKER, SEND])
def test_a_sqlite_file_that_cannot_be_opened_or_is_none(
    sqlite_database: QueueDatabase, command: tuple[str, ...], tmp_path: Path
) -> None:
    install(sqlite_database)
    (tmp_path / "no database").write_text("text, and enough of it to be longer than the header of a database" * 9)

    entry = sqlite_database.connection.settings_dict

    missing = refused(run(sqlite_database, command, NAME=str(tmp_path / "no folder" / "db")), 1)
    options = {**entry["OPTIONS"], "uri": True}
    read_only = refused(run(sqlite_database, command, NAME=f"file:{entry['NAME']}?mode=ro", OPTIONS=options), 1)
    wrong = run(sqlite_database, command, NAME=str(tmp_path / "no database"))

    assert missing.endswith("unable to open database file" + CANNOT_CONNECT)
    assert read_only.endswith("attempt to write a readonly database" + CANNOT_CONNECT)
    assert (wrong.code, wrong.out) == (1, "")
    # From Python 3.13 on, warnings follow about the connection that Django leaves open if its setup fails.
    assert wrong.err.splitlines()[0].endswith("file is not a database" + CANNOT_CONNECT)


def test_a_locked_sqlite_file(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    entry = sqlite_database.connection.settings_dict
    with closing(sqlite3.connect(entry["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ran = run(sqlite_database, SEND, OPTIONS={**entry["OPTIONS"], "timeout": 0.1})

    text = 'CommandError: failed to send to "Sales": database is locked; another connection holds a lock: try again when it is done'
    assert refused(ran, 1) == text


@pytest.mark.parametrize("command", [WORKER, SEND, ("sqlqueue_status",)])
@pytest.mark.parametrize("engine", ["django.db.backends.mysql", "django.db.backends.no_such_driver"])
def test_an_engine_without_its_driver(sqlite_database: QueueDatabase, command: tuple[str, ...], engine: str) -> None:
    line = refused(run(sqlite_database, command, ENGINE=engine, OPTIONS={}))

    assert line.startswith(("CommandError: Error loading MySQLdb module: pip", f"CommandError: '{engine}' isn't an available"))
    remedy = "pip install 'django-sqlqueue[postgres]' or 'django-sqlqueue[mssql]'; SQLite needs none"
    assert line.endswith(f"{remedy}; no other database is supported")


PEEK = ("sqlqueue_peek", "Sales")
WORK = ("run_sqlqueue_worker", "--until-empty", "--endpoint", "Sales")


def run_with_output(database: QueueDatabase, redirection: str, *command: str) -> Ran:
    """Run a command with a redirection of the shell. The exit code is that of the command."""
    line = f'"$0" "$@" {redirection}; echo "exit code $?" >&2'
    answer = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable, "-m", "django", *command],
        env=database.child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    *errors, code = answer.stderr.splitlines()
    return Ran(int(code.removeprefix("exit code ")), answer.stdout, "\n".join(errors))


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
NO_SPACE = "CommandError: the output cannot be written: No space left on device"
BROKEN = "CommandError: the output cannot be written: Broken pipe"


@pytest.mark.parametrize(
    ("command", "code", "error"), [(PEEK, 141, ""), (SEND, 1, f"{BROKEN}; the message is sent")], ids=["peek", "send"]
)
def test_a_pipe_whose_reader_has_gone(sqlite_database: QueueDatabase, command: tuple[str, ...], code: int, error: str) -> None:
    install(sqlite_database)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "django", *command],
            env=sqlite_database.child_environment(),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        os.close(writer)

    assert (answer.returncode, answer.stderr.strip()) == (code, error)


@needs_full
@pytest.mark.parametrize(
    ("command", "error"),
    [(PEEK, NO_SPACE), ((*SEND, "--count", "2"), f"{NO_SPACE}; the 2 messages are sent")],
    ids=["peek", "send"],
)
def test_a_full_disk(sqlite_database: QueueDatabase, command: tuple[str, ...], error: str) -> None:
    install(sqlite_database)

    ran = run_with_output(sqlite_database, ">/dev/full", *command)

    assert (ran.code, ran.err) == (1, error)


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", [SEND, WORK], ids=["send", "work"])
def test_closed_output(sqlite_database: QueueDatabase, command: tuple[str, ...], redirection: str) -> None:
    install(sqlite_database)

    ran = run_with_output(sqlite_database, redirection, *command)

    assert (ran.code, ran.out) == (0, "")
    assert "Error" not in ran.err


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("sqlqueue_purge", "Sales"), "nothing was deleted from 'Sales': there is no terminal to confirm on; add --yes"),
        (("sqlqueue_send", "Sales", "--type", "T", "--file", "-"), "the body is empty; expected a JSON object"),
    ],
)
def test_closed_input(sqlite_database: QueueDatabase, command: tuple[str, ...], error: str) -> None:
    install(sqlite_database)

    ran = run_with_output(sqlite_database, "<&-", *command)

    assert (ran.code, ran.err) == (2, f"CommandError: {error}")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_output_that_is_not_utf_8(sqlite_database: QueueDatabase, encoding: str) -> None:
    install(sqlite_database)
    call_command("sqlqueue_send", "Sales", "--type", "T", "--body", "{}", "--header", "note=Löffel ≈")

    def peek(form: str) -> str:
        command = [sys.executable, "-m", "django", *PEEK, "--format", form]
        environment = {**sqlite_database.child_environment(), "PYTHONIOENCODING": encoding}
        return subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120).stdout.decode(encoding)

    in_text = {"ascii": r"L\xf6ffel \u2248", "cp1252": r"Löffel \u2248"}
    assert f"  note: {in_text[encoding]}\n" in peek("text")
    assert json.loads(peek("json"))["messages"][0]["headers"]["note"] == "Löffel ≈"
