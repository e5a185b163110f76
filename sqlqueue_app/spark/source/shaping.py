"""Batches of a database as Spark wants them: exactly the columns and types of a schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from sqlqueue_app.messages.errors import WireFormatError
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.spark.source.columns import HEADER_MAP


def wanted_columns(schema: pa.Schema, there: Iterable[str]) -> list[str]:
    """The columns of the table that the schema needs."""
    names = set(schema.names) | ({"Headers"} if HEADER_MAP in schema.names else set())
    # at least one: a table is read by its columns, also where somebody asks for those alone that it does not have
    return [name for name in there if name in names] or ["RowVersion"]


def shaped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches with the columns of the schema; NULL for those that the table does not have."""
    for batch in batches:
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays([_column(batch, field) for field in schema], schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name == HEADER_MAP:
        return _header_maps(batch.column("Headers"), field.type)
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    return column if column.type == field.type else column.cast(field.type)


def _header_maps(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array([_pairs(text) for text in texts.to_pylist()], kind)


def _pairs(text: str | None) -> list[tuple[str, str | None]] | None:
    """The headers as a worker reads them; None where it cannot: the text is in the column Headers still."""
    try:
        return list(read_headers(text).items())
    except WireFormatError:
        return None
