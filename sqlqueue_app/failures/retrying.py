"""Retries of failed messages and redirects of retries.

A retry moves a message from the error queue back to the queue where it failed, or to the target of a redirect. The move and the
change of the index are one transaction. Redirects apply only to retries.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils.translation import gettext as _

from sqlqueue_app.browsing.messages import moved_rows
from sqlqueue_app.conf import Settings
from sqlqueue_app.failures.operation_batches import (
    BatchOutcome,
    Reason,
    ReasonDetail,
    forget_rows,
    group_by_queue,
    lock_failures,
    older_rows,
    write_columns,
)
from sqlqueue_app.failures.queries import MAX_ROWS
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.envelope import columns_of, guid_of, new_message_id
from sqlqueue_app.messages.errors import AddressError, QueueNotFound, SqlQueueError, TableMismatch, WireFormatError
from sqlqueue_app.messages.headers import Headers, read_headers, write_headers
from sqlqueue_app.models import FailedMessage, FailureStatus, Redirect, managed_alias
from sqlqueue_app.receiving.destinations import allowed_destinations
from sqlqueue_app.receiving.error_queue import headers_of_copy
from sqlqueue_app.sending.claim_checks import claim_checks_of
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.status.queues import QueueKind, address_book_of, known_queues, table_key
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.row_selection import TakenRow, find_ids, headers_of_rows, remove_rows, take_rows
from sqlqueue_app.tables.rows import NewRow

RETRIABLE: Final = (FailureStatus.UNRESOLVED,)
_WRITTEN: Final = ("status", "status_at", "row_version", "retried_to", "retry_row_id")
# Prefixes of the headers that a failure adds.
_OF_THE_FAILURE: Final = (
    names.DELAYED_RETRIES,
    names.FAILED_QUEUE,
    names.TIME_OF_FAILURE,
    "NServiceBus.ExceptionInfo.",
    names.EDIT_OF,
)


def retry_headers(headers: Headers, failure: FailedMessage, source: QueueAddress, targets: RetryTargets) -> Headers:
    """The headers of a retry from the error queue `source`, which request an acknowledgement."""
    kept = {name: value for name, value in headers.items() if not name.startswith(_OF_THE_FAILURE)}
    kept[names.RETRY_UNIQUE_MESSAGE_ID] = str(failure.pk)
    kept[names.RETRY_ACKNOWLEDGEMENT_QUEUE] = address_text(targets.book, targets.acknowledged_in(failure, source))
    kept.pop(names.TARGET_ENDPOINT_ADDRESS, None)
    if kept.get(names.RETRY_TO):
        # For the forwarder: the final queue.
        failed_q = headers.get(names.FAILED_QUEUE) or ""
        final = targets.of(failed_q)
        kept[names.TARGET_ENDPOINT_ADDRESS] = final.text if isinstance(final, Target) else failed_q
    return kept


def remove(targets: RetryTargets, rows: Iterable[tuple[str, int | None]]) -> list[tuple[str, int]]:
    """Remove rows of error queues, given by queue name and RowVersion; returns those that existed and were not locked."""
    removed = []
    for queue, numbers in group_by_queue(rows).items():
        table = targets.error_table(queue)
        removed += [(queue, number) for number in remove_rows(table, numbers)] if table is not None else []
    return removed


def address_text(book: AddressBook, address: QueueAddress) -> str:
    """The canonical address; our own form if no reader can parse the name."""
    try:
        return book.canonical(address)
    except AddressError:
        return str(address)


def row_to_send(table: QueueTable, headers: Headers, body: bytes | None) -> NewRow:
    """A row to send again, without an expiry; its columns repeat the headers."""
    return NewRow(_row_id_for(table, headers), write_headers(headers), body or b"", *columns_of(headers))


def _row_id_for(table: QueueTable, headers: Headers) -> str:
    """The row id for these headers: new where it must be unique, elsewhere the message id if that is a GUID."""
    message_id = None if table.has_unique_ids else guid_of(headers.get(names.MESSAGE_ID))
    return new_message_id() if message_id is None else str(message_id)


@dataclass(frozen=True, slots=True)
class _Sendable:
    failure: FailedMessage
    source: QueueAddress
    headers: Headers
    target: Target


class RetryBatch:
    """Retries one batch in the caller's transactions on the managed tables and on the queues."""

    def __init__(self, settings: Settings, now: datetime) -> None:
        self._settings = settings
        self._now = now
        self._targets = RetryTargets(settings)
        self._dispatcher = Dispatcher(settings.database, self._targets.book)
        self._claim_checks = claim_checks_of(settings, self._targets.book)

    def run(self, ids: Sequence[uuid.UUID]) -> BatchOutcome:
        """Retry the messages. A message that cannot be retried is skipped and stays in the error queue."""
        outcome = BatchOutcome()
        failures = lock_failures(ids, RETRIABLE, outcome)
        taken = self._take(list(self._sendable(failures, outcome)), outcome)
        self._send(taken)
        outcome.changed = [each.failure.pk for each, _row in taken]
        outcome.done += len(taken)
        return outcome

    def _sendable(self, failures: Sequence[FailedMessage], outcome: BatchOutcome) -> Iterator[_Sendable]:
        texts = {
            (queue, row_version): text
            for queue, row_versions in group_by_queue((each.queue, each.row_version) for each in failures).items()
            if (table := self._targets.error_table(queue)) is not None
            for row_version, text in headers_of_rows(table, row_versions).items()
        }
        for failure in failures:
            found = self._as_sendable(failure, texts)
            if isinstance(found, _Sendable):
                yield found
            else:
                outcome.skip(*found)

    def _as_sendable(self, failure: FailedMessage, texts: dict[tuple[str, int], str | None]) -> _Sendable | ReasonDetail:
        place = failure.queue, failure.row_version or 0
        if failure.row_version is None or place not in texts:
            return Reason.NOT_THERE, ""
        try:
            headers = read_headers(texts[place])
        except WireFormatError:
            return Reason.POISON, ""
        target = self._targets.of(headers.get(names.FAILED_QUEUE) or "", headers.get(names.RETRY_TO) or "")
        source = self._targets.error_table(failure.queue)
        if source is None:
            return Reason.NOT_THERE, ""
        return _Sendable(failure, source.address, headers, target) if isinstance(target, Target) else target

    def _take(self, sendable: list[_Sendable], outcome: BatchOutcome) -> list[tuple[_Sendable, TakenRow]]:
        """Delete the rows of the messages, and those of their earlier attempts."""
        found = {
            (queue, row.row_version): row
            for queue, numbers in group_by_queue((each.failure.queue, each.failure.row_version) for each in sendable).items()
            if (table := self._targets.error_table(queue)) is not None
            for row in take_rows(table, numbers)
        }
        taken = []
        for each in sendable:
            row = found.get((each.failure.queue, each.failure.row_version or 0))
            if row is None:
                outcome.skip(Reason.NOT_THERE)
            else:
                taken.append((each, row))
        gone = [(each.failure.queue, row.row_version) for each, row in taken]
        older = older_rows(each.failure for each, _ in taken)
        gone += remove(self._targets, (row for rows in older.values() for row in rows))
        forget_rows(gone)
        return taken

    def _send(self, taken: list[tuple[_Sendable, TakenRow]]) -> None:
        row_ids = self._dispatcher.dispatch_rows((self._row(each, row) for each, row in taken), begun=True)
        turned: Counter[Redirect] = Counter()
        for (each, _row), row_id in zip(taken, row_ids, strict=True):
            failure = each.failure
            failure.status, failure.status_at, failure.row_version = FailureStatus.RETRY_ISSUED, self._now, None
            failure.retried_to, failure.retry_row_id = each.target.text, row_id
            if each.target.redirect is not None:
                turned[each.target.redirect] += 1
        write_columns([each.failure for each, _ in taken], _WRITTEN)
        for redirect, count in turned.items():
            count_use(redirect, count)

    def _row(self, each: _Sendable, row: TakenRow) -> tuple[QueueAddress, NewRow]:
        headers = retry_headers(each.headers, each.failure, each.source, self._targets)
        table = queue_table(self._settings.database, each.target.address)
        sent = row_to_send(table, headers_of_copy(row, headers), row.body)
        return each.target.address, sent if self._claim_checks is None else self._claim_checks.check_out(table.address, sent)


