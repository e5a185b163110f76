"""The life of a failed message: it fails, is retried and handled, and its endpoint acknowledges it; or it fails again."""

from __future__ import annotations

from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.editing import edit_and_retry, read_editable
from sqlqueue_app.failures.index import catch_up
from sqlqueue_app.failures.operations import request_operation
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.models import FailedMessage, FailureStatus, managed_alias
from sqlqueue_app.status.events import Actor
from sqlqueue_app.tables.connections import database_now
from tests.support.bench import Bench, Calls


@pytest.fixture
def flaky(calls: Calls) -> list[bool]:
    """A handler of `Test.Message` that fails until the list is cleared."""
    broken = [True]

    def handle(message: Any, context: Any) -> None:
        calls.add(message)
        if broken:
            raise LookupError("not yet")

    handles("Test.Message")(handle)
    return broken


def indexed() -> FailedMessage:
    catch_up(get_settings(), limit=1_000, now=database_now(managed_alias()))
    return FailedMessage.objects.get()


def retry(failure: FailedMessage) -> None:
    request_operation(get_settings(), "retry", FailureSelection(ids=(failure.pk,)), actor=Actor("anna"))


def test_handled_retry_is_acknowledged_and_resolved(bench: Bench, calls: Calls, flaky: list[bool]) -> None:
    bench.put_message("Test.Message", {"n": 1})
    bench.run()
    failure = indexed()
    flaky.clear()

    retry(failure)
    assert indexed().status == FailureStatus.RETRY_ISSUED
    bench.run()

    assert indexed().status == FailureStatus.RESOLVED
    assert calls.seen == [{"n": 1}, {"n": 1}]
    assert bench.rows("error") == []  # the acknowledgement was consumed
    assert bench.rows("Sales") == []


def test_retry_that_fails_again_is_the_same_failure(bench: Bench, flaky: list[bool]) -> None:
    bench.put_message("Test.Message", {"n": 1})
    bench.run()
    failure = indexed()

    retry(failure)
    bench.run()

    again = indexed()
    assert (again.pk, again.status, again.attempts) == (failure.pk, FailureStatus.UNRESOLVED, 2)
    flaky.clear()
    retry(again)
    bench.run()
    assert indexed().status == FailureStatus.RESOLVED


def test_edited_message_is_handled_with_its_new_body(bench: Bench, calls: Calls, flaky: list[bool]) -> None:
    bench.put_message("Test.Message", {"n": 1})
    bench.run()
    failure = indexed()
    editable = read_editable(get_settings(), failure.pk)
    flaky.clear()

    edit_and_retry(get_settings(), failure.pk, row_version=failure.row_version or 0, headers=editable.headers, body='{"n": 2}')
    bench.run()

    assert calls.seen == [{"n": 1}, {"n": 2}]
    assert indexed().status == FailureStatus.RESOLVED
    assert bench.rows("error") == []


def test_edited_message_that_fails_is_another_failure(bench: Bench, flaky: list[bool]) -> None:
    """The original waits until the copy is handled, however often the copy fails and is retried before."""
    bench.put_message("Test.Message", {"n": 1})
    bench.run()
    failure = indexed()
    editable = read_editable(get_settings(), failure.pk)

    message_id = edit_and_retry(
        get_settings(), failure.pk, row_version=failure.row_version or 0, headers=editable.headers, body='{"n": 2}'
    )
    for attempts in (1, 2):
        bench.run()
        catch_up(get_settings(), limit=1_000, now=database_now(managed_alias()))
        copy = FailedMessage.objects.exclude(pk=failure.pk).get()
        assert (copy.message_id, copy.edit_of, copy.status) == (message_id, failure.pk, FailureStatus.UNRESOLVED)
        assert copy.attempts == attempts
        failure.refresh_from_db()
        assert failure.status == FailureStatus.RETRY_ISSUED
        if attempts == 2:
            flaky.clear()
        retry(copy)

    bench.run()
    catch_up(get_settings(), limit=1_000, now=database_now(managed_alias()))

    assert set(FailedMessage.objects.values_list("status", flat=True)) == {FailureStatus.RESOLVED}
