"""Editing a failed message and retrying it: an edited copy is sent with a new id.

The message is resolved when the copy was handled. Header rules follow ServiceControl, with one addition: the copy carries the id of
the message, so that its endpoint acknowledges it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from django.db import transaction
from django.utils.translation import gettext as _

from sqlqueue_app.browsing.bodies import indent_xml
from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.failures.operation_batches import (
    BatchOutcome,
    describe_reason,
    forget_rows,
    lock_failures,
    older_rows,
    set_status,
)
from sqlqueue_app.failures.operation_kinds import error_queue_refusal
from sqlqueue_app.failures.retrying import RetryTargets, Target, count_use, remove, retry_headers, row_to_send
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import new_message_id
from sqlqueue_app.messages.errors import PoisonMessage, SqlQueueError
from sqlqueue_app.messages.headers import Headers, read_headers
from sqlqueue_app.messages.serializers import is_xml
from sqlqueue_app.messages.types import has_half_pair
from sqlqueue_app.models import FailedMessage, FailureStatus, managed_alias
from sqlqueue_app.receiving.error_queue import headers_of_copy
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.tables.connections import database_now, errors_of_alias
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.row_selection import TakenRow, take_rows

# A form may send 2.5 MiB (DATA_UPLOAD_MAX_MEMORY_SIZE), and encoding multiplies the bytes of a character.
MAX_BODY_BYTES: Final = 512 * 1024

# As in ServiceControl: headers that route a message or describe its failure.
LOCKED: Final = frozenset(
    {
        names.MESSAGE_ID,
        names.SAGA_ID,
        names.CORRELATION_ID,
        names.CONTROL_MESSAGE,
        names.ORIGINATING_SAGA_ID,
        names.RELATED_TO,
        names.CONVERSATION_ID,
        names.MESSAGE_INTENT,
        names.VERSION,
        names.IS_SAGA_TIMEOUT_MESSAGE,
        names.IS_DEFERRED_MESSAGE,
        names.DELAYED_RETRIES,
        names.DELAYED_RETRIES_TIMESTAMP,
        names.IMMEDIATE_RETRIES,
        names.PROCESSING_STARTED,
        names.PROCESSING_ENDED,
        names.TIME_OF_FAILURE,
        names.FAILED_QUEUE,
        names.EDIT_OF,
        names.RETRY_UNIQUE_MESSAGE_ID,
        names.RETRY_ACKNOWLEDGEMENT_QUEUE,
        names.RETRY_TO,
        names.TARGET_ENDPOINT_ADDRESS,
    }
)
_LOCKED_PREFIX: Final = "NServiceBus.ExceptionInfo."
# The form warns about changes of these.
SENSITIVE: Final = frozenset(
    {
        "NServiceBus.RouteTo",
        "NServiceBus.DestinationSites",
        "NServiceBus.OriginatingSite",
        "NServiceBus.Header",
        "NServiceBus.HttpTo",
        names.REPLY_TO_ADDRESS,
        names.RETURN_MESSAGE_ERROR_CODE,
        names.SAGA_TYPE,
        names.ORIGINATING_SAGA_TYPE,
        names.TIME_SENT,
    }
)


class EditRefused(SqlQueueError):
    """The message cannot be edited, or the edit cannot be sent; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Editable:
    """A failed message for the edit form: `headers` can be changed, `locked` cannot. `body` is the decoded text."""

    failure: FailedMessage
    headers: Headers
    locked: Headers
    body: str

    @property
    def headers_text(self) -> str:
        """The editable headers as JSON."""
        return json.dumps(self.headers, indent=2, ensure_ascii=False)


def is_locked(name: str) -> bool:
    """Whether a header cannot be edited: it routes the message or describes the failure."""
    return name in LOCKED or name.startswith(_LOCKED_PREFIX)


def read_editable(settings: Settings, failure_id: uuid.UUID) -> Editable:
    """Read the failed message with headers and body. Raises EditRefused if it cannot be edited."""
    failure = FailedMessage.objects.using(managed_alias()).filter(pk=failure_id).first()
    if failure is None:
        raise EditRefused(_("There is no such failed message."))
    _check(settings, failure)
    table = RetryTargets(settings).error_table(failure.queue)
    row = None if table is None else table.peek_row(failure.row_version or 0, body_limit=MAX_BODY_BYTES + 1)
    if row is None:
        raise EditRefused(_not_there())
    if (row.body_length or 0) > MAX_BODY_BYTES:
        raise EditRefused(_("The body is larger than 512 KiB: it cannot be edited here."))
    try:
        headers = headers_of_copy(row, read_headers(row.headers))
    except PoisonMessage as error:
        raise EditRefused(_("The headers cannot be read: %(error)s") % {"error": error}) from error
    body = _text(row.body or b"", headers.get(names.CONTENT_TYPE))
    return Editable(
        failure,
        {name: value for name, value in headers.items() if not is_locked(name)},
        {name: value for name, value in headers.items() if is_locked(name)},
        body,
    )


