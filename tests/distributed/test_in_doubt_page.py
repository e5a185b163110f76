"""The page of in-doubt transactions: which there are, how they end, and what they wait for."""

from __future__ import annotations

from django.db import connections

from sqlqueue_app.models import DistributedTransaction
from sqlqueue_app.status.in_doubt import InDoubt, Resolved
from tests.distributed.conftest import OtherDatabase
from tests.distributed.test_in_doubt import leave_branch, lose
from tests.support.bench import Bench
from tests.support.pages import Markup, client_of

PAGE = "/admin/sqlqueue_app/distributedtransaction/"


def shown() -> str:
    return " ".join(Markup(client_of("viewer").get(PAGE).content.decode()).text().split())


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


def test_a_database_that_is_away_is_named(bench: Bench, second: OtherDatabase) -> None:
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
