"""Edit and retry: one copy with the changes, and locked parts stay unchanged."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.editing import (
    LOCKED,
    Editable,
    EditRefused,
    edit_and_retry,
    is_locked,
    read_editable,
    read_edited_headers,
)
from sqlqueue_app.failures.operations import preview
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages import headers as names
from sqlqueue_app.models import FailedAttempt, FailedMessage
from sqlqueue_app.status.queues import address_of_queue
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row, install_sales, statuses
from tests.support.filling import count, table

JSON = {names.CONTENT_TYPE: "application/json"}
XML = {names.CONTENT_TYPE: "text/xml"}


@pytest.fixture
def shop(queue_database: QueueDatabase) -> QueueDatabase:
    install_sales(queue_database)
    return queue_database


def failed(shop: QueueDatabase, body: bytes = b'{"order": 1}', more: dict[str, str] | None = None) -> FailedMessage:
    (failure,) = fail(shop, [failed_row(body=body, more={**JSON, **(more or {})})])
    return failure


def read(failure: FailedMessage) -> Editable:
    return read_editable(get_settings(), failure.pk)


def send(failure: FailedMessage, body: str = '{"order": 2}', headers: dict[str, str | None] | None = None, **more: Any) -> str:
    known = {"row_version": failure.row_version, "headers": read(failure).headers if headers is None else headers, "body": body}
    return edit_and_retry(get_settings(), failure.pk, **{**known, **more})


def test_edited_copy_is_sent(shop: QueueDatabase) -> None:
    failure = failed(shop, more={"Custom": "old", names.RETRY_UNIQUE_MESSAGE_ID: str(uuid.uuid4()), names.CONVERSATION_ID: "c"})
    editable = read(failure)
    assert editable.body == '{"order": 1}'
    assert read_edited_headers(editable.headers_text) == editable.headers

    FailedMessage.objects.update(operation=uuid.uuid4())
    message_id = send(failure, headers={**editable.headers, "Custom": "new", "Added": "ä"})

    (row,) = table(shop, "Sales").peek(9)
    sent = json.loads(row.headers or "")
    assert row.body == b'{"order": 2}'
    assert sent.pop(names.MESSAGE_ID) == message_id != editable.locked[names.MESSAGE_ID]
    assert sent.pop(names.RETRY_ACKNOWLEDGEMENT_QUEUE)
    assert sent == {
        names.CORRELATION_ID: "the-correlation",
        names.CONVERSATION_ID: "c",
        names.IMMEDIATE_RETRIES: "4",
        names.REPLY_TO_ADDRESS: "Web",
        names.ENCLOSED_MESSAGE_TYPES: "Shop.PlaceOrder",
        names.CONTENT_TYPE: "application/json",
        names.EDIT_OF: str(failure.pk),
        names.RETRY_UNIQUE_MESSAGE_ID: str(failure.pk),
        "Custom": "new",
        "Added": "ä",
    }
    assert count(shop, "error") == 0
    assert statuses(failure) == ["RETRY_ISSUED"]
    failure.refresh_from_db()
    # The edit is not part of the earlier retry operation.
    assert (failure.row_version, failure.operation) == (None, None)
    assert uuid.UUID(failure.retry_row_id) == row.id
    attempt = FailedAttempt.objects.get()
    assert (attempt.row_version, attempt.copy_id, attempt.retried_at) == (None, message_id, failure.status_at)


def test_edited_copy_keeps_what_only_columns_held(sqlite_database: QueueDatabase) -> None:
    """Transport 1.x names the reply-to address in no header, not even in the error queue."""
    install_sales(sqlite_database)
    held = {names.REPLY_TO_ADDRESS: "Web", names.CORRELATION_ID: "asked before"}
    row = failed_row(more=JSON)
    headers = {name: value for name, value in json.loads(row.headers).items() if name not in held}
    in_columns = replace(row, headers=json.dumps(headers), reply_to_address="Web", correlation_id="asked before")
    (failure,) = fail(sqlite_database, [in_columns])

    assert read(failure).headers[names.REPLY_TO_ADDRESS] == "Web"
    send(failure)

    (sent,) = table(sqlite_database, "Sales").peek(9)
    assert {name: json.loads(sent.headers or "").get(name) for name in held} == held
    assert (sent.reply_to_address, sent.correlation_id) == ("Web", "asked before")


def test_copy_for_a_forwarder_names_the_final_queue(shop: QueueDatabase) -> None:
    install_sales(shop, ENDPOINTS={"Sales": {"CALLBACKS": False}, "Adapter": {"CALLBACKS": False}})
    failure = failed(shop, more={names.RETRY_TO: "Adapter", names.TARGET_ENDPOINT_ADDRESS: "old"})

    send(failure)

    (row,) = table(shop, "Adapter").peek(9)
    assert json.loads(row.headers or "")[names.TARGET_ENDPOINT_ADDRESS] == address_of_queue("Sales")


def test_message_is_edited_only_once(shop: QueueDatabase) -> None:
    failure = failed(shop)
    headers = read(failure).headers
    send(failure, headers=headers)

    with pytest.raises(EditRefused, match="retry issued"):
        send(failure, headers=headers)
    with pytest.raises(EditRefused, match="retry issued"):
        read(failure)
    assert count(shop, "Sales") == 1


def test_message_that_failed_again_meanwhile_is_not_edited(shop: QueueDatabase) -> None:
    failure = failed(shop)

    with pytest.raises(EditRefused, match="failed again"):
        send(failure, row_version=(failure.row_version or 0) + 1)
    assert statuses(failure) == ["UNRESOLVED"]
    assert count(shop, "error") == 1


@pytest.mark.parametrize("name", [*sorted(LOCKED), "NServiceBus.ExceptionInfo.Data.x"])
def test_locked_headers_are_refused(name: str) -> None:
    assert is_locked(name)
    with pytest.raises(EditRefused, match="cannot be changed"):
        read_edited_headers(json.dumps({name: "x"}))


def test_locked_header_outside_the_form_is_refused(shop: QueueDatabase) -> None:
    failure = failed(shop)

    with pytest.raises(EditRefused, match="cannot be changed"):
        send(failure, headers={names.FAILED_QUEUE: "elsewhere"})
    assert count(shop, "error") == 1


@pytest.mark.parametrize(
    "text", ["", "x", "[]", '{"a": 1}', '{"a": {}}', '{"a": "1", "a": "2"}', "[" * 100_000, r'{"a": "\ud800"}', r'{"\udfff": ""}']
)
def test_invalid_headers_are_refused(text: str) -> None:
    with pytest.raises(EditRefused):
        read_edited_headers(text)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", ""),
        ("application/json", " "),
        ("application/json", "{"),
        ("text/xml", "{}"),
        ("text/xml", "<a><b></a>"),
    ],
)
def test_invalid_body_is_refused(shop: QueueDatabase, content_type: str, body: str) -> None:
    failure = failed(shop)

    with pytest.raises(EditRefused, match="The body is"):
        send(failure, body, headers={names.CONTENT_TYPE: content_type})
    assert statuses(failure) == ["UNRESOLVED"]


@pytest.mark.parametrize("content_type", [None, "application/vnd.shop"])
def test_body_of_another_content_type_is_that_of_the_setting(shop: QueueDatabase, content_type: str | None) -> None:
    shop.configure(SERIALIZER="xml")
    (failure,) = fail(shop, [failed_row(body=b"<PlaceOrder/>", more={names.CONTENT_TYPE: content_type} if content_type else None)])
    send(failure, "<PlaceOrder><Order>2</Order></PlaceOrder>")
    assert [row.body for row in table(shop, "Sales").peek(9)] == [b"<PlaceOrder><Order>2</Order></PlaceOrder>"]


@pytest.mark.parametrize("body", [b"\xff\xfe{\x00}\x00", b"\x00\x01", b"", b"not json", b'{"a": "' + b"x" * 600_000 + b'"}'])
def test_binary_and_large_bodies_cannot_be_edited(shop: QueueDatabase, body: bytes) -> None:
    failure = failed(shop, body)

    with pytest.raises(EditRefused, match="The body is"):
        read(failure)


def test_line_endings_of_the_body_survive_the_form(shop: QueueDatabase) -> None:
    original = '{"a":\n "ä"}'.encode()
    first = failed(shop, original)
    send(first, '{"a":\r\n "ä"}')
    windows = failed(shop, b"<a>\r\n</a>", XML)
    send(windows, "<a>\n<b/></a>")

    assert [row.body for row in table(shop, "Sales").peek(9)] == [original, b"<a>\r\n<b/></a>"]


def test_missing_target_queue_changes_nothing(shop: QueueDatabase) -> None:
    (failure,) = fail(shop, [failed_row(failed_q="Nowhere", more=JSON)])

    with pytest.raises(EditRefused, match="Nowhere"):
        send(failure)
    assert statuses(failure) == ["UNRESOLVED"]
    assert count(shop, "error") == 1


def test_missing_row_is_reported(shop: QueueDatabase) -> None:
    failure = failed(shop)
    headers = read(failure).headers
    table(shop, "error").purge()

    with pytest.raises(EditRefused, match="no longer in the error queue"):
        read(failure)
    with pytest.raises(EditRefused, match="no longer in the error queue"):
        send(failure, headers=headers)
    with pytest.raises(EditRefused, match="no such failed message"):
        read_editable(get_settings(), uuid.uuid4())
    assert statuses(failure) == ["UNRESOLVED"]


def test_error_queue_of_servicecontrol_is_read_only(shop: QueueDatabase) -> None:
    failure = failed(shop)
    headers = read(failure).headers
    shop.configure(ERROR_QUEUE_OWNER="servicecontrol")

    with pytest.raises(EditRefused, match="ServiceControl"):
        send(failure, headers=headers)


def test_preview_of_other_kinds_checks_the_status(shop: QueueDatabase) -> None:
    fail(shop, [failed_row(), failed_row(failed_q="Nowhere")])

    found = preview(get_settings(), "archive", FailureSelection())
    assert (found.eligible, found.not_eligible) == (2, 0)
    ids = FailureSelection(ids=tuple(FailedMessage.objects.values_list("pk", flat=True)))
    found = preview(get_settings(), "unarchive", ids)
    assert (found.eligible, found.in_words()) == (0, [("Its status is: unresolved.", 2)])