def read_edited_headers(text: str) -> Headers:
    """Parse the headers of the form. Raises EditRefused unless they are a flat JSON object of texts without locked names."""
    try:
        headers = json.loads(text, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise EditRefused(_("The headers are not valid JSON: %(error)s") % {"error": error}) from error
    if not isinstance(headers, dict) or not all(value is None or isinstance(value, str) for value in headers.values()):
        raise EditRefused(_("The headers must be one JSON object with texts, or null, as values."))
    _refuse_locked(headers)
    return headers


def _refuse_locked(headers: Iterable[str]) -> None:
    if locked := sorted(filter(is_locked, headers)):
        raise EditRefused(_("These headers cannot be changed: %(names)s") % {"names": ", ".join(locked)})


def check_body(text: str, content_type: str | None) -> None:
    """Raise EditRefused for an empty body and for one that does not match its content type; another one is that of SERIALIZER."""
    if not text.strip():
        raise EditRefused(_("The body is empty."))
    kind = "XML" if is_xml(content_type, get_settings().serializer) else "JSON"
    try:
        if kind == "XML":
            indent_xml(text)
        else:
            json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise EditRefused(_("The body is not valid %(kind)s: %(error)s") % {"kind": kind, "error": error}) from error


def edit_and_retry(
    settings: Settings, failure_id: uuid.UUID, *, row_version: int, headers: Mapping[str, str | None], body: str
) -> str:
    """Send an edited copy to where the message failed, or to the target of a redirect. Returns the new message id.

    `row_version` is the row that was edited: a message that has failed again since then is refused. Raises EditRefused and
    DatabaseErrors; nothing has changed in either case.
    """
    check_body(body, headers.get(names.CONTENT_TYPE))
    _refuse_locked(headers)
    alias = managed_alias()
    at = database_now(alias)
    with errors_of_alias(alias, "edit a failed message"), transaction.atomic(using=alias):
        failure = next(iter(lock_failures([failure_id], FailureStatus, BatchOutcome())), None)
        if failure is None:
            raise EditRefused(_("There is no such failed message."))
        _check(settings, failure)
        if failure.row_version != row_version:
            raise EditRefused(_("The message has failed again: open it and edit it again."))
        set_status([failure.pk], FailureStatus.RETRY_ISSUED, at, row_version=None, operation=None)
        with transaction.atomic(using=settings.database):
            message_id = _send(settings, failure, dict(headers), body)
        failure.history.filter(retried_at=None).update(retried_at=at, copy_id=message_id)
        return message_id


def _send(settings: Settings, failure: FailedMessage, headers: Headers, body: str) -> str:
    targets = RetryTargets(settings)
    source = targets.error_table(failure.queue)
    if source is None:
        raise EditRefused(_not_there())
    row = _take(targets, source, failure)
    original = headers_of_copy(row, read_headers(row.headers))
    target = targets.of(original.get(names.FAILED_QUEUE) or "", original.get(names.RETRY_TO) or "")
    if not isinstance(target, Target):
        raise EditRefused(describe_reason(*target))
    message_id = new_message_id()
    kept = {name: value for name, value in original.items() if is_locked(name)}
    edited = {
        # A copy that fails is a new failure, which `unique_message_id` identifies by both ids of the original.
        **retry_headers({**kept, **headers}, failure, source.address, targets),
        names.MESSAGE_ID: message_id,
        names.EDIT_OF: str(failure.pk),
    }
    # The columns of the failed row would undo an edited reply-to address.
    new = row_to_send(queue_table(settings.database, target.address), edited, _bytes(body, row.body or b""))
    dispatcher = Dispatcher(settings.database, targets.book)
    (row_id,) = dispatcher.dispatch_rows([(target.address, new)], begun=True)
    noted = FailedMessage.objects.using(managed_alias()).filter(pk=failure.pk)
    noted.update(retried_to=target.text, retry_row_id=row_id)
    if target.redirect is not None:
        count_use(target.redirect, 1)
    return message_id


def _take(targets: RetryTargets, source: QueueTable, failure: FailedMessage) -> TakenRow:
    row = next(iter(take_rows(source, [failure.row_version or 0])), None)
    if row is None:
        raise EditRefused(_not_there())
    older = (each for rows in older_rows([failure]).values() for each in rows)
    forget_rows([(failure.queue, row.row_version), *remove(targets, older)])
    return row


def _not_there() -> str:
    return _("The message is no longer in the error queue, or another operation is processing it.")


def _check(settings: Settings, failure: FailedMessage) -> None:
    if reason := error_queue_refusal(settings):
        raise EditRefused(reason)
    if failure.status != FailureStatus.UNRESOLVED:
        status = FailureStatus(failure.status).label
        raise EditRefused(_("The message cannot be edited: its status is “%(status)s”.") % {"status": status})
    if failure.row_version is None:
        raise EditRefused(_not_there())


def _text(body: bytes, content_type: str | None) -> str:
    try:
        text = body.decode("utf-8")
        check_body(text, content_type)
    except UnicodeDecodeError as error:
        raise EditRefused(_("The body is not UTF-8 text: it cannot be edited.")) from error
    return text


def _bytes(edited: str, original: bytes) -> bytes:
    """Encode the edited text. A form submits CR LF; the line ends of the original are restored."""
    text = edited.replace("\r\n", "\n")
    if b"\r\n" in original:
        text = text.replace("\n", "\r\n")
    return original if text.replace("\r\n", "\n") == original.decode("utf-8", "replace").replace("\r\n", "\n") else text.encode()


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(_("a name occurs twice"))
    # No page can show it.
    if any(isinstance(text, str) and has_half_pair(text) for pair in pairs for text in pair):
        raise ValueError(_("a text contains half of a surrogate pair"))
    return found
