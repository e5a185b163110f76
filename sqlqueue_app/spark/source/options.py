"""The options of the data source, validated before any database access."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.messages.types import resolve_enclosed
from sqlqueue_app.spark.source.database_url import Database, parse_url
from sqlqueue_app.spark.source.staging import Sending

_KNOWN = ("url", "queue", "partitions", "batch_size", "headers")
_WRITE = ("message_type", "send_as", "delayed")
_OF_SPARK = ("checkpointlocation", "queryname")
_STREAM = ("max_rows_per_trigger", "settle_seconds")
_SECONDS_TO_SETTLE = 60
_MAX_PARTITIONS = 10_000
# A compromise between memory for large rows and the overhead per batch.
_ROWS_OF_A_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. `partitions` None: one per processor, fewer for few rows."""

    database: Database
    queue: str
    partitions: int | None
    batch_size: int
    parsed_headers: bool


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read. Raises ConfigurationError, which names the option."""
    given = {key.lower(): value for key, value in options.items()}
    check_names(given, _KNOWN)
    headers = given.get("headers", "raw")
    if headers not in ("raw", "parsed"):
        raise ConfigurationError(f"the option headers is {headers!r}: expected 'raw', or 'parsed' for the column HeaderMap")
    return ReadOptions(
        parse_url(needed(given, "url", "postgresql://user:password@host:5432/database").strip()),
        needed(given, "queue", "the name of a queue, such as Sales"),
        whole_number(given, "partitions", None, _MAX_PARTITIONS),
        whole_number(given, "batch_size", _ROWS_OF_A_BATCH, 1_000_000) or _ROWS_OF_A_BATCH,
        headers == "parsed",
    )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a streaming read. `settle_seconds`: the maximum wait of an AvailableNow run for open transactions."""

    read: ReadOptions
    max_rows_per_trigger: int | None
    settle_seconds: int


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a streaming read. Raises ConfigurationError, which names the option."""
    given = {key.lower(): value for key, value in options.items()}
    check_names(given, (*_KNOWN, *_STREAM))
    return StreamOptions(
        read_options({name: value for name, value in given.items() if name not in _STREAM}),
        whole_number(given, "max_rows_per_trigger", None, 1_000_000_000 - 1),
        whole_number(given, "settle_seconds", _SECONDS_TO_SETTLE, 86_400) or _SECONDS_TO_SETTLE,
    )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. `delayed` is the table of delayed messages."""

    database: Database
    queue: str
    delayed: str | None
    sending: Sending


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises ConfigurationError, which names the option."""
    # Spark passes its own options of a streaming query to the source.
    given = {key.lower(): value for key, value in options.items() if key.lower() not in _OF_SPARK}
    check_names(given, ("url", "queue", *_WRITE))
    text = {name: given.get(name, "").strip() or None for name in _WRITE}
    if text["message_type"] is not None and not resolve_enclosed(text["message_type"]):
        raise ConfigurationError(f"the option message_type is {text['message_type']!r}: expected a name such as Sales.PlaceOrder")
    return WriteOptions(
        parse_url(needed(given, "url", "postgresql://user:password@host:5432/database").strip()),
        needed(given, "queue", "the name of a queue, such as Sales"),
        text["delayed"],
        Sending(text["message_type"], text["send_as"], text["delayed"] is not None),
    )


def check_names(given: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raise ConfigurationError for an unknown option and suggest the closest one."""
    for name in given:
        if name == "path":
            raise ConfigurationError(f"a path ({given[name]!r}) was given to load() or save(): use the option queue instead")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            suggestion = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(known)}"
            raise ConfigurationError(f"the data source sqlqueue has no option {name!r}: {suggestion}")


def needed(given: Mapping[str, str], name: str, example: str) -> str:
    value = given.get(name, "")
    if not value.strip():
        raise ConfigurationError(f"the option {name} is missing: expected {example}")
    return value


def whole_number(given: Mapping[str, str], name: str, default: int | None, maximum: int) -> int | None:
    """An option that is an integer of at least 1."""
    text = given.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= maximum):
        raise ConfigurationError(f"the option {name} is {text!r}: expected a whole number from 1 to {maximum:,}")
    return int(text)
