"""The headers that a failed message carries into the error queue (transport reference 6.7).

The stack trace is written in the form that ServiceControl groups by: a first line with type and message, then a frame in the
form of .NET, innermost first; the Python traceback follows below (operations reference 3.2).
"""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import CannotPrepare, HandlerError, MessageBodyError, MessageTypeError, Unrecoverable
from sqlqueue_app.messages.times import format_time

# Cut as core 5.2.26 and 6.0 on do.
MESSAGE_CHARACTERS = 16_384
# The text of an error stands in the trace several times, and may be as long as the message that it is about.
TRACE_CHARACTERS = 100_000
# Trying again cannot help: the body, the type or the settings will be the same.
UNRECOVERABLE = (Unrecoverable, MessageBodyError, MessageTypeError, HandlerError, CannotPrepare)
_DROPPED = (names.DELAYED_RETRIES, names.IMMEDIATE_RETRIES)


@dataclass(frozen=True, slots=True)
class Processor:
    """Who processed the message: endpoint and machine, as they stand in the headers."""

    endpoint: str
    machine: str
    host_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text, so that it can be kept while the exception itself, with its frames, is let go."""

    exception_type: str
    inner_exception_type: str | None
    message: str
    source: str
    stack_trace: str
    unrecoverable: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else is known of the attempt, such as its handler; written as entries of the exception's data."""


def failure_of(error: BaseException, *, unrecoverable: bool, facts: Mapping[str, str] | None = None) -> Failure:
    """The exception in words; never raises, whatever the exception's own `__str__` does."""
    inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    text = _text(error)
    return Failure(
        exception_type=_type_name(error),
        inner_exception_type=_type_name(inner) if inner is not None else None,
        message=text[:MESSAGE_CHARACTERS],
        source=_source(error),
        stack_trace=_stack_trace(error, text),
        unrecoverable=unrecoverable,
        facts=facts or {},
    )


def failure_headers(
    headers: dict[str, str | None], failure: Failure, *, processor: Processor, failed_queue: str, at: datetime
) -> dict[str, str | None]:
    """The headers of the message plus those of the failure; retry counters are dropped, their timestamp is kept."""
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
    """The headers without the retry counters, as a message is in the error queue."""
    return {name: value for name, value in headers.items() if name not in _DROPPED}


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - whatever an exception's own __str__ does must not hide the failure
        return f"<{type(broken).__name__} while the exception was turned into text>"


def _source(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not frames:
        return type(error).__module__
    return str(trace.tb_frame.f_globals.get("__name__", type(error).__module__))


def _stack_trace(error: BaseException, text: str) -> str:
    text = text[:MESSAGE_CHARACTERS]
    first = f"{_type_name(error)}: {text}" if text else _type_name(error)
    lines = [first, *_dotnet_frames(error)]
    try:
        python = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - a broken __str__ in the chain of causes
        python = "".join(traceback.format_tb(error.__traceback__))
    # Halves of surrogate pairs (from surrogateescape) cannot be written into any of the databases.
    return ("\n".join(lines) + "\n" + _shortened(python)).encode("utf-8", "replace").decode("utf-8")


def _shortened(text: str) -> str:
    """The beginning and the end of a text that is too long: who was called, and what was said last."""
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
