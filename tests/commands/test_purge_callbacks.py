"""`sqlqueue_purge_callbacks` removes the queues of dead instances, never those of live ones."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from sqlqueue_app.conf import get_settings
from sqlqueue_app.installation import planned_tables
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import PermissionDenied
from sqlqueue_app.models import CallbackQueue, Instance
from sqlqueue_app.receiving.instances import claim_callback_queue
from sqlqueue_app.status import instances
from sqlqueue_app.status.instances import gone_callback_queues, remove_callback_queue
from sqlqueue_app.tables.installation import drop_queue, install_tables
from tests.commands.running import refused, run, run_on_terminal
from tests.support.databases import QueueDatabase
from tests.support.filling import install, message, table


def instance(database: QueueDatabase, queue: str | None, *, silent: float = 3600, name: str = "gone", pid: int = 1) -> Instance:
    last_heartbeat = timezone.now() - timedelta(seconds=silent)
    return Instance.objects.using(database.alias).create(
        endpoint="Sales",
        name=name,
        host="elsewhere",
        pid=pid,
        callback_queue=queue,
        started_at=last_heartbeat,
        heartbeat_at=last_heartbeat,
    )


def left(database: QueueDatabase) -> list[str]:
    names = ("Sales.here", "Sales.here-2", "Sales.gone", "Sales.gone-2")
    return [name for name in names if table(database, name).exists()]


def purge(*arguments: str) -> Any:
    out = io.StringIO()
    call_command("sqlqueue_purge_callbacks", "--format", "json", *arguments, stdout=out)
    return json.loads(out.getvalue())["callback_queues"]


@pytest.fixture
def pools(queue_database: QueueDatabase) -> QueueDatabase:
    """The pools of the machine `here` (this one) and of `gone`."""
    install(queue_database)
    install_tables(queue_database.alias, planned_tables(get_settings(), queue_database.vendor, None, ["gone"]))
    return queue_database


def test_queues_of_a_dead_instance_are_dropped_with_their_messages(pools: QueueDatabase) -> None:
    instance(pools, "Sales.gone")
    table(pools, "Sales.gone").send([message(), message()])
    found = purge("--yes")
    assert [(each["queue"], each["messages"], each["removed"]) for each in found] == [
        ("Sales.gone", 2, True),
        ("Sales.gone-2", 0, True),
    ]
    assert found[0]["silent_seconds"] > 3590
    assert found[0]["instance"] == "gone"
    assert left(pools) == ["Sales.here", "Sales.here-2"]
    assert not Instance.objects.using(pools.alias).exists()
    assert purge("--yes") == []


def test_queues_of_live_instances_are_kept(pools: QueueDatabase) -> None:
    instance(pools, "Sales.gone", silent=0)
    instance(pools, "Sales.here", name="here", silent=3600)
    assert [each["queue"] for each in purge("--yes")] == ["Sales.here"]
    assert left(pools) == ["Sales.here-2", "Sales.gone", "Sales.gone-2"]


def test_only_the_dead_processes_queue_is_dropped_on_a_live_machine(pools: QueueDatabase) -> None:
    instance(pools, "Sales.gone", silent=0)
    instance(pools, "Sales.gone-2", silent=3600, pid=2)
    assert [each["queue"] for each in purge("--yes")] == ["Sales.gone-2"]
    assert left(pools) == ["Sales.here", "Sales.here-2", "Sales.gone"]


def test_only_old_enough_queues_are_dropped(pools: QueueDatabase) -> None:
    instance(pools, "Sales.gone", silent=3600)
    assert purge("--yes", "--older-than", "7200") == []
    assert len(purge("--yes", "--older-than", "60")) == 2


def test_dry_run_only_lists(pools: QueueDatabase) -> None:
    instance(pools, "Sales.gone")
    assert [each["removed"] for each in purge("--dry-run")] == [False, False]
    assert "Sales.gone" in left(pools)


def test_queue_leased_meanwhile_is_kept(pools: QueueDatabase) -> None:
    instance(pools, "Sales.gone")
    first, second = gone_callback_queues(get_settings())
    lease = claim_callback_queue("Sales.gone", alias=pools.alias, endpoint="Sales", name="gone")
    assert lease is not None
    assert (remove_callback_queue(first), remove_callback_queue(second)) == (False, True)
    assert left(pools) == ["Sales.here", "Sales.here-2", "Sales.gone"]


def test_row_without_table_is_deleted(pools: QueueDatabase) -> None:
    instance(pools, "Sales.nowhere", name="nowhere")
    assert [(each["queue"], each["messages"], each["removed"]) for each in purge("--yes")] == [("Sales.nowhere", None, True)]
    assert not Instance.objects.using(pools.alias).exists()


@pytest.mark.parametrize("name", ["Sales", "error", "Sales.Priority", "accounts", "sqlqueue_app_instance"])
def test_a_row_cannot_name_another_table(pools: QueueDatabase, name: str) -> None:
    with pools.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE accounts (id int, headers varchar(10), body varchar(10))")
    instance(pools, name, name="odd")
    assert purge("--yes") == []
    assert table(pools, name).exists()


def test_queue_that_cannot_be_dropped_stays_for_the_next_run(pools: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    instance(pools, "Sales.gone")
    CallbackQueue.objects.using(pools.alias).create(
        callback_queue="Sales.gone", endpoint="Sales", name="gone", used_at=timezone.now() - timedelta(hours=1)
    )

    def refuse(alias: str, address: QueueAddress) -> bool:
        if address.table == "Sales.gone":
            raise PermissionDenied("must be owner of\nthe table")
        return drop_queue(alias, address)

    monkeypatch.setattr(instances, "drop_queue", refuse)
    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(CommandError, match="1 queue could not be dropped") as failed:
        call_command("sqlqueue_purge_callbacks", "--yes", stdout=out, stderr=err)

    assert failed.value.returncode == 1
    assert "removed 1 of 2" in out.getvalue()
    assert "Sales.gone stays: must be owner of the table" in err.getvalue()
    assert left(pools) == ["Sales.here", "Sales.here-2", "Sales.gone"]
    # A row of this process would be reported as a dead one after 40 seconds.
    assert not Instance.objects.using(pools.alias).exists()
    assert [(each["queue"], each["silent_seconds"] > 3590) for each in purge("--dry-run")] == [("Sales.gone", True)]


def test_command_lists_and_refuses_without_a_terminal(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    instance(sqlite_database, "Sales.here-2", name="here")
    ran = run(sqlite_database, "sqlqueue_purge_callbacks")
    assert (ran.code, "Sales.here-2" in ran.out, "add --yes" in ran.err) == (2, True, True)
    assert "Sales.here-2" in left(sqlite_database)
    assert "seconds" in refused(run(sqlite_database, "sqlqueue_purge_callbacks", "--older-than", "long"))


@pytest.mark.parametrize(("typed", "code", "gone"), [("1", 0, True), ("yes", 2, False)])
def test_terminal_prompts_for_the_number(sqlite_database: QueueDatabase, typed: str, code: int, gone: bool) -> None:
    install(sqlite_database)
    instance(sqlite_database, "Sales.here-2", name="here")
    ran = run_on_terminal(sqlite_database, "sqlqueue_purge_callbacks", typed=typed)

    assert ran.code == code
    assert "Type the number of queues (1)" in ran.err
    assert ("removed 1 of 1" in ran.out) is gone
    assert ("Sales.here-2" not in left(sqlite_database)) is gone


def test_no_dead_instance_means_no_prompt(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    out = io.StringIO()
    call_command("sqlqueue_purge_callbacks", stdout=out)
    assert out.getvalue() == "no callback queue of an instance that is gone\n"
    instance(sqlite_database, "Sales.here", name="here")
    with pytest.raises(CommandError, match="add --yes"):
        call_command("sqlqueue_purge_callbacks", stdout=out)
