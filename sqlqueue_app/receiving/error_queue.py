"""The error queue: the headers of a failed message, and moving it on the connection of the receive transaction."""

from __future__ import annotations

import asyncio
import concurrent
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asgiref

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import columns_of, complete_headers
from sqlqueue_app.messages.errors import (
    AddressError,
    CannotPrepare,
    HandlerError,
    MessageBodyError,
    MessageTypeError,
    NullBody,
    NullHeaders,
    PoisonMessage,
    Unrecoverable,
)
from sqlqueue_app.messages.headers import Headers, read_headers, whole_number, write_headers
from sqlqueue_app.messages.times import format_time, time_or_none
from sqlqueue_app.policies.recoverability import path_of_class
from sqlqueue_app.sending.composer import utc_now
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.row_selection import TakenRow
from sqlqueue_app.tables.rows import NewRow, PeekedRow, ReceivedRow

# The limit since core 5.2.26 and 6.0.
MESSAGE_CHARACTERS = 16_384
# A trace repeats the error text, which may be as long as its message.
TRACE_CHARACTERS = 100_000
# A retry cannot help: the body, the type or the settings will be the same.
UNRECOVERABLE = (Unrecoverable, MessageBodyError, MessageTypeError, HandlerError, CannotPrepare)
# The worker's own frames, and those of the event loop of an `async def` handler.
_OWN_CODE = (str(Path(__file__).parent.parent), *asgiref.__path__, *asyncio.__path__, *concurrent.__path__)
# A retry reserves a time of its own.
_DROPPED = (names.DELAYED_RETRIES, names.IMMEDIATE_RETRIES, names.RATE_RESERVATION)


@dataclass(frozen=True, slots=True)
class Processor:
    """The processor of the message: endpoint and machine, as in the headers."""

    endpoint: str
    machine: str
    host_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text, which can be kept without the exception and its frames."""

    exception_type: str
    inner_exception_type: str | None
    message: str
    source: str
    stack_trace: str
    traceback: str
    """Only its last part, the Python traceback, for logs."""
    unrecoverable: bool
    facts: Mapping[str, str]
    """Other facts about the attempt, such as its handler; written as entries of the exception's data."""
    policy_failed: bool = False
    """Whether the policy has ended the transaction when it was asked about this failure."""


def failure_of(error: BaseException, *, unrecoverable: bool, facts: Mapping[str, str] | None = None) -> Failure:
    """Describe the exception as text; never raises, whatever the exception's `__str__` does.

    The stack trace has the format by which ServiceControl groups: type and message, then frames in .NET format, innermost first,
    then the Python traceback from the handler on (docs/internals/operations.md#failure-groups).
    """
    inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    text = text_of(error)
    python = _traceback(error)
    return Failure(
        exception_type=path_of_class(type(error)),
        inner_exception_type=path_of_class(type(inner)) if inner is not None else None,
        message=text[:MESSAGE_CHARACTERS],
        source=_source(error),
        stack_trace=_stack_trace(error, text, python),
        traceback=python.rstrip(),
        unrecoverable=unrecoverable,
        facts=facts or {},
    )


def failure_headers(
    headers: dict[str, str | None], failure: Failure, *, processor: Processor, failed_queue: str, at: datetime
) -> dict[str, str | None]:
    """The headers, without retry counters, plus those of the failure (docs/internals/wire.md#error-queue-headers)."""
    kept = without_counters(headers)
    kept[names.PROCESSING_MACHINE] = processor.machine
    kept[names.PROCESSING_ENDPOINT] = processor.endpoint
    kept[names.HOST_ID] = processor.host_id.hex
    kept[names.HOST_DISPLAY_NAME] = processor.machine
    kept[names.FAILED_QUEUE] = failed_queue
    kept[names.EXCEPTION_TYPE] = failure.exception_type
    if failure.inner_exception_type is not None:
        kept[names.EXCEPTION_INNER_TYPE] = failure.inner_exception_type
    kept[names.EXCEPTION_MESSAGE] = failure.message
    kept[names.EXCEPTION_SOURCE] = failure.source
    kept[names.EXCEPTION_STACK_TRACE] = failure.stack_trace
    kept[names.TIME_OF_FAILURE] = format_time(at)
    for name, value in failure.facts.items():
        kept[names.EXCEPTION_DATA_PREFIX + name] = value
    return kept


def without_counters(headers: dict[str, str | None]) -> dict[str, str | None]:
    """The headers without the retry counters, as in the error queue."""
    return {name: value for name, value in headers.items() if name not in _DROPPED}


def text_of(error: BaseException) -> str:
    """The text of an exception; never raises, although `__str__` may raise anything, such as SystemExit."""
    try:
        return str(error)
    except BaseException as broken:  # noqa: BLE001 - a failing __str__ must not hide the failure
        return f"<{type(broken).__name__} while the exception was turned into text>"


