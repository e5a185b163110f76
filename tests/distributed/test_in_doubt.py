"""Branches in doubt: which are resolved, which are left alone, and how they are reported."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue_app import handles
from sqlqueue_app.checks import check_other_databases, check_prepared_transactions
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dialects.postgresql import BranchId
from sqlqueue_app.models import DistributedTransaction, TwoPhaseCoordinator
from sqlqueue_app.monitoring.check_results import CheckRunner, ProcessChecks
from sqlqueue_app.monitoring.checks import BRANCHES, run
from sqlqueue_app.monitoring.snapshot import Snapshot
from sqlqueue_app.receiving.endpoint import transaction_log
from sqlqueue_app.status.in_doubt import CONNECT_SECONDS, InDoubt, Resolved
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.two_phase import prepare
from tests.distributed.conftest import OtherDatabase, other_database, run_checks
from tests.support import postgresql, postgresql_programs
from tests.support.alerts import alerts, one_alert
from tests.support.bench import Bench
from tests.support.pages import Markup, client_of
from tests.support.provisioning import PostgresqlProvider


class _Dies(Exception):
    """Aborts a transaction as the death of its process would."""


def leave_branch(bench: Bench, other: OtherDatabase, *, committed: bool = False, coordinator: uuid.UUID | None = None) -> BranchId:
    """Leave a branch as a process does that dies before or after its decision."""
    log = transaction_log(bench.database.alias)
    branch = BranchId(coordinator or log.coordinator(), uuid.uuid4(), 0)
    with suppress(_Dies), transaction.atomic(using=bench.database.alias):
        log.record(branch.transaction, "Sales", [other.alias])
        connection = connections[other.alias]
        with suppress(_Dies), transaction.atomic(using=other.alias):
            other.write(f"of {branch}")
            prepare(connection, branch)
            raise _Dies
        if not committed:
            raise _Dies
    return branch


def recorded(bench: Bench) -> list[uuid.UUID]:
    return list(DistributedTransaction.objects.using(bench.database.alias).values_list("id", flat=True))


def lose(other: OtherDatabase) -> None:
    """Make the database unreachable."""
    connections[other.alias].close()
    connections.settings[other.alias]["NAME"] = "not there"


def not_seen(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log levels of the reports that the second database cannot be queried."""
    events = [each for each in caplog.records if getattr(each, "event", "") == "branches_not_seen"]
    return [each.levelname for each in events if "'second'" in each.message]


def checks_of_each_minute(bench: Bench, in_doubt: InDoubt) -> CheckRunner:
    """A check runner whose clock advances by a minute with each check."""
    minutes, begin = count(), database_now(bench.database.alias)
    own = ProcessChecks(bench.database.alias)
    return CheckRunner(get_settings(), own, in_doubt, now=lambda: begin + timedelta(minutes=next(minutes)))


def test_branches_end_as_the_log_decided(bench: Bench, second: OtherDatabase, events: Callable[[], list[str]]) -> None:
    decided = leave_branch(bench, second, committed=True)
    lost = leave_branch(bench, second)
    assert second.prepared() == [str(decided), str(lost)]
    assert InDoubt(bench.database.alias).end_branches() == Resolved(committed=1, rolled_back=1)
    assert (second.effects(), second.prepared()) == ([f"of {decided}"], [])
    assert events().count("branch_resolved") == 2
    # The log was read before the branches ended, so the entry is only removed the next time.
    assert recorded(bench) == [decided.transaction]
    assert InDoubt(bench.database.alias).end_branches() == Resolved()
    assert recorded(bench) == []


def test_foreign_branches_are_left_alone(bench: Bench, second: OtherDatabase) -> None:
    foreign = leave_branch(bench, second, coordinator=uuid.uuid4())
    with connections["second"].cursor() as cursor:
        cursor.execute("BEGIN; INSERT INTO effects VALUES ('of somebody'); PREPARE TRANSACTION 'sqlqueue-of-somebody'")
    assert InDoubt(bench.database.alias).end_branches() == Resolved()
    assert second.prepared() == [str(foreign), "sqlqueue-of-somebody"]
    with connections["second"].cursor() as cursor:
        for gid in second.prepared():
            cursor.execute(f"ROLLBACK PREPARED '{gid}'")


