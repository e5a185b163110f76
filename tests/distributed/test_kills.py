"""`kill -9` at every step of two-phase commit: afterwards all databases agree and have each effect once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sqlqueue_app import handles, send
from sqlqueue_app.models import DistributedTransaction
from sqlqueue_app.status.in_doubt import InDoubt
from tests.distributed import kill_app
from tests.distributed.conftest import OtherDatabase, run_checks
from tests.support.alerts import alerts, one_alert
from tests.support.bench import Bench
from tests.support.waiting import poll_until
from tests.support.worker_processes import address, wait_until_released, worker_process

pytestmark = pytest.mark.once


@pytest.fixture
def spreading(bench: Bench, second: OtherDatabase, third: OtherDatabase) -> Bench:
    # Two sessions that insert the same effect, one of them of a dead process, may deadlock.
    bench.configure(HANDLERS=[kill_app.MODULE], TRANSACTION_MODE="transaction_scope", IMMEDIATE_RETRIES=10)
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE effects (name varchar(20) NOT NULL)")
    send("Kill.Spread", {}, to=address(bench, "Sales"))
    return bench


def here(bench: Bench) -> list[str]:
    with bench.database.connection.cursor() as cursor:
        cursor.execute("SELECT name FROM effects")
        return [str(row[0]) for row in cursor.fetchall()]


def die(bench: Bench, step: str, once: Path) -> None:
    with worker_process(bench, "--until-empty", KILL_AT=step, KILL_ONCE=str(once)) as process:
        assert process.wait(60) == -signal.SIGKILL, process.communicate()
    wait_until_released(bench)


def settled(bench: Bench, second: OtherDatabase, third: OtherDatabase) -> bool:
    """Resolve again, then return whether nothing is in doubt.

    A session of a dead process that was waiting for a lock may have prepared since.
    """
    InDoubt(bench.database.alias).end_branches()
    is_recorded = DistributedTransaction.objects.using(bench.database.alias).exists()
    return not is_recorded and not second.prepared() and not third.prepared()


def all_agree(bench: Bench, second: OtherDatabase, third: OtherDatabase) -> None:
    handles("Kill.Spread")(kill_app.spread)
    bench.run()
    poll_until(lambda: settled(bench, second, third), 60, what="nothing is in doubt")
    assert (here(bench), second.effects(), third.effects()) == (["effect"], ["effect"], ["effect"])
    assert (bench.rows("Sales"), bench.rows("error")) == ([], [])


@pytest.mark.parametrize("step", kill_app.STEPS)
def test_all_databases_agree_after_a_kill(
    spreading: Bench, second: OtherDatabase, third: OtherDatabase, tmp_path: Path, step: str
) -> None:
    die(spreading, step, tmp_path / "killed")
    all_agree(spreading, second, third)


@pytest.mark.parametrize("left_at", ["third prepared", "decided"])
@pytest.mark.parametrize("step", kill_app.RESOLVING)
def test_resolving_process_may_be_killed(
    spreading: Bench, second: OtherDatabase, third: OtherDatabase, tmp_path: Path, left_at: str, step: str
) -> None:
    die(spreading, left_at, tmp_path / "killed")
    assert len(second.prepared()) == len(third.prepared()) == 1
    environment = spreading.database.child_environment(KILL_AT=step, KILL_ONCE=str(tmp_path / "killed again"))
    command = [sys.executable, "-W", "error", "-m", "tests.distributed.resolve_app"]
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == -signal.SIGKILL
    all_agree(spreading, second, third)


def test_a_transaction_left_by_a_killed_worker_is_one_alert_until_it_has_ended(
    spreading: Bench, second: OtherDatabase, third: OtherDatabase, tmp_path: Path
) -> None:
    die(spreading, "second prepared", tmp_path / "killed")
    in_doubt = InDoubt(spreading.database.alias)
    run_checks(spreading, in_doubt, minutes=2)
    found = one_alert("in_doubt", "In-doubt transaction", "A transaction has been prepared in the database second since ")
    assert any(each.endswith("/distributedtransaction/") for each in found.links)
    all_agree(spreading, second, third)
    run_checks(spreading, in_doubt, minutes=4)
    assert alerts().are_none