def _source(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not frames:
        return type(error).__module__
    return str(trace.tb_frame.f_globals.get("__name__", type(error).__module__))


def _stack_trace(error: BaseException, text: str, python: str) -> str:
    text = text[:MESSAGE_CHARACTERS]
    first = f"{path_of_class(type(error))}: {text}" if text else path_of_class(type(error))
    lines = [first, *_dotnet_frames(error)]
    # No database accepts lone surrogates (from surrogateescape).
    return ("\n".join(lines) + "\n" + python).encode("utf-8", "replace").decode("utf-8")


def _traceback(error: BaseException) -> str:
    """The Python traceback from the handler or its middleware on, without the worker's own frames above."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
        frames = frames.tb_next
    try:
        python = "".join(traceback.format_exception(type(error), error, frames))
    except BaseException:  # noqa: BLE001 - a failing __str__ in the chain of causes
        python = "".join(traceback.format_tb(frames))
    return _shortened(python)


def _shortened(text: str) -> str:
    """Shorten a long text to its beginning and its end: the callers, and the last lines."""
    half = TRACE_CHARACTERS // 2
    if len(text) <= TRACE_CHARACTERS:
        return text
    return f"{text[:half]}\n... ({len(text) - 2 * half:,} characters are left out) ...\n{text[-half:]}"


def _dotnet_frames(error: BaseException) -> list[str]:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        module = trace.tb_frame.f_globals.get("__name__", "?")
        # "<lambda>" and "<locals>" would end the name for a reader that looks for Type.Method(...).
        name = code.co_qualname.replace("<locals>.", "").replace("<", "").replace(">", "")
        frames.append(f"   at {module}.{name}() in {code.co_filename}:line {trace.tb_lineno}")
        trace = trace.tb_next
    return frames[::-1]


class ErrorQueue:
    """The error queue of an endpoint, as used by one of its queues. Drops the expiry: a failure waits for a decision."""

    def __init__(
        self,
        alias: str,
        address: QueueAddress,
        *,
        failed_queue: str,
        processor: Processor,
        now: Callable[[], datetime] = utc_now,
        received_from: Iterable[QueueAddress] = (),
    ) -> None:
        """`received_from`: the queues of the endpoint, in which a failed message would fail again at once."""
        self.alias = alias
        self._queue = address
        self._received_from = frozenset(map(_identity, received_from))
        self._failed_queue = failed_queue
        self._processor = processor
        self._now = now

    @property
    def address(self) -> str:
        """The error queue as text, for logs."""
        return str(self._queue)

    def at(self, address: QueueAddress) -> ErrorQueue:
        """An object for another error queue; AddressError if the endpoint receives from it."""
        if _identity(address) in self._received_from:
            raise AddressError("the endpoint receives from it, so the message would fail again and again")
        return ErrorQueue(self.alias, address, failed_queue=self._failed_queue, processor=self._processor, now=self._now)

    def move(self, row: ReceivedRow, headers: Headers, failure: Failure) -> None:
        """Write the message with these headers and those of the failure; the same transaction has deleted the row.

        The headers include the row's id and the values of its columns, because a retry may read nothing else.
        """
        complete = headers_of_copy(row, headers)
        written = failure_headers(complete, failure, processor=self._processor, failed_queue=self._failed_queue, at=self._now())
        self._send(row, write_headers(written), *columns_of(written))

    def move_failed(self, row: ReceivedRow, headers: Headers, failure: Failure) -> None:
        """Write a message that has failed elsewhere, and keep the headers of that failure unchanged.

        `failure` is for a message whose headers name only the queue where it failed.
        """
        written = headers_of_copy(row, without_counters(headers))
        if not written.get(names.EXCEPTION_TYPE):
            failed_queue = written.get(names.FAILED_QUEUE) or self._failed_queue
            written = failure_headers(written, failure, processor=self._processor, failed_queue=failed_queue, at=self._now())
        self._send(row, write_headers(written), *columns_of(written))

    def move_poison(self, row: ReceivedRow, poison: PoisonMessage, failure: Failure) -> None:
        """Write a row that cannot be read: byte for byte (docs/internals/endpoints.md#poison-messages).

        Headers or a body that are null get the headers of the failure, because null stops a receiver of NServiceBus.
        """
        if isinstance(poison, (NullHeaders, NullBody)):
            self.move(row, {} if isinstance(poison, NullHeaders) else read_headers(row.headers), failure)
        else:
            self._send(row, row.headers or "", row.correlation_id, row.reply_to_address)

    def rescue(self, row: ReceivedRow, failure: Failure) -> None:
        """Write a row that is in no queue any more."""
        try:
            headers = read_headers(row.headers)
        except PoisonMessage as poison:
            self.move_poison(row, poison, failure)
            return
        self.move(row, headers, failure)

    def _send(self, row: ReceivedRow, headers: str, correlation_id: str | None, reply_to_address: str | None) -> None:
        table = queue_table(self.alias, self._queue)
        table.send([NewRow(str(table.id_of_copy(row.id)), headers, row.body or b"", correlation_id, reply_to_address)])


def _identity(address: QueueAddress) -> tuple[str | None, ...]:
    """Equal for addresses of one table: only PostgreSQL distinguishes upper and lower case, and trailing spaces."""
    parts = (address.catalog, address.schema, address.table)
    return parts if address.form == "postgresql" else tuple(part and part.rstrip().casefold() for part in parts)


def retries_so_far(headers: Headers) -> int:
    """The number of delayed retries so far; 0 if the header holds no number (docs/internals/endpoints.md#retry-policy)."""
    return whole_number(headers.get(names.DELAYED_RETRIES))


def last_retry_at(headers: Headers) -> datetime | None:
    """The time of the last delayed retry, aware (cores 4 and 5: of the first); None if the header holds no time."""
    return time_or_none(headers.get(names.DELAYED_RETRIES_TIMESTAMP))


def with_next_retry(headers: Headers, now: datetime) -> Headers:
    """The headers for another delayed retry, stored at `now`; its immediate retries start from 0 again."""
    counted = {name: value for name, value in headers.items() if name not in (names.IMMEDIATE_RETRIES, names.RATE_RESERVATION)}
    counted[names.DELAYED_RETRIES] = str(retries_so_far(headers) + 1)
    counted[names.DELAYED_RETRIES_TIMESTAMP] = format_time(now)
    return counted


def headers_of_copy(row: ReceivedRow | PeekedRow | TakenRow, headers: Headers) -> Headers:
    """The headers for a copy of the row, including its id and the values of its columns."""
    return complete_headers(headers, message_id=str(row.id), correlation_id=row.correlation_id, reply_to=row.reply_to_address)
