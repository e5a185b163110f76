"""Delayed messages that are announced: the mover polls their table for new or due messages, and seldom otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command

from sqlqueue_app.conf import get_settings
from sqlqueue_app.policies.polling import IDLE_WAIT_SECONDS
from sqlqueue_app.receiving.delayed import POLL_SECONDS, QUIET_SECONDS, DelayedMover, DelayedWakeUp, due_messages_of
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.waiting import WakeUp, listening
from tests.support.bench import Bench
from tests.support.delayed_tables import FORWARD, MESSAGE, PAST, ManualMover, delayed, office_of, put, waiting
from tests.support.tables import execute
from tests.support.waiting import poll_until
from tests.support.worker_processes import address

NEVER = 3600.0


@pytest.fixture
def office(postgresql_bench: Bench) -> Bench:
    """Two delayed tables, of Sales and of Web; both have the trigger."""
    office = office_of(postgresql_bench)
    office.configure(routes={"Test.*": "Sales", "Other.*": "Billing"})
    call_command("sqlqueue_install", verbosity=0)
    return office


def covered(mover: ManualMover) -> dict[str, DelayedWakeUp]:
    for each in mover.mover.wake_ups:
        each.push_enabled = True
    return {each.queue: each for each in mover.mover.wake_ups}


def test_announced_table_rests_until_its_next_message_is_due(office: Bench) -> None:
    mover = ManualMover()
    covered(mover)
    assert mover.run() == IDLE_WAIT_SECONDS
    put(office, datetime.now(UTC) + timedelta(seconds=5), **{FORWARD: address(office, "Billing")})
    assert mover.run(1.0) == pytest.approx(IDLE_WAIT_SECONDS - 1.0)  # without a notification
    assert 3 < mover.run(IDLE_WAIT_SECONDS) <= 5
    assert waiting(office) == 1


def test_announcement_polls_only_its_own_table(office: Bench) -> None:
    mover = ManualMover()
    wake_ups = covered(mover)
    mover.run()
    put(office, PAST, "Sales", **{FORWARD: address(office, "Billing")})
    put(office, PAST, "Web", **{FORWARD: address(office, "Billing")})
    wake_ups["Web.Delayed"].wake()

    mover.run(0.1)

    assert (waiting(office, "Web"), waiting(office, "Sales")) == (0, 1)
    wake_ups["Sales.Delayed"].wake()
    mover.run(0.1)
    assert len(office.rows("Billing")) == 2


def test_table_without_trigger_is_polled_each_second_again(office: Bench) -> None:
    mover = ManualMover()
    wake_up = covered(mover)["Web.Delayed"]
    assert mover.run() == IDLE_WAIT_SECONDS
    wake_up.push_enabled = False
    wake_up.wake_all()
    assert mover.run(1.0) == POLL_SECONDS
    put(office, PAST, **{FORWARD: address(office, "Billing")})
    mover.run(POLL_SECONDS)
    assert len(office.rows("Billing")) == 1


def test_check_for_due_messages_polls_every_table(office: Bench) -> None:
    mover = ManualMover()
    covered(mover)
    mover.run()
    put(office, PAST, **{FORWARD: address(office, "Billing")})
    assert mover.mover.anything_due()
    mover.run()
    assert len(office.rows("Billing")) == 1


def test_announcements_end_when_none_came_for_a_while(office: Bench) -> None:
    mover = ManualMover()
    wake_up = covered(mover)["Web.Delayed"]
    assert wake_up.is_quiet
    wake_up.wake()
    assert not wake_up.is_quiet
    mover.run(QUIET_SECONDS)
    assert wake_up.is_quiet


def by_insert(office: Bench, name: str) -> None:
    """Insert as another process does, for example NServiceBus."""
    headers = json.dumps({**MESSAGE, FORWARD: address(office, "Billing")})
    table = delayed(office, name).qualified
    execute(office.database, f"INSERT INTO {table} (headers, body, due) VALUES (%s, '', now())", headers)


def test_messages_of_other_processes_wake_the_mover(office: Bench) -> None:
    """The mover of this test sleeps until it is woken, without a time limit."""
    slept: list[float] = []

    def wait(seconds: float) -> None:
        slept.append(seconds)
        assert mover._wake.wait(60)

    stop = StopSignal()
    mover = DelayedMover(due_messages_of(get_settings()), stop, wait=wait)
    receiver = WakeUp("Sales", office.table("Sales").qualified, stop, idle_wait_seconds=NEVER)
    with listening(office.database.alias, [receiver], stop, also=mover.wake_ups), mover.running():
        poll_until(lambda: bool(slept) and slept[-1] > POLL_SECONDS, 60)
        for expected, name in enumerate(("Web", "Sales", "Web"), 1):
            by_insert(office, name)
            poll_until(lambda expected=expected: len(office.rows("Billing")) == expected, 60)  # type: ignore[misc]
            poll_until(lambda: slept[-1] > POLL_SECONDS, 60)
        stop.set()


def test_mover_does_not_listen_without_a_receiver(postgresql_bench: Bench, events: Callable[[], list[str]]) -> None:
    mover = ManualMover()
    with listening(postgresql_bench.database.alias, [None], mover.stop, also=mover.mover.wake_ups):
        assert mover.run() == POLL_SECONDS
    assert events() == []
