"""Sending a message only once: the record of the message that was last sent under a key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.apps import apps
from django.db import router

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError, WireFormatError
from sqlqueue_app.messages.headers import message_id_texts
from sqlqueue_app.messages.times import as_delay
from sqlqueue_app.messages.types import has_half_pair
from sqlqueue_app.tables.connections import connection_of, database_now, dialect_of_connection, errors_of_alias, table_exists
from sqlqueue_app.tables.installation import delayed_address
from sqlqueue_app.tables.listing import TableScan, find_rows
from sqlqueue_app.tables.managed import claim_key, key_of
from sqlqueue_app.tables.rows import cut_text

MAX_KEY_LENGTH: Final = 1_000
# The rows of each table that are searched for a message whose time is over; beyond them it counts as still waiting.
SEARCHED_ROWS: Final = 100_000
# The conflicting record may be gone at the next attempt.
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Unique:
    """A key of messages, and how long after a message with it no other is sent."""

    key: str
    kept_for: timedelta

    @classmethod
    def of(cls, key: object, kept_for: object) -> Unique:
        """The arguments of `send()`. WireFormatError for wrong ones."""
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
            raise WireFormatError(f"unique_key is {key!r:.60}; expected a text of 1 to {MAX_KEY_LENGTH:,} characters")
        if has_half_pair(key):
            raise WireFormatError(f"unique_key is {key!r:.60}, which contains half of a surrogate pair; write valid Unicode")
        found = None
        with suppress(WireFormatError):
            found = as_delay(kept_for)
        if found is None or not timedelta(0) <= found <= timedelta(days=3650):
            text = f"unique_for is {kept_for!r:.60}; expected how long the key {key!r:.60} holds: seconds or a timedelta"
            raise WireFormatError(f"{text}, at most ten years")
        return cls(key, found)


def claim(
    alias: str,
    book: AddressBook,
    unique: Unique,
    message: OutgoingMessage,
    queues: Sequence[QueueAddress],
    delayed_by: str | None,
) -> str | None:
    """Record the message as the one of its key, in the open transaction; or return the id of the one that was sent before.

    Waits for a transaction that claims the same key at the same time. The key belongs to all `queues` of the destination, the
    main one first. `delayed_by`: the endpoint in whose table delayed messages of this sender wait. Raises ConfigurationError if
    the table of records is missing or in another database, WireFormatError for a message id that it cannot hold, and DatabaseError.
    """
    queue, message_id = book.canonical(queues[0]), message.message_id or ""
    # The id is searched for later, so it must not be altered.
    if "\0" in message_id or has_half_pair(message_id):
        raise WireFormatError(
            f"the message id {message_id!r:.60} contains NUL or half of a surrogate pair, so it cannot be recorded with its "
            "unique_key; choose another id"
        )
    model = apps.get_model("sqlqueue_app", "UniqueMessage")
    if (kept_in := router.db_for_write(model)) != alias:
        raise ConfigurationError(
            f"unique_key needs the tables of sqlqueue_app in the database of the queues, {alias!r}, but the routers keep them in "
            f'{kept_in!r}: add "sqlqueue_app.routers.SqlQueueRouter" to DATABASE_ROUTERS'
        )
    seconds = math.ceil(unique.kept_for.total_seconds())
    values = {
        "key": cut_text(unique.key, 255),
        "queue": cut_text(queue, 255),
        "message_id": message_id,
        "seconds": seconds,
    }
    digest = key_of(queue, unique.key)
    with errors_of_alias(alias, f"look for a message with the key {unique.key!r}"):
        for _ in range(_TRIES):
            if claim_key(alias, model._meta.db_table, digest, **values):
                return None
            known = model.objects.using(alias).select_for_update().filter(pk=digest).first()
            if known is None:
                continue  # its transaction has rolled back since, or the record was deleted
            now = database_now(alias)
            # Times are rounded down to seconds: the key holds to the end of the last one, unless it holds for no time.
            if known.sent_at < known.unique_until >= now or _waits(alias, book, known.message_id, queues, delayed_by):
                return str(known.message_id)
            known.message_id, known.sent_at, known.unique_until = message_id, now, now + timedelta(seconds=seconds)
            known.save(using=alias, update_fields=["message_id", "sent_at", "unique_until"])
            return None
    raise DatabaseError(f"the record of the key {unique.key!r:.60} keeps disappearing, as other transactions roll back: try again")


def _waits(alias: str, book: AddressBook, message_id: str, queues: Sequence[QueueAddress], delayed_by: str | None) -> bool:
    """Whether the message of this id is still in the queue, or waits for its time or for its next retry."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    # Any endpoint of the project may have sent it.
    endpoints = dict.fromkeys(name for name in (delayed_by, _receiver_of(book, queues[0]), *get_settings().senders) if name)
    delayed = dict.fromkeys(delayed_address(book, name) for name in endpoints)
    scans: Sequence[TableScan] = [
        *(TableScan(each, SEARCHED_ROWS) for each in queues),
        *(TableScan(each, SEARCHED_ROWS, is_delayed=True) for each in delayed if table_exists(connection, dialect, each)),
    ]
    found = find_rows(alias, scans, *message_id_texts(message_id), limit=1)
    return bool(found.rows or found.longer)


def _receiver_of(book: AddressBook, queue: QueueAddress) -> str:
    """The endpoint that receives from a queue, perhaps as a satellite; messages wait for their retry in its delayed table."""
    for name, endpoint in get_settings().endpoints.items():
        if queue in map(book.of_queue, endpoint.receiving_queue_names()):
            return name
    return queue.table
