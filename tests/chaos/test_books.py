"""The accounting detects a lost message, one handled twice and one that was never sent."""

from __future__ import annotations

from pathlib import Path

from django.db import connections

from sqlqueue_app import send
from tests.chaos.app import TO_SALES
from tests.chaos.books import Account, account
from tests.chaos.ledger import is_for_ledger
from tests.chaos.ledger_books import LedgerAccount, ledger_account
from tests.chaos.load import Senders, note, prepare
from tests.chaos.workers import finish
from tests.support.bench import Bench
from tests.support.other_databases import OtherDatabase


def handled(bench: Bench, log: Path) -> Account:
    """Some handled messages, one of which failed."""
    prepare(bench, DELAYED_RETRIES=0)
    send(TO_SALES, {"id": "a-failed-one", "way": "never"})
    note(bench.database.alias, [("a-failed-one", "never")])
    with Senders(bench, limit=40, a_second=1_000_000):
        pass
    finish(bench, log)
    return account(bench)


def change(bench: Bench, statement: str) -> Account:
    with bench.database.connection.cursor() as cursor:
        cursor.execute(statement)
    return account(bench)


def test_wrong_rows_are_found(sqlite_bench: Bench, tmp_path: Path) -> None:
    bench = sqlite_bench
    found = handled(bench, tmp_path / "worker.log")
    assert found.faults == {}
    assert found.why_failed["never, LookupError"] >= 1
    assert "a-failed-one" in found.failed

    assert len(change(bench, "INSERT INTO effects SELECT * FROM effects LIMIT 1").twice) == 1
    change(bench, "DELETE FROM effects WHERE rowid = (SELECT max(rowid) FROM effects)")
    assert len(change(bench, "DELETE FROM effects WHERE rowid = 1").lost) == 1
    assert change(bench, "INSERT INTO effects VALUES ('of-a-rollback', 1)").strangers == ["of-a-rollback"]
    assert change(bench, "INSERT INTO effects VALUES ('a-failed-one', 1)").wrongly_handled == ["a-failed-one"]
    assert "a-failed-one" in account(bench).twice


def test_wrong_ledger_entries_are_found(bench: Bench, ledger: OtherDatabase) -> None:
    prepare(bench)
    units = [str(number) for number in range(100)]
    theirs = sorted(unit for unit in units if is_for_ledger(unit))
    with bench.database.connection.cursor() as cursor:
        cursor.executemany("INSERT INTO effects VALUES (%s, 1)", [[unit] for unit in units])
    assert ledger_account(bench, ledger).lost == theirs
    for unit in theirs:
        ledger.write(unit)
    assert ledger_account(bench, ledger) == LedgerAccount(in_both=len(theirs), resolved={"committed": 0, "rolled back": 0})

    ledger.write(theirs[0])
    ledger.write("of-a-rollback")
    with connections[ledger.alias].cursor() as cursor:
        cursor.execute("BEGIN; INSERT INTO effects VALUES ('kept'); PREPARE TRANSACTION 'sqlqueue-of-the-dead'")
    try:
        assert ledger_account(bench, ledger).faults == {
            "twice in the ledger": [theirs[0]],
            "strangers in the ledger": ["of-a-rollback"],
            "undecided": ["prepared sqlqueue-of-the-dead"],
        }
    finally:
        with connections[ledger.alias].cursor() as cursor:
            cursor.execute("ROLLBACK PREPARED 'sqlqueue-of-the-dead'")