def test_branch_of_an_open_transaction_is_left_alone(bench: Bench, second: OtherDatabase) -> None:
    if bench.database.vendor != "postgresql":
        pytest.skip("one writer: who asks waits for it")
    log = transaction_log(bench.database.alias)
    branch = BranchId(log.coordinator(), uuid.uuid4(), 0)
    outside = connections.create_connection(bench.database.alias)
    with outside.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(
            "INSERT INTO sqlqueue_app_distributedtransaction (id, queue, branches, decided_at) VALUES (%s, 'Sales', '[]', now())",
            [branch.transaction],
        )
        with suppress(_Dies), transaction.atomic(using="second"):
            second.write("there")
            prepare(connections["second"], branch)
            raise _Dies
        assert InDoubt(bench.database.alias).end_branches() == Resolved(open=1)
        assert second.prepared() == [str(branch)]
        cursor.execute("COMMIT")
    outside.close()
    assert InDoubt(bench.database.alias).end_branches() == Resolved(committed=1)
    assert second.effects() == ["there"]


def test_unavailable_database_is_logged_once_and_keeps_its_transactions(
    bench: Bench, second: OtherDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    branch = leave_branch(bench, second, committed=True)
    name = connections.settings["second"]["NAME"]
    lose(second)
    resolver = InDoubt(bench.database.alias)
    assert [resolver.end_branches(), resolver.end_branches()] == [Resolved()] * 2
    assert (not_seen(caplog), recorded(bench)) == (["WARNING"], [branch.transaction])
    connections.settings["second"]["NAME"] = name
    assert resolver.end_branches() == Resolved(committed=1)


def test_periodic_checks_log_an_outage_once_and_each_waiting_transaction(
    bench: Bench, second: OtherDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqlqueue.background")
    name = connections.settings["second"]["NAME"]
    in_doubt = InDoubt(bench.database.alias)
    watching = checks_of_each_minute(bench, in_doubt)
    transaction_log(bench.database.alias).coordinator()

    lose(second)
    for _ in range(3):
        assert BRANCHES.name in watching.run_due()
        in_doubt.end_branches()
    assert not_seen(caplog) == ["INFO"]

    connections.settings["second"]["NAME"] = name
    branch = leave_branch(bench, second, committed=True)
    lose(second)
    for _ in range(3):
        assert BRANCHES.name in watching.run_due()
        in_doubt.end_branches()
    assert (not_seen(caplog), recorded(bench)) == (["INFO", "WARNING"], [branch.transaction])

    connections.settings["second"]["NAME"] = name
    assert in_doubt.end_branches() == Resolved(committed=1)
    lose(second)
    watching.run_due()
    assert not_seen(caplog)[2:] == ["INFO"]
    connections.settings["second"]["NAME"] = name


def test_checks_reach_no_other_database_without_joining(
    bench: Bench, second: OtherDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqlqueue.background")
    assert BRANCHES.name in checks_of_each_minute(bench, InDoubt(bench.database.alias)).run_due()
    assert (not_seen(caplog), connections[second.alias].connection) == ([], None)
    assert not TwoPhaseCoordinator.objects.using(bench.database.alias).exists()


def test_silent_host_is_given_up_soon(bench: Bench, second: OtherDatabase) -> None:
    connections["second"].close()
    InDoubt(bench.database.alias).end_branches()
    raw = connections["second"].connection
    assert raw.info.get_parameters()["connect_timeout"] == str(CONNECT_SECONDS)
    assert "connect_timeout" not in connections["second"].settings_dict["OPTIONS"]


def test_admin_lists_branches_older_than_a_minute(bench: Bench, second: OtherDatabase) -> None:
    branch = leave_branch(bench, second)
    now = database_now(bench.database.alias)
    in_doubt = InDoubt(bench.database.alias)
    fresh = run(BRANCHES, Snapshot(get_settings(), now, in_doubt=in_doubt))
    assert (list(fresh.failing), list(fresh.passing)) == ([], [str(branch)])
    report = run(BRANCHES, Snapshot(get_settings(), now + timedelta(minutes=2), in_doubt=in_doubt))
    assert report.failing[str(branch)]["alias"] == "second"
    in_doubt.end_branches()


def test_a_branch_in_doubt_is_one_alert_until_it_has_ended(bench: Bench, second: OtherDatabase) -> None:
    in_doubt = InDoubt(bench.database.alias)
    leave_branch(bench, second)
    assert BRANCHES.name in run_checks(bench, in_doubt, minutes=2)
    one_alert("in_doubt", "In-doubt transaction : A transaction has been prepared in the database second since ")
    in_doubt.end_branches()
    run_checks(bench, in_doubt, minutes=4)
    assert alerts().are_none


def test_read_only_settings_are_reported(bench: Bench) -> None:
    bench.configure()
    warnings = check_other_databases()
    beside = (connections[alias] for alias in connections if alias != bench.database.alias)
    others = [each.alias for each in beside if each.vendor != "postgresql"]
    assert [(message.id, f"the database {alias!r}" in message.msg) for message, alias in zip(warnings, others, strict=True)] == [
        ("sqlqueue.I032", True) for _ in others
    ]
    bench.configure(TRANSACTION_MODE="sends_atomic_with_receive")
    assert check_other_databases() == []


@pytest.mark.once
def test_server_without_prepared_transactions_is_reported(bench: Bench) -> None:
    """A write on such a server fails only its message, and a check warns in advance."""
    server = postgresql.ThrowAwayServer(postgresql_programs.find_or_install(), [*postgresql.OPTIONS, "max_prepared_transactions=0"])
    provider = PostgresqlProvider(server)
    try:
        with other_database(provider, "second") as second:
            (warning,) = check_prepared_transactions(databases=["second"])
            assert warning.id == "sqlqueue.W037"
            assert check_prepared_transactions(databases=[bench.database.alias]) == []

            @handles("Test.Message")
            def handler(message: Any, context: Any) -> None:
                second.write("there")

            bench.configure(IMMEDIATE_RETRIES=3)
            bench.put_message("Test.Message")
            bench.run()
            (headers,) = bench.headers("error")
            assert "allows no prepared transactions" in headers["NServiceBus.ExceptionInfo.Message"]
            assert (second.effects(), recorded(bench)) == ([], [])
    finally:
        provider._admin.close()
        server.close()


# --- The page -----------------------------------------------------------------------------------------------------------------


def shown() -> str:
    return " ".join(Markup(client_of("viewer").get("/admin/sqlqueue_app/distributedtransaction/").content.decode()).text().split())


def test_each_transaction_is_listed_until_it_has_ended(bench: Bench, second: OtherDatabase) -> None:
    assert "No transactions are in doubt." in shown()
    decided = leave_branch(bench, second, committed=True)
    lost = leave_branch(bench, second)

    text = shown()
    for branch in (decided, lost):
        assert str(branch.transaction) in text
    assert text.count("To be committed") == 1
    assert text.count("will be rolled back") == 1
    assert "second" in text

    assert InDoubt(bench.database.alias).end_branches() == Resolved(committed=1, rolled_back=1)
    assert "No transactions are in doubt." in shown()


def test_unavailable_database_is_named(bench: Bench, second: OtherDatabase) -> None:
    branch = leave_branch(bench, second, committed=True)
    name = connections.settings["second"]["NAME"]
    lose(second)

    text = shown()
    assert str(branch.transaction) in text
    assert "Not available: second" in text

    connections.settings["second"]["NAME"] = name
    InDoubt(bench.database.alias).end_branches()
    InDoubt(bench.database.alias).end_branches()
    assert not DistributedTransaction.objects.using(bench.database.alias).exists()