@dataclass(frozen=True, slots=True)
class Target:
    """The queue of a retry. `text` is the address for people and for the index, `redirect` the redirect that applied."""

    address: QueueAddress
    text: str
    redirect: Redirect | None


class RetryTargets:
    """Resolves targets for one batch or one dry run; caches queues and redirects that long. For one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.book = address_book_of(settings)
        self._allowed = allowed_destinations(settings.allowed_destinations, self.book)
        self._found: dict[str, Target | ReasonDetail] = {}
        self._tables: dict[str, QueueTable | None] = {}

    def of(self, failed_q: str, retry_to: str = "") -> Target | ReasonDetail:
        """The target of a message with these headers, or the reason why it has none."""
        text = (retry_to or failed_q).strip()
        if not text:
            return Reason.NO_FAILED_QUEUE, ""
        key = f"{bool(retry_to)} {text}"
        if key not in self._found:
            self._found[key] = self._find(text, turned=not retry_to)
        return self._found[key]

    def error_table(self, name: str) -> QueueTable | None:
        """The table of the error queue with this name in the index; None if it no longer exists."""
        if name not in self._tables:
            self._tables[name] = self._existing(name)
        return self._tables[name]

    def acknowledged_in(self, failure: FailedMessage, source: QueueAddress) -> QueueAddress:
        """The error queue `source`, or that of the endpoint if `source` has left the settings: it is no longer read."""
        endpoint = self._settings.senders.get(failure.endpoint)
        if endpoint is None or self._is_error_queue(source):
            return source
        return self.book.parse(endpoint.error_queue)

    def _is_error_queue(self, address: QueueAddress) -> bool:
        return table_key(address) in self._error_keys

    def _existing(self, name: str) -> QueueTable | None:
        try:
            address = self._error_queues.get(name) or self.book.parse(name)
        except AddressError:
            return None
        table = queue_table(self._settings.database, address)
        return table if table.exists() else None

    @cached_property
    def _error_queues(self) -> dict[str, QueueAddress]:
        return {queue.name: queue.address for queue in known_queues(self._settings) if queue.kind is QueueKind.ERROR}

    @cached_property
    def _error_keys(self) -> frozenset[tuple[str | None, str | None, str]]:
        return frozenset(map(table_key, self._error_queues.values()))

    @cached_property
    def _redirects(self) -> dict[str, Redirect]:
        return {each.from_address: each for each in Redirect.objects.using(managed_alias())}

    def _find(self, text: str, *, turned: bool) -> Target | ReasonDetail:
        try:
            address = self.book.parse(text)
            canonical = self.book.canonical(address)
            redirect = self._redirects.get(canonical) if turned else None
            if redirect is not None:
                address, canonical = self.book.parse(redirect.to_address), redirect.to_address
        except AddressError as error:
            return Reason.BAD_ADDRESS, str(error)
        if self._is_error_queue(address):
            return Reason.ERROR_QUEUE, canonical
        if redirect is None and self._allowed is not None and not self._allowed.has(address):
            return Reason.NOT_ALLOWED, self._allowed.shown(address)
        table = queue_table(self._settings.database, address)
        try:
            if not table.exists():
                return Reason.NO_QUEUE, table.qualified
            table.layout()
        except (QueueNotFound, TableMismatch):
            return Reason.NO_QUEUE, table.qualified
        return Target(address, canonical, redirect)


class RedirectRefused(SqlQueueError):
    """The redirect is invalid; the message is the reason."""


def redirect_id(from_address: str) -> uuid.UUID:
    """The id that ServiceControl gives the redirect of an address."""
    return uuid.UUID(bytes_le=hashlib.md5(from_address.encode(), usedforsecurity=False).digest())


def create_redirect(
    settings: Settings, from_address: str, to_address: str, *, by: str = "", now: Callable[[], datetime] | None = None
) -> Redirect:
    """Redirect future retries of messages that failed in one queue to another queue.

    Raises RedirectRefused for invalid addresses, a second redirect of the same queue, a chain (either queue is an end of another
    redirect), a redirect to itself, and a missing target.
    """
    book = address_book_of(settings)
    source, target = _address(book, from_address), _address(book, to_address)
    alias = managed_alias()
    with transaction.atomic(using=alias):
        _refuse_wrong(settings, book, source, target)
        at = now() if now is not None else database_now(alias)
        made = Redirect(id=redirect_id(source), from_address=source, to_address=target, created_by=by[:255], created_at=at)
        try:
            with transaction.atomic(using=alias):
                made.save(using=alias, force_insert=True)
        except IntegrityError as error:
            raise RedirectRefused(_("%(queue)s already has a redirect.") % {"queue": source}) from error
    return made


def change_redirect(settings: Settings, redirect: Redirect, to_address: str) -> None:
    """Change the target of a redirect. Raises as `create_redirect`, and if the redirect is gone."""
    book = address_book_of(settings)
    target = _address(book, to_address)
    alias = managed_alias()
    with transaction.atomic(using=alias):
        _refuse_wrong(settings, book, redirect.from_address, target)
        if not Redirect.objects.using(alias).filter(pk=redirect.pk).update(to_address=target):
            raise RedirectRefused(_("The redirect has since been removed."))


def remove_redirect(redirect: Redirect) -> bool:
    """Remove a redirect; False if it was already gone."""
    return bool(Redirect.objects.using(managed_alias()).filter(pk=redirect.pk).delete()[0])


def count_use(redirect: Redirect, count: int) -> None:
    """Add to the number of retries that the redirect has applied to."""
    Redirect.objects.using(managed_alias()).filter(pk=redirect.pk).update(used=F("used") + count)


def _address(book: AddressBook, text: str) -> str:
    try:
        address = book.canonical(book.parse(text.strip()))
        Redirect._meta.get_field("from_address").run_validators(address)
    except AddressError as error:
        raise RedirectRefused(str(error)) from error
    except ValidationError as error:
        raise RedirectRefused(" ".join(error.messages)) from error
    return address


def _refuse_wrong(settings: Settings, book: AddressBook, source: str, target: str) -> None:
    if source == target:
        raise RedirectRefused(_("%(queue)s cannot be redirected to itself.") % {"queue": source})
    redirects = Redirect.objects.using(managed_alias())
    if redirects.filter(from_address=target).exists():
        raise RedirectRefused(_("Retries to %(queue)s are redirected themselves: name the last queue.") % {"queue": target})
    if redirects.filter(to_address=source).exists():
        text = _("Other retries are redirected to %(queue)s: change those redirects first.")
        raise RedirectRefused(text % {"queue": source})
    if not queue_table(settings.database, book.parse(target)).exists():
        raise RedirectRefused(_("The queue %(queue)s does not exist.") % {"queue": target})


REDIRECTABLE: Final = (FailureStatus.RETRY_ISSUED,)
_REDIRECTED: Final = ("retried_to", "retry_row_id")


def redirect_batch(settings: Settings, ids: Sequence[uuid.UUID], _now: datetime) -> BatchOutcome:
    """Move the messages of these pending retries to the targets of redirects, in the caller's transactions.

    Only messages that are still in the queue are moved: one that was received may have been handled. Messages behind the first
    10,000 rows of a queue without an index of ids are not found and stay.
    """
    outcome = BatchOutcome()
    targets = RetryTargets(settings)
    pending: defaultdict[str, list[FailedMessage]] = defaultdict(list)
    for failure in lock_failures(ids, REDIRECTABLE, outcome):
        pending[failure.retried_to].append(failure)
    for queue, failures in pending.items():
        target = targets.of(queue)
        if not isinstance(target, Target):
            outcome.skip(*target, count=len(failures))
        elif target.redirect is None:
            outcome.skip(Reason.NO_REDIRECT, queue, count=len(failures))
        else:
            moved = _move(settings, targets, queue, failures, target)
            count_use(target.redirect, moved)
            outcome.done += moved
            if moved < len(failures):
                outcome.skip(Reason.RECEIVED, count=len(failures) - moved)
    return outcome


def _move(settings: Settings, targets: RetryTargets, queue: str, failures: Sequence[FailedMessage], target: Target) -> int:
    taken = _take(settings, targets, queue, failures)
    rows = moved_rows(settings, target.address, (row for _failure, row in taken))
    dispatcher = Dispatcher(settings.database, targets.book)
    row_ids = dispatcher.dispatch_rows(((target.address, row) for row in rows), begun=True)
    for (failure, _row), row_id in zip(taken, row_ids, strict=True):
        failure.retried_to, failure.retry_row_id = target.text, row_id
    write_columns([failure for failure, _row in taken], _REDIRECTED)
    return len(taken)


def _take(
    settings: Settings, targets: RetryTargets, queue: str, failures: Sequence[FailedMessage]
) -> list[tuple[FailedMessage, TakenRow]]:
    """Delete the rows that still wait there and are not locked."""
    wanted = {row_id: each for each in failures if (row_id := guid_of(each.retry_row_id)) is not None}
    try:
        table = queue_table(settings.database, targets.book.parse(queue))
    except AddressError:
        return []
    if not wanted or not table.exists():
        return []
    numbers = find_ids(table, set(wanted), limit=MAX_ROWS)
    return [(wanted[row.id], row) for row in take_rows(table, numbers.values()) if row.id in wanted]
