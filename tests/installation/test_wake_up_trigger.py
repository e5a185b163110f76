"""The trigger that announces new messages: our tables are created with it, others get it from `sqlqueue_install --wake-up`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections, transaction
from psycopg import ConnectionInfo

from sqlqueue_app.checks import check_tables
from sqlqueue_app.dialects.dialect import dialect
from sqlqueue_app.dialects.schema import create_wake_up_trigger, wake_up_channel
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.tables import announcements
from tests.installation.shop import install
from tests.support.databases import QueueDatabase
from tests.support.tables import execute, golden_statements
from tests.support.waiting import poll_until

ENDPOINTS: dict[str, Any] = {
    "Sales": {"CALLBACKS": False, "SATELLITES": {"Sales.Priority": {}}},
    "Billing": {"CALLBACKS": False, "WAKE_UP": False},
}
# Any worker looks for due delayed messages of every endpoint.
WITH_TRIGGER = {'"Sales"', '"Sales.Priority"', '"Sales.Delayed"', '"Billing.Delayed"'}


def triggers(database: QueueDatabase) -> set[str]:
    found = execute(database, "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'sqlqueue_wake_up'")
    return {str(name) for (name,) in found}


def definition(database: QueueDatabase, table: str) -> list[tuple[Any, ...]]:
    """Everything in the catalog about a table except its triggers."""
    columns = "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull::text FROM pg_attribute"
    where = f"WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
    indexes = f"SELECT indexdef, '', '' FROM pg_indexes WHERE tablename = '{table.strip(chr(34))}' ORDER BY indexdef"
    return execute(database, f"{columns} {where}") + execute(database, indexes)


def install_without(database: QueueDatabase) -> None:
    """Create the tables, then drop the trigger, as on tables that were not created by us."""
    install()
    execute(database, "DROP FUNCTION sqlqueue_wake_up() CASCADE")


@pytest.mark.parametrize("way", ["migrate", "install", "script"])
def test_every_new_message_table_has_the_trigger(postgresql_database: QueueDatabase, way: str) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS)
    call_command("migrate", database=postgresql_database.alias, verbosity=0)
    if way == "script":
        for _ in range(2):
            execute(postgresql_database, install("--sql"))
    elif way == "install":
        install()
    else:
        postgresql_database.configure(ENDPOINTS=ENDPOINTS, INSTALL_AFTER_MIGRATE=True)
        call_command("migrate", database=postgresql_database.alias, verbosity=0)
    # WAKE_UP concerns only the worker: without a listener the trigger announces nothing.
    assert triggers(postgresql_database) == {*WITH_TRIGGER, '"Billing"', "error"}


def test_tables_created_together_share_the_trigger_function(postgresql_database: QueueDatabase) -> None:
    database = postgresql_database
    address = QueueAddress("Sales", "public", form="postgresql")
    function, _ = create_wake_up_trigger(dialect("postgresql"), address)
    other = connections.create_connection(database.alias)
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(function)
            waits = threading.Thread(target=in_thread(database, function))
            waits.start()
            poll_until(lambda: execute(database, "SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
            cursor.execute("COMMIT")
        waits.join(60)
    finally:
        other.close()
    assert execute(database, "SELECT count(*) FROM pg_proc WHERE proname = 'sqlqueue_wake_up'") == [(1,)]


def in_thread(database: QueueDatabase, statement: str) -> Callable[[], None]:
    def run() -> None:
        try:
            execute(database, statement)
        finally:
            connections.close_all()

    return run


def test_foreign_tables_get_the_trigger_once_on_request(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS)
    call_command("migrate", database=postgresql_database.alias, verbosity=0)
    install_without(postgresql_database)
    install()
    assert triggers(postgresql_database) == set()
    out = install("--wake-up")
    assert 'added the wake-up trigger to "public"."Sales"' in out
    assert "4 wake-up triggers added, 0 were there already" in out
    assert triggers(postgresql_database) == WITH_TRIGGER
    assert "0 wake-up triggers added, 4 were there already" in install("--wake-up")
    execute(postgresql_database, 'DROP TRIGGER sqlqueue_wake_up ON "Sales"')
    assert "1 wake-up trigger added, 3 were there already" in install("--wake-up")
    document = json.loads(install("--wake-up", "--format", "json"))
    assert document["wake_up_triggers"] == [
        {"table": '"public"."Sales"', "created": False},
        {"table": '"public"."Sales.Priority"', "created": False},
        {"table": '"public"."Sales.Delayed"', "created": False},
        {"table": '"public"."Billing.Delayed"', "created": False},
    ]


def test_check_names_missing_triggers(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS)
    install_without(postgresql_database)
    out = install("--check")  # exit code 0: the trigger is optional
    assert 'table "public"."Sales" has no wake-up trigger' in out
    assert "(for information)" in out
    assert '"Billing"' not in out
    assert '"public"."Billing.Delayed" has no wake-up trigger: workers poll it up to once a second' in out
    assert out.count("CREATE FUNCTION") == 4
    with pytest.raises(SystemExit, match="1"):
        install("--check", "--wake-up")
    (first, *_) = [message for message in check_tables(databases=["postgresql"]) if message.id == "sqlqueue.I031"]
    assert str(first.hint).startswith("run sqlqueue_install --wake-up, or this:\nDO ")
    execute(postgresql_database, str(first.hint).partition("or this:\n")[2])
    assert triggers(postgresql_database) == {'"Sales"'}
    install("--wake-up")
    assert "tables are as they should be" in install("--check", "--wake-up")
    assert [message for message in check_tables(databases=["postgresql"]) if message.id == "sqlqueue.I031"] == []


def test_script_adds_the_trigger_and_can_be_repeated(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS)
    install_without(postgresql_database)
    execute(postgresql_database, install("--sql"))
    assert triggers(postgresql_database) == set()
    script = install("--sql", "--wake-up")
    for _ in range(2):
        execute(postgresql_database, script)
    assert triggers(postgresql_database) == WITH_TRIGGER
    assert "tables are as they should be" in install("--check", "--wake-up")


@pytest.mark.parametrize("name", ['a"b', "it's", "a.b%s{table}", "back\\slash", "$sqlqueue$"])
def test_trigger_works_for_any_name(postgresql_database: QueueDatabase, name: str) -> None:
    endpoints = {name: {"CALLBACKS": False}}
    postgresql_database.configure(ENDPOINTS=endpoints, DEFAULT_SCHEMA='s"x')
    execute(postgresql_database, 'CREATE SCHEMA "s""x"')
    execute(postgresql_database, install("--sql", "--wake-up"))
    assert "tables are as they should be" in install("--check", "--wake-up")
    execute(postgresql_database, 'DROP SCHEMA "s""x" CASCADE')
    execute(postgresql_database, 'CREATE SCHEMA "s""x"')
    install("--wake-up")
    assert "tables are as they should be" in install("--check", "--wake-up")
    execute(postgresql_database, 'DROP SCHEMA "s""x" CASCADE')


def test_table_of_nservicebus_gets_only_the_trigger(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}})
    for statement in golden_statements("Sales", 'public."Sales"'):
        execute(postgresql_database, statement)
    before = definition(postgresql_database, '"Sales"')
    install("--wake-up")
    assert definition(postgresql_database, '"Sales"') == before
    assert triggers(postgresql_database) == {'"Sales"', '"Sales.Delayed"', "error"}


def test_senders_need_no_rights_for_the_trigger(postgresql_database: QueueDatabase) -> None:
    database = postgresql_database
    database.configure(ENDPOINTS=ENDPOINTS)
    install("--wake-up")
    role = database.create_role("wake_up_sender")
    execute(database, "REVOKE ALL ON FUNCTION sqlqueue_wake_up() FROM PUBLIC")
    execute(database, f'GRANT INSERT ON "Sales" TO {role}')
    execute(database, f'GRANT USAGE ON SEQUENCE "Sales_seq_seq" TO {role}')
    with database.as_role(role):
        # A function in the sender's own schema does not replace the real one.
        execute(database, "SET search_path = pg_temp, public")
        execute(database, "INSERT INTO public.\"Sales\" (id, headers, body) VALUES (gen_random_uuid(), '{}', '')")
    assert execute(database, 'SELECT count(*) FROM "Sales"') == [(1,)]


CHANNEL = wake_up_channel('"public"."Sales"')
ALWAYS = (
    'CREATE OR REPLACE TRIGGER sqlqueue_wake_up AFTER INSERT ON "Sales" FOR EACH STATEMENT '
    f"EXECUTE FUNCTION sqlqueue_wake_up('{CHANNEL}')"
)
"""As earlier checkouts created it: it announces even without a request, which costs senders too much."""


@pytest.mark.parametrize("spoil", ['ALTER TABLE "Sales" DISABLE TRIGGER sqlqueue_wake_up', "rename", ALWAYS])
def test_broken_trigger_counts_as_missing_and_is_repaired(postgresql_database: QueueDatabase, spoil: str) -> None:
    database = postgresql_database
    database.configure(ENDPOINTS={"Old" if spoil == "rename" else "Sales": {"CALLBACKS": False}})
    install("--wake-up")
    if spoil == "rename":
        execute(database, 'ALTER TABLE "Old" RENAME TO "Sales"')
        database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}})
        install()
    else:
        execute(database, spoil)
    assert 'table "public"."Sales" has no wake-up trigger' in install("--check")
    assert "1 wake-up trigger added" in install("--wake-up")
    assert "no wake-up trigger" not in install("--check")


def test_callback_queues_of_other_machines_get_the_trigger(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS={"Web": {"CALLBACK_QUEUES": 1}})
    install("--instance", "a", "--instance", "b")
    execute(postgresql_database, "DROP FUNCTION sqlqueue_wake_up() CASCADE")
    install("--wake-up", "--instance", "a", "--instance", "b")
    assert triggers(postgresql_database) == {'"Web"', '"Web.a"', '"Web.b"', '"Web.Delayed"'}


def test_trigger_installation_gives_up_during_a_long_write(
    postgresql_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgresql_database
    database.configure(ENDPOINTS=ENDPOINTS)
    install_without(database)
    other = connections.create_connection(database.alias)
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO \"Sales\" (id, headers) VALUES (gen_random_uuid(), '{}')")
        with monkeypatch.context() as impatient:
            impatient.setattr(announcements, "LOCK_SECONDS", 0.01)
            with pytest.raises(CommandError, match=r'trigger to "public"\."Sales": canceling statement due to lock timeout'):
                install("--wake-up")
    finally:
        # The server notices this some time later; the next installation waits until then.
        other.close()
    assert not transaction.get_connection(database.alias).in_atomic_block
    install("--wake-up")
    assert triggers(database) == WITH_TRIGGER


@pytest.mark.parametrize(
    ("arguments", "endpoints", "expected"),
    [
        (["--wake-up"], {"Sales": {"WAKE_UP": False}}, "is woken"),
        (["--wake-up", "--make-migration", "shop"], ENDPOINTS, "cannot be combined with --make-migration"),
        (["--wake-up", "--sql", "--dialect", "sqlite"], ENDPOINTS, "only PostgreSQL"),
    ],
)
def test_conflicting_options_are_reported(
    sqlite_database: QueueDatabase, arguments: list[str], endpoints: dict[str, Any], expected: str
) -> None:
    sqlite_database.configure(ENDPOINTS=endpoints)
    if expected == "is woken":
        arguments = [*arguments, "--sql", "--dialect", "postgresql"]
    with pytest.raises(CommandError, match=expected) as caught:
        call_command("sqlqueue_install", *arguments, stdout=StringIO())
    assert caught.value.returncode == 2


def test_script_for_postgresql_needs_no_server(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS=ENDPOINTS)
    script = install("--sql", "--dialect", "postgresql")
    # Sales, its satellite, Billing, two delayed tables, error
    assert script.count("CREATE OR REPLACE TRIGGER") == 6
    assert install("--sql", "--dialect", "postgresql", "--wake-up").count("CREATE OR REPLACE TRIGGER") == 6 + len(WITH_TRIGGER)


@pytest.mark.parametrize("reason", ["a pooler such as PgBouncer", "psycopg 3 is not installed"])
def test_check_reports_why_wake_up_is_unavailable(
    postgresql_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS)
    install_without(postgresql_database)
    if "pooler" in reason:
        monkeypatch.setattr(ConnectionInfo, "backend_pid", 1)
    else:
        # Simulate that Django has loaded psycopg2.
        monkeypatch.setattr(postgresql_database.connection, "Database", object())
    found = {message.id: message for message in check_tables(databases=["postgresql"])}
    assert reason in found["sqlqueue.I033"].msg
    assert "sqlqueue.I031" not in found
    postgresql_database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False, "WAKE_UP": False}})
    assert "sqlqueue.I033" not in {message.id for message in check_tables(databases=["postgresql"])}
