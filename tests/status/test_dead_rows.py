"""Dead rows on PostgreSQL are reported with the session that holds them and are gone after vacuum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import call_command

from sqlqueue_app.checks import check_dead_rows
from sqlqueue_app.status.overview import read_status
from sqlqueue_app.status.queues import DEAD_ROWS, DEAD_ROWS_BEHIND_A_HOLDER, OLD_TRANSACTIONS, ProblemKind, QueueProblem
from tests.support.databases import QueueDatabase
from tests.support.filling import install, table
from tests.support.waiting import poll_until

SALES: dict[str, Any] = {"ENDPOINTS": {"Sales": {"CALLBACKS": False}}}
Session = psycopg.Connection[tuple[Any, ...]]


@contextmanager
def foreign_session(database: QueueDatabase, *, application: str = "reports") -> Iterator[Session]:
    """A session outside of Django."""
    provider: Any = database.provider
    session = provider.server.connect(provider.database)
    try:
        session.execute(f"SET application_name = '{application}'")
        yield session
    finally:
        session.close()


def leave_dead_rows(database: QueueDatabase, rows: int) -> None:
    """Insert and delete this many rows and update the statistics."""
    name = table(database, "Sales").qualified
    with foreign_session(database, application="sqlqueue-tests") as session:
        version = session.info.server_version
        session.execute(f"INSERT INTO {name} (id, headers) SELECT gen_random_uuid(), '{{}}' FROM generate_series(1, {rows})")
        session.execute(f"DELETE FROM {name}")
        for _ in range(OLD_TRANSACTIONS):
            session.execute("SELECT txid_current()")
        if version >= 15_00_00:
            session.execute("SELECT pg_stat_force_next_flush()")
        session.execute(f"ANALYZE {name}")


def vacuum(database: QueueDatabase) -> None:
    with foreign_session(database) as session:
        session.execute(f"VACUUM {table(database, 'Sales').qualified}")


def problem_of_sales() -> QueueProblem | None:
    (found,) = [each.problem for each in read_status().queues if each.name == "Sales"]
    return found


def problem_seen() -> QueueProblem:
    # the statistics of a session are updated within a second
    return poll_until(problem_of_sales, 60, what="the status names the dead rows")  # type: ignore[return-value]


def test_open_transaction_is_reported_with_the_sql_to_end_it(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, **SALES)
    with foreign_session(postgresql_database, application="monthly report") as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM sqlqueue_app_instance")
        leave_dead_rows(postgresql_database, DEAD_ROWS_BEHIND_A_HOLDER + 1)

        problem = problem_seen()
        (warning,) = check_dead_rows(databases=[postgresql_database.alias])
        out = StringIO()
        call_command("sqlqueue_status", stdout=out)

        assert problem.kind is ProblemKind.DEAD_ROWS
        assert not problem.stops_work
        pid = session.info.backend_pid
        for text in (problem.text, warning.msg, out.getvalue()):
            assert f"process {pid} (monthly report) of the role 'postgres', idle in transaction, open for " in text
            assert "5,001 dead rows beside 0 live ones" in text
        assert warning.id == "sqlqueue.W035"
        assert problem.sql.splitlines() == [
            f"SELECT pg_terminate_backend({pid});",
            "ALTER ROLE \"postgres\" SET idle_in_transaction_session_timeout = '60s';",
            'VACUUM "public"."Sales";',
        ]
        assert "dead rows" in out.getvalue()
        session.execute("ROLLBACK")
    vacuum(postgresql_database)
    poll_until(lambda: problem_of_sales() is None, 60, what="nothing is wrong after vacuum")
    assert check_dead_rows(databases=[postgresql_database.alias]) == []


def test_prepared_transaction_is_reported(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, **SALES)
    with foreign_session(postgresql_database) as session:
        session.execute("BEGIN")
        session.execute("CREATE TABLE half (id int)")
        session.execute("PREPARE TRANSACTION 'somebody''s'")
        leave_dead_rows(postgresql_database, DEAD_ROWS_BEHIND_A_HOLDER)
        problem = problem_seen()
        session.execute("ROLLBACK PREPARED 'somebody''s'")
    assert 'the prepared transaction "somebody\'s", 1,' in problem.text
    assert "ROLLBACK PREPARED 'somebody''s';" in problem.sql


def test_unprivileged_role_sees_which_grant_is_missing(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, **SALES)
    role = postgresql_database.create_role("service")
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    with foreign_session(postgresql_database, application="monthly report") as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM sqlqueue_app_instance")
        leave_dead_rows(postgresql_database, DEAD_ROWS_BEHIND_A_HOLDER)
        with postgresql_database.as_role(role):
            problem = problem_seen()
        pid = session.info.backend_pid
        session.execute("ROLLBACK")
    assert f"process {pid} (monthly report) of the role 'postgres', in a state that is hidden, 1," in problem.text
    assert problem.text.endswith("this role cannot see the sessions of other roles: GRANT pg_read_all_stats to it")


def test_more_dead_rows_without_an_old_transaction_point_to_autovacuum(
    postgresql_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(postgresql_database, **SALES)
    monkeypatch.setattr("sqlqueue_app.status.queues.DEAD_ROWS", DEAD_ROWS_BEHIND_A_HOLDER + 2)
    leave_dead_rows(postgresql_database, DEAD_ROWS_BEHIND_A_HOLDER + 1)
    assert DEAD_ROWS > DEAD_ROWS_BEHIND_A_HOLDER
    assert problem_of_sales() is None
    leave_dead_rows(postgresql_database, DEAD_ROWS_BEHIND_A_HOLDER + 1)
    problem = problem_seen()
    assert "autovacuum does not keep up" in problem.text
    assert problem.sql.startswith('ALTER TABLE "public"."Sales" SET (')
    with foreign_session(postgresql_database) as session:
        # the recommended SQL is valid
        for statement in problem.sql.split(";")[:-1]:
            session.execute(statement)
    poll_until(lambda: problem_of_sales() is None, 60, what="nothing is wrong after vacuum")


def test_young_transaction_is_no_problem(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, **SALES)
    leave_dead_rows(postgresql_database, DEAD_ROWS_BEHIND_A_HOLDER)
    with foreign_session(postgresql_database) as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM sqlqueue_app_instance")
        assert problem_of_sales() is None
        session.execute("ROLLBACK")


def test_other_databases_report_no_dead_rows(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, **SALES)
    assert problem_of_sales() is None
    assert check_dead_rows(databases=[sqlite_database.alias]) == []


def test_only_named_databases_are_checked(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, **SALES)
    postgresql_database.connection.close()
    assert check_dead_rows() == check_dead_rows(databases=["default"]) == []
    assert postgresql_database.connection.connection is None
