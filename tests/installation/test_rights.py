"""The installer needs the right to create tables; the worker only needs to read and write."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command
from django.db import Error as DjangoDatabaseError

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dialects.schema import TableKind
from sqlqueue_app.installation import planned_tables
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.tables.installation import inspect_tables, install_tables
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from tests.installation.shop import ENDPOINTS, TABLES
from tests.support.databases import QueueDatabase
from tests.support.tables import execute, row

SCHEMA = "queues"


@pytest.fixture
def roles(postgresql_database: QueueDatabase) -> tuple[str, str]:
    """An installer that may only create in one schema, and a worker without rights."""
    installer, worker = postgresql_database.create_role("installer"), postgresql_database.create_role("worker")
    execute(postgresql_database, f"CREATE SCHEMA {SCHEMA}")
    execute(postgresql_database, f'GRANT USAGE, CREATE ON SCHEMA {SCHEMA} TO "{installer}"')
    postgresql_database.configure(ENDPOINTS=ENDPOINTS, DEFAULT_SCHEMA=SCHEMA)
    return installer, worker


def work(database: QueueDatabase) -> None:
    """Every operation of workers and monitoring on a queue."""
    sales = QueueTable(database.alias, QueueAddress("Sales", SCHEMA, form="postgresql"))
    errors = QueueTable(database.alias, QueueAddress("error", SCHEMA, form="postgresql"))
    sales.send([row(b"1", time_to_be_received_ms=-1), row(b"2"), row(b"3")])
    assert sales.depth().waiting == 3
    assert sales.depth(limit=1).waiting == 3
    assert [peeked.body for peeked in sales.peek(2)] == [b"1", b"2"]
    assert sales.purge_expired(10) == 1
    receiving = receive_transaction(sales)
    received = receiving.receive()
    assert received is not None
    receiving.undo_handler()
    errors.send([row(received.body or b"")])
    receiving.check_usable()
    receiving.commit()
    assert (sales.purge(), errors.purge()) == (1, 1)
    tables = planned_tables(get_settings(), "postgresql")
    assert inspect_tables(database.alias, tables) == []
    assert install_tables(database.alias, tables) == []


def test_worker_only_reads_and_writes(postgresql_database: QueueDatabase, roles: tuple[str, str]) -> None:
    installer, worker = roles
    with postgresql_database.as_role(installer):
        call_command("sqlqueue_install", stdout=StringIO())
        out = StringIO()
        call_command("sqlqueue_install", "--sql", "--grant", worker, stdout=out)
        # only the owner of the tables may run the grants of the script; the tables exist already
        grants = [line for line in out.getvalue().splitlines() if line.startswith("GRANT") and "SCHEMA" not in line]
        assert len(grants) == len(TABLES) + sum(1 for kind, _ in TABLES if kind == TableKind.QUEUE.value)
        for grant in grants:
            execute(postgresql_database, grant)
    execute(postgresql_database, f'GRANT USAGE ON SCHEMA {SCHEMA} TO "{worker}"')

    with postgresql_database.as_role(worker):
        work(postgresql_database)
        with pytest.raises(DjangoDatabaseError):
            execute(postgresql_database, f"CREATE TABLE {SCHEMA}.more (id int)")
        with pytest.raises(DjangoDatabaseError):
            execute(postgresql_database, f'DROP TABLE {SCHEMA}."Sales"')


def test_script_for_the_dba_grants_all_the_worker_needs(postgresql_database: QueueDatabase, roles: tuple[str, str]) -> None:
    _, worker = roles
    out = StringIO()
    call_command("sqlqueue_install", "--sql", "--grant", worker, stdout=out)
    execute(postgresql_database, out.getvalue())
    with postgresql_database.as_role(worker):
        work(postgresql_database)
        execute(postgresql_database, "SELECT count(*) FROM sqlqueue_app_instance")
        execute(
            postgresql_database,
            "INSERT INTO sqlqueue_app_instance"
            " (endpoint, name, host, pid, started_at, heartbeat_at, threads, concurrency, version)"
            " VALUES ('Sales', 'web1', 'web1', 1, now(), now(), '{}', 1, '')",
        )


def test_role_without_create_creates_nothing(postgresql_database: QueueDatabase, roles: tuple[str, str]) -> None:
    _, worker = roles
    with postgresql_database.as_role(worker):
        tables = planned_tables(get_settings(), "postgresql")
        with pytest.raises(DatabaseError, match=f'install "{SCHEMA}"."Sales": permission denied'):
            install_tables(postgresql_database.alias, tables)
