"""The script for a DBA has the DDL of the transport's design document; needs neither a server nor a driver."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.installation.shop import ENDPOINTS, TABLES
from tests.support.databases import ROOT

# The DDL from the transport's own design document ("Queue table structure").
DOCUMENTED = """
CREATE TABLE [schema].[queuename](
	[Id] [uniqueidentifier] NOT NULL,
	[CorrelationId] [varchar](255),
	[ReplyToAddress] [varchar](255),
	[Recoverable] [bit] NOT NULL,
	[Expires] [datetime],
	[Headers] [varchar](max) NOT NULL,
	[Body] [varbinary](max),
	[RowVersion] [bigint] IDENTITY(1,1) NOT NULL
)
ON [PRIMARY];

CREATE CLUSTERED INDEX [Index_RowVersion]
ON [schema].[queuename]
(
	[RowVersion] ASC
)

CREATE NONCLUSTERED INDEX [Index_Expires]
ON [schema].[queuename]
(
	[Expires] ASC
)
INCLUDE
(
	[Id],
	[RowVersion]
)
"""
SQLITE: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nonexistent/shop.sqlite3"}
NOWHERE: dict[str, dict[str, Any]] = {
    "a SQLite file that is not there": SQLITE,
    "a PostgreSQL server that is not there": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "HOST": "db.invalid"},
    "a SQL Server that is not there": {"ENGINE": "mssql", "NAME": "shop", "HOST": "db.invalid"},
}
# Simulate a machine where none of these is installed and no socket can be opened.
PROGRAM = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"psycopg", "psycopg2", "pyodbc", "mssql", "mssql_python"}:
            raise ModuleNotFoundError(f"{name} is blocked in this test", name=name)

def audit(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "sqlite3.connect"):
        raise RuntimeError(f"{event} is blocked in this test")

sys.meta_path.insert(0, Blocked())
sys.addaudithook(audit)
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


def script(databases: dict[str, Any], settings: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    child = {"DATABASES": databases, "SQLQUEUE": {"ENDPOINTS": ENDPOINTS, **settings}}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "sqlqueue_install", "--sql", *arguments],
        env={"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT), "SQLQUEUE_TEST_CHILD": json.dumps(child)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def normalised(sql: str) -> str:
    """Drop what does not matter: white space, and the semicolons between statements."""
    return re.sub(r"\s+", "", sql).replace(";", "")


@pytest.mark.parametrize("database", NOWHERE.values(), ids=NOWHERE)
@pytest.mark.parametrize("dialect", ["sqlserver", "postgresql", "sqlite"])
def test_script_needs_no_server_and_no_driver(database: dict[str, Any], dialect: str) -> None:
    databases = {"default": SQLITE, "queues": database}
    ended = script(databases, {"DATABASE": "queues"}, "--dialect", dialect)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("CREATE TABLE") == len(TABLES)


def test_settings_are_checked_for_the_dialect_of_the_script() -> None:
    settings = {"SCHEMA_FOR_QUEUE": {"error": "ops"}, "CATALOG_FOR_QUEUE": {"error": "shared"}, "DEFAULT_SCHEMA": "shop"}
    ended = script({"default": SQLITE}, settings, "--dialect", "sqlserver")
    assert "CREATE TABLE [shared].[ops].[error](" in ended.stdout
    assert "CREATE TABLE [shop].[Sales](" in ended.stdout

    refused = script({"default": SQLITE}, settings, "--dialect", "postgresql")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "only SQL Server has catalogs and the queues are on PostgreSQL" in refused.stderr


def test_script_is_the_documented_ddl() -> None:
    ended = script({"default": SQLITE}, {}, "--dialect", "sqlserver")
    start = ended.stdout.index("CREATE TABLE [dbo].[Sales](")
    printed = ended.stdout[start : ended.stdout.index("END", start)]
    documented = DOCUMENTED.replace("[schema].[queuename]", "[dbo].[Sales]")
    assert normalised(printed) == normalised(documented)


def test_script_has_real_names_and_grants() -> None:
    settings = {"TABLE_LAYOUT": "modern"}
    ended = script({"default": SQLITE}, settings, "--dialect", "sqlserver", "--grant", "shop ]'s")
    for name in ("Sales", "Sales.Priority", "Sales.web1", "Sales.web1-2", "Sales.Delayed", "error", "SubscriptionRouting"):
        assert f"IF OBJECT_ID(N'[dbo].[{name}]', N'U') IS NULL" in ended.stdout
        assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON [dbo].[{name}] TO [shop ]]'s];\nGO\n" in ended.stdout
    for name in ("instance", "claim", "queuesample", "scheduletick", "handledmessage"):
        assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue_app_{name}] TO" in ended.stdout
    assert "[nvarchar](max)" in ended.stdout
    assert "schema" not in ended.stdout


@pytest.mark.parametrize(
    ("purpose", "rights"),
    [
        ("sender", {"Sales": "INSERT", "error": "INSERT", "SubscriptionRouting": "SELECT"}),
        ("reader", {"Sales": "SELECT", "error": "SELECT", "audit": "SELECT", "SubscriptionRouting": "SELECT"}),
        ("pipeline", {"audit": "SELECT, UPDATE, DELETE", "error": "SELECT"}),
    ],
)
def test_each_purpose_has_its_rights(purpose: str, rights: dict[str, str]) -> None:
    settings = {"ENDPOINTS": {"Sales": {"CALLBACKS": False, "AUDIT_QUEUE": "audit"}}}
    ended = script({"default": SQLITE}, settings, "--dialect", "sqlserver", "--grant", "x", "--for", purpose)
    found = {table: each for each, table in re.findall(r"GRANT ([A-Z, ]+) ON \[dbo\]\.\[(.+)\] TO \[x\];", ended.stdout)}
    assert rights.items() <= found.items()
    assert set(found.values()) == set(rights.values())
    managed = set(re.findall(r"GRANT ([A-Z, ]+) ON \[sqlqueue_app_failedmessage\]", ended.stdout))
    assert managed == (set() if purpose == "sender" else {"SELECT"})


def test_the_pipeline_gets_rights_on_the_queues_of_its_settings() -> None:
    settings = {
        "ENDPOINTS": {"Sales": {"AUDIT_QUEUE": "audit"}, "Billing": {"AUDIT_QUEUE": "ledger"}},
        "PIPELINE": {"AUDIT_QUEUES": ["AUDIT", "old@[ops]"], "ERROR_QUEUES": ["old errors"]},
    }
    ended = script({"default": SQLITE}, settings, "--dialect", "sqlserver", "--grant", "x", "--for", "pipeline")
    assert re.findall(r"GRANT ([A-Z, ]+) ON (\[.+\]\.\[.+\]) TO \[x\];\nGO\n", ended.stdout) == [
        ("SELECT", "[dbo].[error]"),
        ("SELECT, UPDATE, DELETE", "[dbo].[audit]"),
        ("SELECT, UPDATE, DELETE", "[ops].[old]"),
        ("SELECT", "[dbo].[old errors]"),
    ]
    assert "CREATE TABLE [ops].[old]" not in ended.stdout, "another system creates it"


@pytest.mark.parametrize(("cron", "granted"), [({}, []), ({"CRON": "0 2 * * *"}, ["SELECT, UPDATE, DELETE"])])
def test_worker_that_runs_the_pipeline_gets_its_queues(cron: dict[str, str], granted: list[str]) -> None:
    settings = {"ENDPOINTS": {"Sales": {}}, "PIPELINE": {"AUDIT_QUEUES": ["old"], **cron}}
    ended = script({"default": SQLITE}, settings, "--dialect", "sqlserver", "--grant", "x")
    assert re.findall(r"GRANT ([A-Z, ]+) ON \[dbo\]\.\[old\] TO \[x\];", ended.stdout) == granted
    assert "GRANT SELECT, INSERT, UPDATE, DELETE ON [dbo].[Sales] TO [x];" in ended.stdout


def test_a_purpose_needs_a_role() -> None:
    ended = script({"default": SQLITE}, {}, "--dialect", "sqlserver", "--for", "reader")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "--for requires --grant" in ended.stderr


def test_unrepresentable_name_is_refused() -> None:
    settings = {"ENDPOINTS": {"two\nlines": {"CALLBACKS": False}}}
    ended = script({"default": SQLITE}, settings, "--dialect", "sqlserver")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "has a line break" in ended.stderr
