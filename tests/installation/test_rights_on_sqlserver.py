"""On SQL Server, the rights in the DBA's script are sufficient for each kind of process."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import Error as DjangoDatabaseError

from sqlqueue_app import handles, send
from sqlqueue_app.messages.errors import DatabaseError
from tests.support import sqlserver
from tests.support.bench import FAST, Bench, Calls
from tests.support.databases import QueueDatabase
from tests.support.provisioning import point
from tests.support.tables import execute

pytestmark = pytest.mark.skipif(not sqlserver.is_named(), reason=f"{sqlserver.URL_VARIABLE} is not set")

SALES: dict[str, Any] = {**FAST, "AUDIT_QUEUE": "audit", "INSTANCE": "here", "DELAYED_RETRIES": 1, "DELAYED_RETRY_INCREASE": 0.001}


@pytest.fixture
def shop(sqlserver_database: QueueDatabase, handler_registry: None) -> Bench:
    bench = Bench(sqlserver_database)
    bench.database.configure(ENDPOINTS={"Sales": {**SALES, "DEDUPLICATE_FOR": 60}}, SEND_AS="Web", ROUTES={"Test.*": "Sales"})
    return bench


@contextmanager
def logged_in_for(database: QueueDatabase, purpose: str) -> Iterator[None]:
    """Log the alias in with only the rights that the script grants for a purpose, until the block ends."""
    name, password = f"sqlqueue_{secrets.token_hex(4)}", f"Pw-{secrets.token_hex(8)}"
    out = StringIO()
    execute(database, f"CREATE LOGIN [{name}] WITH PASSWORD = '{password}'")
    execute(database, f"CREATE USER [{name}] FOR LOGIN [{name}]")
    try:
        call_command("sqlqueue_install", "--sql", "--grant", name, "--for", purpose, stdout=out)
        for batch in re.split(r"^GO$", out.getvalue(), flags=re.MULTILINE):
            if batch.strip():
                execute(database, batch)
        given = database.connection.settings_dict
        before = {key: given[key] for key in ("USER", "PASSWORD")}
        point(database.alias, USER=name, PASSWORD=password)
        try:
            yield
        finally:
            point(database.alias, **before)
    finally:
        # some servers refuse to drop a user with rights; it is removed with the test database
        execute(database, f"DROP LOGIN [{name}]")


def test_a_worker_reads_and_writes(shop: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        calls.add(message["n"])
        if message["n"] == 2:
            raise LookupError("always")
        context.send("Test.Later", {}, delay=timedelta(milliseconds=1))

    handles("Test.Later")(lambda message, context: calls.add("later") and None)
    with logged_in_for(shop.database, "worker"):
        send("Test.Message", {"n": 1})
        send("Test.Message", {"n": 2})
        shop.run()
        assert shop.rows("Sales") == []
        assert [each["NServiceBus.ExceptionInfo.Message"] for each in shop.headers("error")] == ["always"]
        assert len(shop.rows("audit")) == 2
        assert calls.seen.count("later") == 1
        call_command("sqlqueue_status", stdout=StringIO())
        with pytest.raises(DjangoDatabaseError):
            execute(shop.database, "CREATE TABLE more (id int)")
        with pytest.raises(DjangoDatabaseError):
            execute(shop.database, "DROP TABLE [Sales]")


def test_a_sender_sees_no_message(shop: Bench) -> None:
    with logged_in_for(shop.database, "sender"):
        with shop.database.connection.cursor() as cursor:
            cursor.execute("SELECT OBJECT_ID(N'[dbo].[Sales]', N'U')")
            if cursor.fetchone()[0] is None:
                pytest.skip("the server hides a table from those who may only insert into it")
        send("Test.Message", {"n": 1})
        send("Test.Message", {"n": 2}, delay=timedelta(hours=1))
        with pytest.raises(DatabaseError):
            shop.rows("Sales")
        with pytest.raises(DjangoDatabaseError):
            execute(shop.database, "DELETE FROM [Sales]")
    assert len(shop.rows("Sales")) == 1


def test_reader_cannot_change_anything(shop: Bench) -> None:
    with logged_in_for(shop.database, "reader"):
        assert shop.rows("Sales") == []
        call_command("sqlqueue_status", stdout=StringIO())
        with pytest.raises(DatabaseError):
            send("Test.Message", {"n": 1})
