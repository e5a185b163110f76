"""Sending: rows are stored unchanged, in order, all or none."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from sqlqueue_app.messages.errors import ConstraintViolation, QueueNotFound
from sqlqueue_app.tables import queue as tables_queue
from sqlqueue_app.tables.queue import SEND_BYTES_PER_STATEMENT, QueueTable, queue_table
from sqlqueue_app.tables.receive_transaction import receive_transaction
from sqlqueue_app.tables.rows import values_of
from tests.support.databases import QueueDatabase
from tests.support.tables import address_of, elsewhere, execute, make_table, receive_all, row, rows

LONGEST = timedelta(milliseconds=2**31 - 1)


def test_descriptions_of_tables_are_bounded(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_queue, "REMEMBERED_TABLES", 3)
    for number in range(10):
        queue_table(queue.alias, replace(queue.address, table=f"Reply.{number}"))
        assert len(tables_queue._tables_by_address) <= 3


def test_message_is_received_unchanged(queue: QueueTable) -> None:
    sent = row(b"\x00\xff{}", '{"NServiceBus.MessageId": "é \\u0000 %s ? :id"}')
    queue.send([sent])

    receiving = receive_transaction(queue)
    received = receiving.receive()
    receiving.commit()

    assert received is not None
    assert (received.id, received.headers, received.body) == (uuid.UUID(sent.id), sent.headers, sent.body)
    assert received.expired is False
    assert receive_all(queue) == []


def test_empty_send_writes_nothing(queue: QueueTable) -> None:
    queue.send([])
    assert queue.depth().waiting == 0


def test_many_messages_keep_their_order(queue: QueueTable) -> None:
    # more than two full statements
    sent = rows(queue.dialect.rows_per_send * 2 + 3)
    queue.send(sent)
    assert [peeked.body for peeked in queue.peek(5_000)] == [each.body for each in sent]


def test_order_follows_the_time_of_sending(queue: QueueTable) -> None:
    for body in (b"c", b"a", b"b"):
        queue.send([row(body)])
    assert receive_all(queue) == [b"c", b"a", b"b"]


def test_send_outside_a_transaction_is_visible_at_once(queue: QueueTable) -> None:
    queue.send(rows(2))
    assert elsewhere(queue.depth).waiting == 2


def test_send_follows_the_surrounding_transaction(queue: QueueTable) -> None:
    with transaction.atomic(using=queue.alias):
        queue.send(rows(queue.dialect.rows_per_send + 1))
        assert elsewhere(queue.depth).waiting == 0
        transaction.set_rollback(True, using=queue.alias)
    assert queue.depth().waiting == 0

    with transaction.atomic(using=queue.alias):
        queue.send(rows(1))
    assert queue.depth().waiting == 1


def test_empty_body_stays_empty(queue: QueueTable) -> None:
    queue.send([row(b"")])
    assert receive_all(queue) == [b""]


def test_body_of_64_mib_is_stored(queue: QueueTable) -> None:
    body = b"\x00\xfe\xffx" * (16 * 1024 * 1024)
    queue.send([row(body)])
    (peeked,) = queue.peek(1)
    assert peeked.body_length == len(body)
    assert peeked.body == body[: len(peeked.body or b"")]
    assert receive_all(queue) == [body]


def test_large_messages_share_no_statement(queue: QueueTable) -> None:
    bodies = [bytes([number]) * (SEND_BYTES_PER_STATEMENT // 2 + 1) for number in range(3)]
    queue.send([row(body) for body in bodies])
    assert receive_all(queue) == bodies


def test_correlation_and_reply_columns_are_filled(queue: QueueTable) -> None:
    queue.send([row(correlation_id="c", reply_to_address="r"), row(correlation_id="c" * 256, reply_to_address="r" * 256)])
    found = [(peeked.correlation_id, peeked.reply_to_address) for peeked in queue.peek(2)]
    # the columns hold 255 characters; PostgreSQL has no such columns
    assert found == [(None, None) if queue.dialect.name == "postgresql" else ("c", "r"), (None, None)]


@pytest.mark.parametrize(("dialect", "kept"), [("sqlserver", None), ("sqlite", "Lager.Ñandú.注文")])
def test_column_of_one_byte_characters_gets_the_whole_text_or_none(dialect: str, kept: str | None) -> None:
    sent = row(correlation_id="Lager.Ñandú.注文", reply_to_address="Lager.Ñandú.注文")
    assert values_of([sent], ["correlation_id", "reply_to_address"], dialect) == [kept, kept]
    assert values_of([row(reply_to_address="Lager@[dbo]@[nsb]")], ["reply_to_address"], dialect) == ["Lager@[dbo]@[nsb]"]


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (60_000, timedelta(minutes=1)),
        (int(LONGEST / timedelta(milliseconds=1)), LONGEST),
        (40 * 86_400_000, LONGEST),
        (-60_000, timedelta(minutes=-1)),
        (-(2**40), -LONGEST),
        (0, timedelta()),
    ],
)
def test_time_to_be_received_is_clamped(queue: QueueTable, milliseconds: int, expected: timedelta) -> None:
    queue.send([row(time_to_be_received_ms=milliseconds)])
    (peeked,) = queue.peek(1)
    assert peeked.expires is not None
    assert abs(peeked.expires - datetime.now(UTC) - expected) < timedelta(minutes=1)
    assert peeked.expired is (milliseconds <= 0)


def test_missing_queue_is_reported_by_send(database: QueueDatabase) -> None:
    missing = QueueTable(database.alias, address_of(database, "Nowhere"))
    with pytest.raises(QueueNotFound, match="Nowhere"):
        missing.send(rows(1))
    with pytest.raises(QueueNotFound, match="Nowhere"):
        missing.depth()


def test_dropped_queue_is_reported_and_found_again(queue: QueueTable, database: QueueDatabase, layout: str) -> None:
    queue.send(rows(1))
    execute(database, f"DROP TABLE {queue.qualified}")
    with pytest.raises(QueueNotFound, match="Sales"):
        queue.send(rows(1))
    make_table(database, layout)
    queue.send(rows(2))
    assert queue.depth().waiting == 2


def test_duplicate_row_id_is_refused(postgresql_database: QueueDatabase) -> None:
    # only PostgreSQL has a key on the id (docs/internals/wire.md#postgresql-tables)
    queue = make_table(postgresql_database)
    sent = row()
    queue.send([sent])
    with pytest.raises(ConstraintViolation):
        queue.send([sent])
