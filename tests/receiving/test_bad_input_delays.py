"""Delays that exceed the largest due time (docs: What happens when …)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app import RetryLater, handles, publish, send, send_many, subscribe
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError, WireFormatError
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.support.bench import Bench, Calls

MODES = pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"])
TOO_FAR: dict[str, dict[str, Any]] = {
    "the longest timedelta": {"delay": timedelta.max},
    "eight thousand years": {"delay": timedelta(days=365 * 8_000)},
    "the last datetime": {"deliver_at": datetime.max.replace(tzinfo=UTC)},
    "the last one in the west": {"deliver_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
}


def waiting(bench: Bench) -> int:
    book = get_settings().address_book(bench.database.vendor)
    return DelayedTable(bench.database.alias, delayed_address(book, "Sales")).count(100)[0]


def too_late(config: Any, context: Any) -> Any:
    """A policy with a delay beyond the largest due time."""
    return RetryLater(timedelta.max)


@pytest.mark.parametrize("when", TOO_FAR)
def test_message_with_excessive_delay_is_not_sent(bench: Bench, when: str) -> None:
    bench.database.configure(SEND_AS="Sales")
    for call in (
        lambda: send("Test.Message", {}, to="Sales", **TOO_FAR[when]),
        lambda: send_many([("Test.Message", {})] * 3, to="Sales", **TOO_FAR[when]),
    ):
        with pytest.raises(WireFormatError, match="after the year 9999, the last that a due time can be in"):
            call()
    assert (bench.rows("Sales"), waiting(bench)) == ([], 0)


@MODES
@pytest.mark.parametrize("batch", [1, 10])
def test_excessive_delay_fails_only_its_own_message(bench: Bench, calls: Calls, mode: str, batch: int) -> None:
    bench.configure(TRANSACTION_MODE=mode, BATCH_SIZE=batch)
    bench.install_queues("Billing")
    subscribe("Test.Placed", endpoint="Billing")

    @handles("Test.Order")
    def order(message: Any, context: Any) -> None:
        publish("Test.Placed", message)
        context.send("Test.Message", message, to="Sales", delay=timedelta.max if message["n"] == 1 else timedelta(days=1))

    for number in range(3):
        bench.put_message_of(number, "Test.Order", {"n": number})
    bench.run()

    ((headers, body),) = [(json.loads(row.headers or ""), row.body) for row in bench.rows("error")]
    assert json.loads(body or b"") == {"n": 1}
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"].endswith("WireFormatError")
    assert "ends after the year 9999" in headers["NServiceBus.ExceptionInfo.Message"]
    # in mode none a plain publish() has committed before the handler failed
    assert len(bench.rows("Billing")) == (3 if mode == "none" else 2)
    assert (waiting(bench), bench.rows("Sales")) == (2, [])


def test_default_policy_replaces_policy_with_excessive_delay(bench: Bench, events: Callable[[], list[str]]) -> None:
    bench.configure(RECOVERABILITY=f"{__name__}.too_late", DELAYED_RETRIES=1)

    @handles("Test.Fail")
    def fail(message: Any, context: Any) -> None:
        raise LookupError("always")

    bench.put_message("Test.Fail")
    bench.run()
    assert (waiting(bench), bench.rows("error"), bench.rows("Sales")) == (1, [], [])
    assert events().count("recoverability_failed") == 1


def test_excessive_delayed_retry_ends_in_error_queue(bench: Bench, calls: Calls, counting: object) -> None:
    bench.configure(DELAYED_RETRIES=1_000_000_000, DELAYED_RETRY_INCREASE=timedelta(days=3660))

    @handles("Test.Fail")
    def fail(message: Any, context: Any) -> None:
        raise LookupError("always")

    for retries in ("1500", "999999999"):
        bench.put_message("Test.Fail", **{"NServiceBus.Retries": retries})
        bench.run()
    bench.put_message("Test.Message")
    bench.run()
    assert [headers["NServiceBus.ExceptionInfo.Message"] for headers in bench.headers("error")] == ["always"] * 2
    assert (waiting(bench), len(calls.seen)) == (0, 1)


def test_settings_allow_delays_of_at_most_ten_years(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match=r"DELAYED_RETRY_INCREASE.* expected at most 316224000 seconds"):
        bench.configure(DELAYED_RETRY_INCREASE=timedelta.max)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--delay", "1e300"), "expected a number of seconds, got '1e300'"),
        (("--delay", "nan"), "expected a number of seconds, got 'nan'"),
        (("--delay", "-1"), "expected seconds of 0 or more"),
        (("--delay", "1e12"), "ends after the year 9999"),
        (("--ttbr", "1e12"), r"longer than \.NET can hold"),
    ],
)
def test_command_reports_excessive_delay(sqlite_bench: Bench, arguments: tuple[str, ...], reason: str) -> None:
    sqlite_bench.database.configure(SEND_AS="Sales")
    with pytest.raises(CommandError, match=reason):
        call_command("sqlqueue_send", "Sales", "--type", "Test.Message", "--body", "{}", *arguments)
    assert (sqlite_bench.rows("Sales"), waiting(sqlite_bench)) == ([], 0)
