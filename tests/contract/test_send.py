"""Sending: what goes in comes out, in order, all or none."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from sqlqueue_app.messages.errors import ConstraintViolation, QueueNotFound
from sqlqueue_app.tables.queue import SEND_BYTES_PER_STATEMENT, QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from sqlqueue_app.tables.rows import values_of
from tests.support.databases import QueueDatabase
from tests.support.tables import address_of, elsewhere, execute, make_table, receive_all, row, rows

LONGEST = timedelta(milliseconds=2**31 - 1)


def test_one_message_comes_out_as_it_went_in(queue: QueueTable) -> None:
    sent = row(b"\x00\xff{}", '{"NServiceBus.MessageId": "é \\u0000 %s ? :id"}')
    queue.send([sent])

    receiving = receive_transaction(queue)
    received = receiving.receive()
    receiving.commit()

    assert received is not None
    assert (received.id, received.headers, received.body) == (uuid.UUID(sent.id), sent.headers, sent.body)
    assert received.expired is False
    assert receive_all(queue) == []


def test_sending_nothing_sends_nothing(queue: QueueTable) -> None:
    queue.send([])
    assert queue.depth().waiting == 0


def test_many_messages_keep_their_order(queue: QueueTable) -> None:
    # more than two full statements, and a rest
    sent = rows(queue.dialect.rows_per_send * 2 + 3)
    queue.send(sent)
    assert [peeked.body for peeked in queue.peek(5_000)] == [each.body for each in sent]


def test_order_is_by_the_time_of_sending(queue: QueueTable) -> None:
    for body in (b"c", b"a", b"b"):
        queue.send([row(body)])
    assert receive_all(queue) == [b"c", b"a", b"b"]


def test_a_send_outside_of_a_transaction_is_seen_at_once(queue: QueueTable) -> None:
    queue.send(rows(2))
    assert elsewhere(queue.depth).waiting == 2


def test_a_send_follows_the_transaction_around_it(queue: QueueTable) -> None:
    with transaction.atomic(using=queue.alias):
        queue.send(rows(queue.dialect.rows_per_send + 1))
        assert elsewhere(queue.depth).waiting == 0
        transaction.set_rollback(True, using=queue.alias)
    assert queue.depth().waiting == 0

    with transaction.atomic(using=queue.alias):
        queue.send(rows(1))
    assert queue.depth().waiting == 1


def test_an_empty_body_stays_empty(queue: QueueTable) -> None:
    queue.send([row(b"")])
    assert receive_all(queue) == [b""]


def test_a_body_of_64_mib(queue: QueueTable) -> None:
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


def test_columns_of_correlation_and_reply(queue: QueueTable) -> None:
    queue.send([row(correlation_id="c", reply_to_address="r"), row(correlation_id="c" * 256, reply_to_address="r" * 256)])
    found = [(peeked.correlation_id, peeked.reply_to_address) for peeked in queue.peek(2)]
    # the columns hold 255 characters; PostgreSQL has none
    assert found == [(None, None) if queue.dialect.name == "postgresql" else ("c", "r"), (None, None)]


@pytest.mark.parametrize(("dialect", "kept"), [("sqlserver", None), ("sqlite", "Lager.Ñandú.注文")])
def test_a_column_of_one_byte_characters_gets_the_whole_text_or_none(dialect: str, kept: str | None) -> None:
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


def test_a_missing_queue_is_named(database: QueueDatabase) -> None:
    missing = QueueTable(database.alias, address_of(database, "Nowhere"))
    with pytest.raises(QueueNotFound, match="Nowhere"):
        missing.send(rows(1))
    with pytest.raises(QueueNotFound, match="Nowhere"):
        missing.depth()


def test_a_queue_that_vanished_is_named_and_found_again(queue: QueueTable, database: QueueDatabase, layout: str) -> None:
    queue.send(rows(1))
    execute(database, f"DROP TABLE {queue.qualified}")
    with pytest.raises(QueueNotFound, match="Sales"):
        queue.send(rows(1))
    make_table(database, layout)
    queue.send(rows(2))
    assert queue.depth().waiting == 2


def test_a_row_id_twice(postgresql_database: QueueDatabase) -> None:
    # only PostgreSQL has a key on the id (docs/internals/wire.md#postgresql-tables)
    queue = make_table(postgresql_database)
    sent = row()
    queue.send([sent])
    with pytest.raises(ConstraintViolation):
        queue.send([sent])
