"""What was sent: read from the tables, so that it is rolled back with what sent it; and what `drain()` has taken since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError, PoisonMessage
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.messages.types import message_type_name
from sqlqueue_app.operations.known_queues import QueueKind, address_book_of, known_queues
from sqlqueue_app.tables.connections import connection_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.queue import QueueTable, queue_table, used_tables
from sqlqueue_app.tables.well_known import delayed_address
from sqlqueue_app.testing.messages import SentMessage

# Nobody reads more than that in a failed assertion, and a test that sends more counts rows.
MOST = 10_000
_WHOLE_BODY = 2**31 - 1

# What drains have taken, for as long as the transaction lives in which they did; and ids that the test has put in itself.
_taken: WeakKeyDictionary[Atomic, list[SentMessage]] = WeakKeyDictionary()
_left_out: WeakKeyDictionary[Atomic, set[str]] = WeakKeyDictionary()


def sent(message: type | str | None = None, *, to: str | None = None) -> list[SentMessage]:
    """What was sent and not rolled back, in the order of the time sent: of a type or all, to a queue or to all.

    That is what waits in the queues and delayed tables which this process has used, and what `drain()` took out of them in the
    transaction that the test has open. Failures in the error queue and copies in the audit queue are not listed. An event stands
    there once for each queue that it went to.
    """
    settings = get_settings()
    book = address_book_of(settings)
    connection = connection_of(settings.database)
    found = _unique([*_recorded(connection), *_waiting(settings, book)])
    put_in = {each for block in connection.atomic_blocks for each in _left_out.get(block, ())}
    found = [each for each in found if each.message_id not in put_in]
    if message is not None:
        name = type_name(message)
        found = [each for each in found if name in each.message_types]
    if to is not None:
        address = book.parse(to)
        found = [each for each in found if each.address == address]
    return sorted(found, key=lambda each: each.headers.get(names.TIME_SENT) or "")


def failed() -> list[SentMessage]:
    """What is in the error queues of the endpoints, with the headers of the failure, such as NServiceBus.ExceptionInfo.Message."""
    settings = get_settings()
    errors = [entry.address for entry in known_queues(settings) if entry.kind is QueueKind.ERROR]
    return [message for address in errors for message in _messages(queue_table(settings.database, address))]


def leave_out(connection: BaseDatabaseWrapper, message_id: str) -> None:
    """A message that the test puts in is not one that was sent."""
    _left_out.setdefault(_block_of_test(connection), set()).add(message_id)


def type_name(message: type | str) -> str:
    """The name of a message type, given as its class or as its name. MessageTypeError for another class."""
    return message if isinstance(message, str) else message_type_name(message)


def record(connection: BaseDatabaseWrapper, taken: Iterable[SentMessage]) -> None:
    """Remember what a drain took, until the transaction of the test ends; outside of a transaction nobody could tell when."""
    if connection.atomic_blocks:
        _taken.setdefault(_block_of_test(connection), []).extend(taken)


def _recorded(connection: BaseDatabaseWrapper) -> list[SentMessage]:
    return [message for block in connection.atomic_blocks for message in _taken.get(block, ())]


def _block_of_test(connection: BaseDatabaseWrapper) -> Atomic:
    """The block that lives as long as the test: the innermost of TestCase's, else the outermost."""
    of_test = [block for block in connection.atomic_blocks if getattr(block, "_from_testcase", False)]
    block: Atomic = of_test[-1] if of_test else connection.atomic_blocks[0]
    return block


def _unique(messages: Iterable[SentMessage]) -> list[SentMessage]:
    """Each message once: one that waits for a retry was taken before."""
    found: dict[object, SentMessage] = {}
    for message in messages:
        found.setdefault((message.message_id, message.address) if message.message_id else object(), message)
    return list(found.values())


def _waiting(settings: Settings, book: AddressBook) -> Iterator[SentMessage]:
    for table in _queues(settings):
        yield from _messages(table)
    for delayed in delayed_tables(settings, book):
        for waiting in delayed.peek(MOST):
            yield from _message(delayed.address, waiting.headers, waiting.body, book)


def _messages(table: QueueTable) -> Iterator[SentMessage]:
    if table.exists():
        for row in table.peek(MOST, after=-(2**63), body_limit=_WHOLE_BODY):
            yield from _message(table.address, row.headers, row.body)


def _queues(settings: Settings) -> list[QueueTable]:
    """The tables that this process has used, and main queues; not those of failures and audits."""
    known = known_queues(settings)
    others = {entry.address for entry in known if entry.kind in (QueueKind.ERROR, QueueKind.AUDIT)}
    own = [queue_table(settings.database, entry.address) for entry in known if entry.kind in (QueueKind.MAIN, QueueKind.SATELLITE)]
    tables = {table.address: table for table in (*own, *used_tables(settings.database))}
    return [table for address, table in tables.items() if address not in others]


def delayed_tables(settings: Settings, book: AddressBook) -> list[DelayedTable]:
    """The delayed tables of the settings that are there."""
    tables = [DelayedTable(settings.database, delayed_address(book, name)) for name in settings.senders]
    return [table for table in tables if table.exists()]


def _message(address: QueueAddress, text: str | None, body: bytes | None, book: AddressBook | None = None) -> Iterator[SentMessage]:
    """The message of a row; nothing for a row that is none. With a book it is a delayed one, whose headers say where it goes."""
    try:
        headers = dict(read_headers(text))
    except PoisonMessage:
        return
    if book is not None and (to := headers.pop(names.FORWARD_DESTINATION, None)):
        try:
            address = book.parse(to)
        except AddressError:
            pass  # it stands where it is
    yield SentMessage(address, headers, body or b"")
