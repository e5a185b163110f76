"""`sqlqueue_install --wake-up`: the trigger that announces new messages, and what looks for it."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections, transaction

from sqlqueue_app.checks import check_tables
from sqlqueue_app.tables import announcements
from tests.installation.shop import install
from tests.support.databases import QueueDatabase
from tests.support.tables import execute, golden_statements

ENDPOINTS: dict[str, Any] = {
    "Sales": {"WAKE_UP": True, "CALLBACKS": False, "SATELLITES": {"Sales.Priority": {}}},
    "Billing": {"CALLBACKS": False},
}
# Delayed messages of every endpoint are looked for by any worker.
WITH_TRIGGER = {'"Sales"', '"Sales.Priority"', '"Sales.Delayed"', '"Billing.Delayed"'}


def triggers(database: QueueDatabase) -> set[str]:
    found = execute(database, "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'sqlqueue_wake_up'")
    return {str(name) for (name,) in found}


def definition(database: QueueDatabase, table: str) -> list[tuple[Any, ...]]:
    """All that the catalog says of a table but its triggers."""
    columns = "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull::text FROM pg_attribute"
    where = f"WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
    indexes = f"SELECT indexdef, '', '' FROM pg_indexes WHERE tablename = '{table.strip(chr(34))}' ORDER BY indexdef"
    return execute(database, f"{columns} {where}") + execute(database, indexes)


def test_it_is_added_on_request_alone_and_once(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS)
    call_command("migrate", database=postgresql_database.alias, verbosity=0)
    install()
    assert triggers(postgresql_database) == set()
    out = install("--wake-up")
    assert 'added the wake-up trigger to "public"."Sales"' in out
    assert "4 wake-up triggers added, 0 were there already" in out
    assert triggers(postgresql_database) == WITH_TRIGGER
    assert "0 wake-up triggers added, 4 were there already" in install("--wake-up")
    document = json.loads(install("--wake-up", "--format", "json"))
    assert document["wake_up_triggers"] == [
        {"table": '"public"."Sales"', "created": False},
        {"table": '"public"."Sales.Priority"', "created": False},
        {"table": '"public"."Sales.Delayed"', "created": False},
        {"table": '"public"."Billing.Delayed"', "created": False},
    ]


def test_the_check_names_what_is_missing(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS)
    install()
    out = install("--check")  # exit code 0: the trigger is a choice
    assert 'table "public"."Sales" has no wake-up trigger' in out
    assert "(for information)" in out
    assert '"Billing"' not in out
    assert '"public"."Billing.Delayed" has no wake-up trigger: any worker looks into it each second' in out
    assert out.count("CREATE FUNCTION") == 4
    with pytest.raises(SystemExit, match="1"):
        install("--check", "--wake-up")
    (first, *_) = [message for message in check_tables(databases=["postgresql"]) if message.id == "sqlqueue.I031"]
    assert str(first.hint).startswith("run sqlqueue_install --wake-up, or this:\nCREATE FUNCTION")
    execute(postgresql_database, str(first.hint).partition("or this:\n")[2])
    assert triggers(postgresql_database) == {'"Sales"'}
    assert install("--check").count("CREATE FUNCTION") == 0  # it is there; the other trigger still is not
    install("--wake-up")
    assert "tables are as they should be" in install("--check", "--wake-up")
    assert [message for message in check_tables(databases=["postgresql"]) if message.id == "sqlqueue.I031"] == []


def test_the_script_adds_it_too_and_may_be_run_again(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS)
    assert "TRIGGER" not in install("--sql")
    script = install("--sql", "--wake-up")
    for _ in range(2):
        execute(postgresql_database, script)
    assert triggers(postgresql_database) == WITH_TRIGGER
    assert "tables are as they should be" in install("--check", "--wake-up")


@pytest.mark.parametrize("name", ['a"b', "it's", "a.b%s{table}", "back\\slash", "$sqlqueue$"])
def test_any_name_will_do(postgresql_database: QueueDatabase, name: str) -> None:
    endpoints = {name: {"WAKE_UP": True, "CALLBACKS": False}}
    postgresql_database.configure(ENDPOINTS=endpoints, DEFAULT_SCHEMA='s"x')
    execute(postgresql_database, 'CREATE SCHEMA "s""x"')
    execute(postgresql_database, install("--sql", "--wake-up"))
    assert "tables are as they should be" in install("--check", "--wake-up")
    execute(postgresql_database, 'DROP SCHEMA "s""x" CASCADE')
    execute(postgresql_database, 'CREATE SCHEMA "s""x"')
    install("--wake-up")
    assert "tables are as they should be" in install("--check", "--wake-up")
    execute(postgresql_database, 'DROP SCHEMA "s""x" CASCADE')


def test_a_table_of_nservicebus_gets_the_trigger_and_is_left_alone_otherwise(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS={"Sales": {"WAKE_UP": True, "CALLBACKS": False}})
    for statement in golden_statements("Sales", 'public."Sales"'):
        execute(postgresql_database, statement)
    before = definition(postgresql_database, '"Sales"')
    install("--wake-up")
    assert definition(postgresql_database, '"Sales"') == before
    assert triggers(postgresql_database) == {'"Sales"', '"Sales.Delayed"'}


def test_senders_need_no_right_for_it(postgresql_database: QueueDatabase) -> None:
    database = postgresql_database
    database.configure(ENDPOINTS=ENDPOINTS)
    install("--wake-up")
    role = database.create_role("wake_up_sender")
    execute(database, "REVOKE ALL ON FUNCTION sqlqueue_wake_up() FROM PUBLIC")
    execute(database, f'GRANT INSERT ON "Sales" TO {role}')
    execute(database, f'GRANT USAGE ON SEQUENCE "Sales_seq_seq" TO {role}')
    with database.as_role(role):
        # A function of the sender's own is not taken for the real one.
        execute(database, "SET search_path = pg_temp, public")
        execute(database, "INSERT INTO public.\"Sales\" (id, headers, body) VALUES (gen_random_uuid(), '{}', '')")
    assert execute(database, 'SELECT count(*) FROM "Sales"') == [(1,)]


@pytest.mark.parametrize("spoil", ['ALTER TABLE "Sales" DISABLE TRIGGER sqlqueue_wake_up', "rename"])
def test_one_that_does_not_work_counts_as_missing_and_is_mended(postgresql_database: QueueDatabase, spoil: str) -> None:
    database = postgresql_database
    database.configure(ENDPOINTS={"Old" if spoil == "rename" else "Sales": {"WAKE_UP": True, "CALLBACKS": False}})
    install("--wake-up")
    if spoil == "rename":
        execute(database, 'ALTER TABLE "Old" RENAME TO "Sales"')
        database.configure(ENDPOINTS={"Sales": {"WAKE_UP": True, "CALLBACKS": False}})
        install()
    else:
        execute(database, spoil)
    assert 'table "public"."Sales" has no wake-up trigger' in install("--check")
    assert f"{2 if spoil == 'rename' else 1} wake-up triggers added" in install("--wake-up")
    assert "no wake-up trigger" not in install("--check")


def test_callback_queues_of_other_machines_get_it_too(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS={"Web": {"WAKE_UP": True, "CALLBACK_QUEUES": 1}})
    install("--wake-up", "--instance", "a", "--instance", "b")
    assert triggers(postgresql_database) == {'"Web"', '"Web.a"', '"Web.b"', '"Web.Delayed"'}


def test_it_gives_up_where_somebody_writes_for_long(postgresql_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    database = postgresql_database
    database.configure(ENDPOINTS=ENDPOINTS)
    install()
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
        # The server hears of it some time later; the next installation waits for so long.
        other.close()
    assert not transaction.get_connection(database.alias).in_atomic_block
    install("--wake-up")
    assert triggers(database) == WITH_TRIGGER


@pytest.mark.parametrize(
    ("arguments", "endpoints", "expected"),
    [
        (["--wake-up"], {"Sales": {}}, "has WAKE_UP on"),
        (["--wake-up", "--make-migration", "shop"], ENDPOINTS, "does not go with --make-migration"),
        (["--wake-up", "--sql", "--dialect", "sqlite"], ENDPOINTS, "only PostgreSQL"),
    ],
)
def test_what_does_not_go_together_is_said(
    sqlite_database: QueueDatabase, arguments: list[str], endpoints: dict[str, Any], expected: str
) -> None:
    sqlite_database.configure(ENDPOINTS=endpoints)
    if expected == "has WAKE_UP on":
        arguments = [*arguments, "--sql", "--dialect", "postgresql"]
    with pytest.raises(CommandError, match=expected) as caught:
        call_command("sqlqueue_install", *arguments, stdout=StringIO())
    assert caught.value.returncode == 2


def test_the_script_for_postgresql_needs_no_server(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS=ENDPOINTS)
    assert "CREATE OR REPLACE TRIGGER" in install("--sql", "--dialect", "postgresql", "--wake-up")
