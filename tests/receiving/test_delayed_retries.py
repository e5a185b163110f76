"""Delayed retries: rounds of attempts with a wait between them, exact for any number of competing processes.

See docs/internals/endpoints.md#retry-policy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sqlqueue_app import RetryLater, handles, send_many
from sqlqueue_app.messages.times import format_time, parse_time
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.sending.dispatcher import notified_of_delays
from sqlqueue_app.tables.rows import NewRow
from tests.support.bench import Bench, Calls
from tests.support.worker_processes import address, prepare, worker_process

ROW = "11111111-2222-3333-4444-555555555555"
chosen: list[Any] = []


def policy(config: Any, context: Any) -> Any:
    return chosen[-1]


def delayed(bench: Bench) -> list[tuple[dict[str, Any], bytes]]:
    """Headers and bodies of the rows in the delayed table of Sales."""
    with bench.database.connection.cursor() as cursor:
        cursor.execute('SELECT headers, body FROM "Sales.Delayed"')
        return [(json.loads(headers), bytes(body)) for headers, body in cursor.fetchall()]


@pytest.mark.parametrize("mode", ["receive_only", "sends_atomic_with_receive", "transaction_scope"])
def test_failing_message_is_tried_in_rounds_and_then_moved(
    bench: Bench, failing: Calls, events: Callable[[], list[str]], mode: str
) -> None:
    bench.configure(TRANSACTION_MODE=mode, IMMEDIATE_RETRIES=1, DELAYED_RETRIES=2, DELAYED_RETRY_INCREASE=0)
    bench.put_message("Test.Message", {"a": 1}, x="y")
    bench.run()

    assert failing.seen == [1, 2] * 3
    (headers,) = bench.headers("error")
    assert (headers["x"], headers["NServiceBus.MessageId"]) == ("y", ROW)
    assert "NServiceBus.Retries" not in headers
    assert parse_time(headers["NServiceBus.Retries.Timestamp"]) <= datetime.now(UTC)
    (row,) = bench.rows("error")
    assert json.loads(row.body or b"") == {"a": 1}
    logged = [event for event in events() if event in ("immediate_retry", "delayed_retry", "moved_to_error_queue")]
    assert logged == [
        "immediate_retry",
        "delayed_retry",
        "immediate_retry",
        "delayed_retry",
        "immediate_retry",
        "moved_to_error_queue",
    ]
    assert delayed(bench) == []


@pytest.mark.parametrize("batch_size", [1, 2])
def test_delayed_retry_wakes_the_mover_of_its_process(bench: Bench, failing: Calls, batch_size: int) -> None:
    bench.configure(DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=3600, BATCH_SIZE=batch_size)
    for number in range(2):
        bench.put_message_of(number, "Test.Message")
    notified: list[float] = []
    with notified_of_delays(bench.database.alias, notified.append):
        bench.run()
    assert notified == [3600.0, 3600.0]


def test_satellite_message_returns_to_its_satellite(bench: Bench, failing: Calls) -> None:
    satellites = {"Sales.Priority": {"MAX_CONCURRENCY": 1}}
    bench.configure(SATELLITES=satellites, IMMEDIATE_RETRIES=1, DELAYED_RETRIES=2, DELAYED_RETRY_INCREASE=0)
    bench.put(json.dumps({"NServiceBus.EnclosedMessageTypes": "Test.Message"}), b"{}", queue="Sales.Priority")
    bench.run()

    assert failing.seen == [1, 2] * 3
    assert [headers["NServiceBus.FailedQ"] for headers in bench.headers("error")] == [address(bench, "Sales.Priority")]


def test_waiting_message_is_complete_in_the_delayed_table(bench: Bench, failing: Calls) -> None:
    bench.configure(DELAYED_RETRIES=3, DELAYED_RETRY_INCREASE=3600)
    bench.put_message("Test.Message", {"a": 1}, x="y")
    bench.run()

    ((headers, body),) = delayed(bench)
    assert json.loads(body) == {"a": 1}
    assert (headers["x"], headers["NServiceBus.Retries"], headers["NServiceBus.MessageId"]) == ("y", "1", ROW)
    assert headers["NServiceBus.SqlServer.ForwardDestination"] == address(bench, "Sales")
    # As in NServiceBus: only the error queue has the reason of the failure.
    assert not [name for name in headers if name.startswith("NServiceBus.ExceptionInfo")]
    assert bench.rows("Sales") == bench.rows("error") == []


def test_values_of_columns_are_kept_in_the_headers(bench: Bench, failing: Calls) -> None:
    if bench.database.vendor == "postgresql":
        pytest.skip("the tables of PostgreSQL have no such columns")
    bench.configure(DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=3600)
    headers = json.dumps({"NServiceBus.EnclosedMessageTypes": "Test.Message"})
    bench.table("Sales").send([NewRow(ROW, headers, b"{}", "asked before", "Web")])
    bench.run()

    ((kept, _),) = delayed(bench)
    assert (kept["NServiceBus.CorrelationId"], kept["NServiceBus.ReplyToAddress"]) == ("asked before", "Web")


def test_message_gets_no_retry_a_day_after_its_last_one(bench: Bench, failing: Calls) -> None:
    bench.configure(DELAYED_RETRIES=3)
    long_ago = format_time(datetime.now(UTC) - timedelta(days=2))
    bench.put_message("Test.Message", **{"NServiceBus.Retries": "1", "NServiceBus.Retries.Timestamp": long_ago})
    bench.run()

    assert len(bench.rows("error")) == 1
    assert delayed(bench) == []


@pytest.mark.parametrize("text", ["", "-1", "none", "²", "9" * 40])
def test_invalid_retry_count_is_ignored(bench: Bench, failing: Calls, text: str) -> None:
    bench.configure(DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=3600)
    bench.put_message("Test.Message", **{"NServiceBus.Retries": text, "NServiceBus.Retries.Timestamp": text})
    bench.run()

    assert [headers["NServiceBus.Retries"] for headers, _ in delayed(bench)] == ["1"]


def test_unrecoverable_messages_do_not_wait(bench: Bench) -> None:
    bench.configure(DELAYED_RETRIES=3)
    bench.put_message("Test.Unknown")
    bench.run()

    assert len(bench.rows("error")) == 1
    assert delayed(bench) == []


def test_policy_chooses_the_delay(bench: Bench, failing: Calls) -> None:
    bench.configure(RECOVERABILITY=f"{__name__}.policy")
    chosen[:] = [RetryLater(timedelta(hours=1))]
    bench.put_message("Test.Message")
    bench.run()

    assert [headers["NServiceBus.Retries"] for headers, _ in delayed(bench)] == ["1"]


def test_failing_message_of_a_batch_waits_and_the_others_are_handled(bench: Bench, calls: Calls) -> None:
    bench.configure(BATCH_SIZE=3, DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=3600)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["number"])
        if message["number"] == 1:
            raise LookupError

    for number in range(3):
        bench.put_message_of(number, "Test.Message", {"number": number})
    bench.run(StopSignal(), max_concurrency=1)

    assert calls.seen == [0, 1, 2]
    assert len(delayed(bench)) == 1
    assert bench.rows("Sales") == bench.rows("error") == []


@pytest.mark.parametrize("processes", [4])
def test_four_processes_make_exactly_the_configured_attempts(bench: Bench, tmp_path: Path, processes: int) -> None:
    prepare(bench, IMMEDIATE_RETRIES=1, DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=0, MAX_CONCURRENCY=2)
    tries = tmp_path / "tries"
    messages = 25
    bodies = [{"number": number, "tries": str(tries)} for number in range(messages)]
    send_many("Worker.Fail", bodies, to=address(bench, "Sales"))
    with worker_process(bench, "--processes", str(processes), "--until-empty") as process:
        # Its log is longer than a pipe holds: read it while the process runs.
        printed = process.communicate(timeout=120)
    assert process.returncode == 0, printed

    # (1 + 1) * (1 + 1); four real NServiceBus instances make 4 to 13.
    assert Counter(tries.read_text().split()) == {str(number): 4 for number in range(messages)}
    assert len(bench.rows("error")) == messages
    assert delayed(bench) == []
