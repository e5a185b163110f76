"""`sqlqueue_retry` returns failed messages at once, even without a live worker, and reports the result."""

from __future__ import annotations

import io
import json
import uuid
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app.messages import headers as names
from sqlqueue_app.models import ActionResult, FailedMessage, FailureStatus, Operation, OperatorAction
from tests.commands.running import refused, run
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row, install_sales
from tests.support.filling import count, table
from tests.support.tables import execute


@pytest.fixture
def shop(queue_database: QueueDatabase) -> QueueDatabase:
    install_sales(queue_database)
    return queue_database


def retry(*arguments: str) -> str:
    out = io.StringIO()
    call_command("sqlqueue_retry", *arguments, stdout=out)
    return out.getvalue()


def retry_json(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(retry(*arguments, "--format", "json"))
    return found


def test_all_unresolved_messages_are_retried(shop: QueueDatabase) -> None:
    table(shop, "error").send([failed_row() for _ in range(3)])

    assert retry("--all") == "3 messages retried\n"

    assert (count(shop, "Sales"), count(shop, "error")) == (3, 0)
    action = OperatorAction.objects.get()
    assert (action.action, action.count, action.result, action.target) == ("retry", 3, ActionResult.DONE, "Unresolved")
    assert action.operation == Operation.objects.get()


def test_one_message_is_retried_by_either_id(shop: QueueDatabase) -> None:
    table(shop, "error").send([failed_row("m-1"), failed_row(), failed_row()])

    assert retry_json("--message", "m-1") == {
        "dry_run": False,
        "operation": str(Operation.objects.get().pk),
        "state": "completed",
        "total": 1,
        "retried": 1,
        "skipped": 0,
        "failed": 0,
        "reasons": [],
    }
    unique = FailedMessage.objects.filter(status=FailureStatus.UNRESOLVED)[0].pk
    retry("--message", str(unique).upper())

    sent = [json.loads(row.headers or "") for row in table(shop, "Sales").peek(9)]
    assert sent[0][names.MESSAGE_ID] == "m-1"
    assert sent[1][names.RETRY_UNIQUE_MESSAGE_ID] == str(unique)
    assert count(shop, "error") == 1


def test_an_asterisk_in_an_id_stands_for_itself(shop: QueueDatabase) -> None:
    table(shop, "error").send([failed_row("m*"), failed_row("m-1")])

    assert retry_json("--message", "m*")["retried"] == 1
    assert FailedMessage.objects.get(status=FailureStatus.UNRESOLVED).message_id == "m-1"


def test_whole_group_is_retried(shop: QueueDatabase) -> None:
    other = failed_row(more={names.ENCLOSED_MESSAGE_TYPES: "Shop.Cancel"})
    first, *_ = fail(shop, [failed_row(), failed_row(), other])

    assert retry("--group", str(first.type_group)) == "2 messages retried\n"
    assert retry("--group", str(first.type_group)) == "there is nothing to retry\n"
    assert count(shop, "error") == 1


def test_a_dry_run_changes_nothing(shop: QueueDatabase) -> None:
    rows = [failed_row(), failed_row(), failed_row(failed_q="Nowhere"), failed_row(failed_q=None)]
    table(shop, "error").send(rows)

    found = retry_json("--all", "--dry-run")

    assert (found["dry_run"], found["total"], found["eligible"], found["not_eligible"]) == (True, 4, 2, 2)
    assert list(found["targets"].values()) == [2]
    assert {each["reason"]: each["count"] for each in found["reasons"]} == {"no queue": 1, "no failed queue": 1}
    text = retry("--all", "--dry-run").splitlines()
    assert text[0] == "2 messages would be retried"
    assert "2 messages would not be" in text
    assert count(shop, "error") == 4
    assert not Operation.objects.exists()
    assert not OperatorAction.objects.exists()


def test_skipped_message_is_reported_with_the_reason(shop: QueueDatabase) -> None:
    table(shop, "error").send([failed_row(), failed_row(failed_q="Nowhere")])
    out = io.StringIO()

    with pytest.raises(CommandError, match="left 1 of 2 messages where they are") as caught:
        call_command("sqlqueue_retry", "--all", stdout=out)

    assert caught.value.returncode == 1
    first, second = out.getvalue().splitlines()
    assert first == "1 message retried"
    assert "skipped 1: The queue " in second
    assert "Nowhere" in second
    assert count(shop, "error") == 1


def test_repeated_retry_is_reported(shop: QueueDatabase) -> None:
    table(shop, "error").send([failed_row("m-1")])
    retry("--message", "m-1")
    out = io.StringIO()

    with pytest.raises(CommandError, match="left 1 of 1 message where they are"):
        call_command("sqlqueue_retry", "--message", "m-1", stdout=out)

    assert "Its status is: retry issued." in out.getvalue()
    assert count(shop, "Sales") == 1


def test_nothing_to_retry_is_no_error(shop: QueueDatabase) -> None:
    assert retry("--all") == "there is nothing to retry\n"
    document = retry_json("--all")
    assert (document["total"], document["operation"], document["state"]) == (0, None, "completed")


@pytest.fixture
def broken(shop: QueueDatabase) -> str:
    """The name of a second error queue, whose table is not one of a queue."""
    endpoints = shop.settings.SQLQUEUE["ENDPOINTS"]
    shop.configure(ENDPOINTS={**endpoints, "Stock": {"ERROR_QUEUE": "broken"}})
    execute(shop, f"CREATE TABLE {table(shop, 'broken').qualified} (x int)")
    return "broken"


def test_a_queue_that_cannot_be_read_ends_with_code_1(
    shop: QueueDatabase, broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # the rows of the other queue take several updates of the index
    monkeypatch.setattr("sqlqueue_app.failures.queries._BATCH", 1)
    table(shop, "error").send([failed_row() for _ in range(3)])
    out = io.StringIO()

    for arguments in (["--all", "--dry-run"], ["--all"], ["--all"]):
        with pytest.raises(CommandError, match=r"^1 error queue could not be read, so messages may be missing$") as caught:
            call_command("sqlqueue_retry", *arguments, stdout=out)
        assert caught.value.returncode == 1
        assert f"warning: {broken}: " in capsys.readouterr().err

    assert out.getvalue().splitlines()[::2] == ["3 messages would be retried", "3 messages retried"]
    assert out.getvalue().splitlines()[-1] == "there is nothing to retry"
    assert count(shop, "Sales") == 3


def test_the_message_asked_for_is_enough(shop: QueueDatabase, broken: str) -> None:
    del broken
    table(shop, "error").send([failed_row("m-1")])

    assert retry("--message", "m-1") == "1 message retried\n"


@pytest.mark.parametrize(
    "arguments", [["--message", "nothing"], ["--group", "nothing"], ["--group", str(uuid.uuid4())], ["--message", ""]]
)
def test_an_unknown_id_is_one_line(shop: QueueDatabase, arguments: list[str]) -> None:
    with pytest.raises(CommandError, match="there is no") as caught:
        retry(*arguments)
    assert caught.value.returncode == 2


def test_missing_selection_is_reported_with_options(sqlite_database: QueueDatabase) -> None:
    install_sales(sqlite_database)

    assert "one of the arguments --message --group --all is required" in refused(run(sqlite_database, "sqlqueue_retry"))


def test_the_error_queue_of_servicecontrol_is_left_alone(sqlite_database: QueueDatabase) -> None:
    install_sales(sqlite_database, ERROR_QUEUE_OWNER="servicecontrol")
    table(sqlite_database, "error").send([failed_row()])

    assert "ServiceControl" in refused(run(sqlite_database, "sqlqueue_retry", "--all"))
    assert count(sqlite_database, "error") == 1


def test_command_works_without_a_worker(shop: QueueDatabase) -> None:
    table(shop, "error").send([failed_row(), failed_row(failed_q="Nowhere")])

    ran = run(shop, "sqlqueue_retry", "--all", "--format", "json")

    assert ran.code == 1
    assert json.loads(ran.out)["retried"] == 1
    assert ran.err.splitlines() == ["CommandError: left 1 of 2 messages where they are, not retried"]


def test_command_accepts_keyword_arguments(shop: QueueDatabase) -> None:
    table(shop, "error").send([failed_row("m-1"), failed_row()])
    out = io.StringIO()

    call_command("sqlqueue_retry", message="m-1", stdout=out)
    call_command("sqlqueue_retry", all=True, dry_run=True, stdout=out)
    call_command("sqlqueue_retry", all=True, stdout=out)

    assert out.getvalue().count("1 message") == 3
    assert count(shop, "error") == 0
