"""Spark sends messages: each row once, all rows of a write or none, and no unreadable ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.datasource import WriterCommitMessage

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.spark.source.options import write_options
from sqlqueue_app.spark.source.writer import QueueStreamWriter, Staged
from sqlqueue_app.tables.installation import install_tables
from tests.spark.conftest import Queue, url_of
from tests.support.raw_rows import RawRow, read_rows

ORDER = '{"order_id": "ä"}'


def send(to: Queue, frame: DataFrame, **options: str) -> None:
    given = {"url": url_of(to.database), "queue": to.name, **options}
    frame.write.format("sqlqueue").mode("append").options(**given).save()


def sent(queue: Queue) -> list[RawRow]:
    return read_rows(queue.connection, queue.name)


def staging_tables(queue: Queue) -> list[str]:
    return [name for name in queue.connection.introspection.table_names() if name.startswith("sqlqueue_staging_")]


def test_rows_become_messages(queue: Queue) -> None:
    row_id = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    frame = queue.spark.createDataFrame(
        [(row_id, "Sales.PlaceOrder", ORDER, {"tenant": "a/b", "none": None}, 60.5), (None, "Sales.Cancel", "{}", None, None)],
        "id STRING, type STRING, body STRING, headers MAP<STRING, STRING>, time_to_be_received DOUBLE",
    ).coalesce(1)

    send(queue, frame, send_as="Web")

    first, second = sent(queue)
    assert first.body.decode() == ORDER
    assert first.headers["NServiceBus.MessageId"] == first.headers["NServiceBus.ConversationId"] == row_id
    assert first.headers["NServiceBus.EnclosedMessageTypes"] == "Sales.PlaceOrder"
    assert first.headers["NServiceBus.ContentType"] == "application/json"
    assert first.headers["NServiceBus.OriginatingEndpoint"] == "Web"
    assert first.headers["NServiceBus.TimeToBeReceived"] == "00:01:00.5000000"
    assert (first.headers["tenant"], first.headers["none"]) == ("a/b", None)
    assert first.seconds_left is not None
    assert 0 < first.seconds_left <= 60.5
    if queue.database.vendor == "sqlite":
        assert str(first.id) == first.correlation_id == row_id
    assert second.seconds_left is None
    assert second.headers["NServiceBus.MessageId"] != row_id
    assert staging_tables(queue) == []


def test_many_rows_of_many_tasks_are_sent_once(queue: Queue) -> None:
    frame = queue.spark.range(3000).selectExpr("CAST(id AS STRING) AS id", "to_json(struct(id)) AS body").repartition(3)

    send(queue, frame, message_type="Sales.Count")

    rows = sent(queue)
    assert sorted(int(row.headers["NServiceBus.MessageId"] or "") for row in rows) == list(range(3000))
    assert {json.loads(row.body)["id"] for row in rows} == set(range(3000))
    assert staging_tables(queue) == []


def test_any_bytes_and_an_empty_frame_are_sent(queue: Queue) -> None:
    frame = queue.spark.createDataFrame([(bytearray(b"\0\xff"), "application/x-any")], "BODY BINARY, content_type STRING")

    send(queue, frame, message_type="A")
    send(queue, frame.where("false"), message_type="A")

    (row,) = sent(queue)
    assert row.body == b"\0\xff"
    assert row.headers["NServiceBus.ContentType"] == "application/x-any"


def test_delayed_messages_wait_in_their_table(make_queue: Callable[[str], Queue]) -> None:
    queue = make_queue("Sales")
    address = QueueAddress("Sales.Delayed", "public" if queue.database.vendor == "postgresql" else None, form=queue.database.vendor)
    install_tables(queue.database.alias, [PlannedTable(TableKind.DELAYED, address)])
    frame = queue.spark.createDataFrame([("{}", 90), ("{}", None)], "body STRING, delay INT")

    send(queue, frame, message_type="Sales.Remind", delayed="Sales.Delayed")

    assert len(sent(queue)) == 1
    ((headers,),) = queue.fetch('SELECT headers FROM "Sales.Delayed"')
    expected = {"postgresql": '"public"."Sales"', "sqlserver": "Sales@[dbo]", "sqlite": "Sales"}[queue.database.vendor]
    assert json.loads(headers)["NServiceBus.SqlServer.ForwardDestination"] == expected
    assert "NServiceBus.DeliverAt" in json.loads(headers)


BAD_ROWS: list[tuple[str, tuple[Any, ...], str]] = [
    ("body STRING", ("{",), r"row 1 of a partition cannot be sent, so nothing was sent: body is not JSON .*b'\{'"),
    ("body STRING", ('{"price": NaN}',), "body is not JSON .*NaN is not JSON"),
    ("body STRING", ("null",), "body is not JSON .*the body is null"),
    ("body BINARY", ("{}".encode("utf-16"),), "body is not JSON .*UTF-16"),
    ("body STRING", (None,), "body is NULL: expected text or bytes"),
    ("id STRING, body STRING", ("7", "oops"), "the message '7' cannot be sent, so nothing was sent: body is not JSON"),
    ("id STRING, body STRING", (" ", "{}"), "id is ' ': expected text, or NULL"),
    ("body STRING, type STRING", ("{}", " ; "), "type is ' ; ': expected the full name of a message type"),
    ("body STRING, time_to_be_received DOUBLE", ("{}", -1.0), "time_to_be_received is -1.0: expected seconds, 0 or more"),
    ("body STRING, time_to_be_received DOUBLE", ("{}", float("nan")), "time_to_be_received is nan"),
    ("body STRING, headers MAP<STRING, STRING>", ("{}", {"__type": "x"}), "the header name '__type' cannot be used"),
    (
        "body STRING, headers MAP<STRING, STRING>",
        ("{}", {"NServiceBus.TimeSent": "now"}),
        "the header 'NServiceBus.TimeSent' would fail",
    ),
]


@pytest.mark.parametrize(("schema", "row", "message"), BAD_ROWS)
def test_invalid_row_is_named_and_nothing_is_sent(queue: Queue, schema: str, row: tuple[Any, ...], message: str) -> None:
    fitting = {"body STRING": "{}", "body BINARY": b"{}", "id STRING": "1"}
    good = tuple(fitting.get(column) for column in schema.replace(", STRING>", ">").split(", "))
    frame = queue.spark.createDataFrame([good, row], schema).coalesce(1)

    with pytest.raises(PySparkException, match=message.replace("row 1", "row 2")):
        send(queue, frame, message_type="A")

    assert sent(queue) == []
    assert staging_tables(queue) == []


WRONG: list[tuple[str, dict[str, str], str]] = [
    ("body STRING", {}, "has no column type: name the message type of all rows with the option message_type"),
    ("type STRING", {}, "has no column body"),
    ("body STRING, colour STRING", {"message_type": "A"}, "has the column 'colour': messages have type, body, id"),
    ("body INT", {"message_type": "A"}, "the column body is int: expected string or binary"),
    ("body STRING, delay INT", {"message_type": "A"}, "name the table of delayed messages with the option delayed"),
    ("body STRING", {"message_type": ";"}, "the option message_type is ';'"),
    ("body STRING", {"message_type": "A", "queue": "Nowhere"}, "the option queue is 'Nowhere', and there is no table"),
    ("body STRING", {"message_type": "A", "partitions": "3"}, "has no option 'partitions'"),
]


@pytest.mark.parametrize(("schema", "options", "message"), WRONG)
def test_wrong_schema_or_option_is_one_clear_error(queue: Queue, schema: str, options: dict[str, str], message: str) -> None:
    frame = queue.spark.createDataFrame([tuple({"STRING": "{}", "INT": 1}[each.split()[1]] for each in schema.split(", "))], schema)

    with pytest.raises(PySparkException, match=message):
        send(queue, frame, **options)


def test_queue_is_never_overwritten(queue: Queue) -> None:
    queue.fill(1)
    frame = queue.spark.createDataFrame([("{}",)], "body STRING")
    with pytest.raises(PySparkException, match="a queue cannot be overwritten"):
        frame.write.format("sqlqueue").mode("overwrite").options(url=url_of(queue.database), queue="Sales", message_type="A").save()
    assert len(sent(queue)) == 1


def test_stream_sends_each_row_once(queue: Queue, make_queue: Callable[[str], Queue], tmp_path: Path) -> None:
    target = make_queue("Target")
    options = {"url": url_of(queue.database), "queue": target.name, "message_type": "Sales.Copy"}
    for _ in range(2):
        queue.fill(5)
        frame = queue.spark.readStream.format("sqlqueue").options(url=options["url"], queue="Sales").load()
        writer = frame.selectExpr("Id AS id", "Body AS body").writeStream.format("sqlqueue").options(**options)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()

    headers = [row.headers["NServiceBus.MessageId"] for row in sent(target)]
    assert sorted(map(str, headers)) == sorted(row.Id for row in queue.read().collect())
    assert staging_tables(queue) == []


def test_repeated_batch_sends_nothing(queue: Queue) -> None:
    given = {"url": url_of(queue.database), "queue": "Sales", "message_type": "A", "checkpointLocation": "/x"}
    frame = queue.spark.createDataFrame([("{}",), ("[]",)], "body STRING")
    writer = QueueStreamWriter(write_options(given), frame.schema)

    def staged(query: str) -> list[WriterCommitMessage | None]:
        message = writer.write(iter(frame.toArrow().to_batches()))
        return [Staged(message.table, message.rows, query), Staged(None, 0, query)]

    writer.commit(staged("q"), 0)
    writer.commit(staged("q"), 0)
    writer.commit(staged("q"), 1)
    writer.commit(staged("q"), 0)
    writer.commit(staged("other"), 0)
    writer.abort(staged("q"), 2)

    assert len(sent(queue)) == 6
    assert staging_tables(queue) == []
