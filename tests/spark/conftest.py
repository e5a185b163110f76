"""Queues to read and the URL by which Spark reads them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from pyspark.sql import DataFrame, SparkSession

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.spark.source import source_url
from sqlqueue_app.tables.installation import install_tables
from tests.support.databases import QueueDatabase


def url_of(database: QueueDatabase) -> str:
    """The option `url` of a test's database."""
    settings = database.connection.settings_dict
    return source_url(
        database.vendor,
        str(settings["NAME"]),
        host=settings["HOST"],
        port=settings["PORT"],
        user=settings["USER"],
        password=settings["PASSWORD"],
        options=settings["OPTIONS"],
    )


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of a test, filled by plain SQL and read by Spark."""

    database: QueueDatabase
    spark: SparkSession
    name: str

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return self.database.connection

    @property
    def number(self) -> str:
        """The column that numbers the rows."""
        return "seq" if self.database.vendor == "postgresql" else "RowVersion"

    def execute(self, sql: str, values: list[Any] | None = None) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)

    def fill(self, count: int, *, first: int | None = None) -> None:
        """Add rows with small headers and bodies, numbered from `first` or by the database."""
        for number in range(count):
            self.add(row_version=None if first is None else first + number, body=b"%d" % number)

    def add(
        self,
        *,
        headers: Mapping[str, str | None] | str | None = None,
        body: bytes | None = b"{}",
        expires: str | None = None,
        row_version: int | None = None,
        row_id: str | None = None,
    ) -> str:
        """Add one row and return its id. `expires` is in the format of the database."""
        row_id = row_id or str(uuid.uuid4())
        headers = {"NServiceBus.MessageId": row_id} if headers is None else headers
        values = {
            "Id": row_id.replace("-", "") if self.database.vendor == "sqlite" else row_id,
            "Headers": headers if isinstance(headers, str) else json.dumps(headers),
            "Body": body,
            "Expires": expires,
            **({} if self.database.vendor == "postgresql" else {"Recoverable": True}),
            **({} if row_version is None else {self.number: row_version}),
        }
        names, marks = ", ".join(values), ", ".join(["%s"] * len(values))
        name = self.name.replace("%", "%%")
        insert = f'INSERT INTO "{name}" ({names}) VALUES ({marks})'
        if self.database.vendor == "sqlserver" and row_version is not None:
            insert = f'SET IDENTITY_INSERT "{name}" ON; {insert}; SET IDENTITY_INSERT "{name}" OFF'
        self.execute(insert, list(values.values()))
        return row_id

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def row_versions(self) -> list[int]:
        return [row[0] for row in self.fetch(f'SELECT {self.number} FROM "{self.name}" ORDER BY 1')]

    def read(self, schema: str | None = None, **options: Any) -> DataFrame:
        """The queue as read by the data source."""
        reader = self.spark.read.format("sqlqueue")
        if schema:
            reader = reader.schema(schema)
        return reader.options(**{"url": url_of(self.database), "queue": self.name, **options}).load()


@pytest.fixture
def make_queue(queue_database: QueueDatabase, spark: SparkSession) -> Callable[[str], Queue]:
    """Create queues on each database."""

    def make(name: str) -> Queue:
        schema = "public" if queue_database.vendor == "postgresql" else None
        address = QueueAddress(name, schema, form=queue_database.vendor)
        install_tables(queue_database.alias, [PlannedTable(TableKind.QUEUE, address)])
        return Queue(queue_database, spark, name)

    return make


@pytest.fixture
def queue(make_queue: Callable[[str], Queue]) -> Queue:
    """An empty queue named Sales, once on each database."""
    return make_queue("Sales")
