"""The columns that the data source gives, whatever the database calls them."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructField, StructType, TimestampType

from sqlqueue_app.messages.errors import ConfigurationError

_COLUMNS: Mapping[str, DataType] = {
    "RowVersion": LongType(),
    "Id": StringType(),
    "CorrelationId": StringType(),
    "ReplyToAddress": StringType(),
    "Expires": TimestampType(),
    "Headers": StringType(),
    "Body": BinaryType(),
}
HEADER_MAP = "HeaderMap"
_PARSED: Mapping[str, DataType] = {HEADER_MAP: MapType(StringType(), StringType())}


def schema_of(*, parsed_headers: bool) -> StructType:
    """All columns, in their order."""
    return StructType([StructField(name, kind) for name, kind in _known(parsed_headers).items()])


def check_schema(schema: StructType, *, parsed_headers: bool) -> None:
    """ConfigurationError unless the schema that a caller asks for is made of our columns: any of them, in any order."""
    known = _known(parsed_headers)
    for field in schema.fields:
        kind = known.get(field.name)
        if kind is None:
            hint = " (the option headers=parsed gives it)" if field.name == HEADER_MAP else ""
            raise ConfigurationError(f"the schema asks for the column {field.name!r}{hint}: a queue has {', '.join(known)}")
        if field.dataType != kind:
            raise ConfigurationError(
                f"the schema asks for the column {field.name} as {field.dataType.simpleString()}: expected {kind.simpleString()}"
            )


def _known(parsed_headers: bool) -> dict[str, DataType]:
    return {**_COLUMNS, **(_PARSED if parsed_headers else {})}
