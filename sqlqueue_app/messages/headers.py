"""Message headers: their names, the JSON text in which a row keeps them, and the rules for headers that a caller adds.

The text is one flat JSON object of strings and nulls (docs/internals/wire.md#headers-text). Reading accepts all JSON that either
generation of NServiceBus readers accepts, except for doubled names; all of them can read the written text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from sqlqueue_app.messages.errors import NullHeaders, PoisonMessage, WireFormatError
from sqlqueue_app.messages.times import format_time, parse_time, parse_timespan
from sqlqueue_app.messages.types import SURROGATE, has_half_pair, resolve_enclosed

# Routing of a message (docs/internals/wire.md#headers).
MESSAGE_ID: Final = "NServiceBus.MessageId"
CORRELATION_ID: Final = "NServiceBus.CorrelationId"
CONVERSATION_ID: Final = "NServiceBus.ConversationId"
PREVIOUS_CONVERSATION_ID: Final = "NServiceBus.PreviousConversationId"
RELATED_TO: Final = "NServiceBus.RelatedTo"
MESSAGE_INTENT: Final = "NServiceBus.MessageIntent"
REPLY_TO_ADDRESS: Final = "NServiceBus.ReplyToAddress"
TIME_SENT: Final = "NServiceBus.TimeSent"
VERSION: Final = "NServiceBus.Version"
CONTENT_TYPE: Final = "NServiceBus.ContentType"
ENCLOSED_MESSAGE_TYPES: Final = "NServiceBus.EnclosedMessageTypes"
ORIGINATING_ENDPOINT: Final = "NServiceBus.OriginatingEndpoint"
ORIGINATING_MACHINE: Final = "NServiceBus.OriginatingMachine"
ORIGINATING_HOST_ID: Final = "$.diagnostics.originating.hostid"
TIME_TO_BE_RECEIVED: Final = "NServiceBus.TimeToBeReceived"
NON_DURABLE_MESSAGE: Final = "NServiceBus.NonDurableMessage"
DELIVER_AT: Final = "NServiceBus.DeliverAt"
IS_DEFERRED_MESSAGE: Final = "NServiceBus.IsDeferredMessage"
CONTROL_MESSAGE: Final = "NServiceBus.ControlMessage"
RETURN_MESSAGE_ERROR_CODE: Final = "NServiceBus.ReturnMessage.ErrorCode"

# Sagas (docs/internals/wire.md#headers).
SAGA_ID: Final = "NServiceBus.SagaId"
SAGA_TYPE: Final = "NServiceBus.SagaType"
ORIGINATING_SAGA_ID: Final = "NServiceBus.OriginatingSagaId"
ORIGINATING_SAGA_TYPE: Final = "NServiceBus.OriginatingSagaType"
IS_SAGA_TIMEOUT_MESSAGE: Final = "NServiceBus.IsSagaTimeoutMessage"

# Tracing and metrics (docs/internals/wire.md#headers).
START_NEW_TRACE: Final = "NServiceBus.OpenTelemetry.StartNewTrace"
TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
TRACE_CONTEXT: Final = (TRACE_PARENT, TRACE_STATE, BAGGAGE)
METRIC_INSTANCE_ID: Final = "NServiceBus.Metric.InstanceId"

# Legacy (docs/internals/wire.md#headers).
LEGACY_CORRELATION_ID: Final = "CorrId"
CALLBACK_QUEUE: Final = "NServiceBus.SqlServer.CallbackQueue"

# Subscriptions by message (docs/internals/wire.md#control-messages).
SUBSCRIPTION_MESSAGE_TYPE: Final = "SubscriptionMessageType"
SUBSCRIBER_ADDRESS: Final = "NServiceBus.SubscriberAddress"
SUBSCRIBER_ENDPOINT: Final = "NServiceBus.SubscriberEndpoint"

# Recurring messages: specific to sqlqueue.
SCHEDULE: Final = "SqlQueue.Schedule"
SCHEDULED_FOR: Final = "SqlQueue.ScheduledFor"
RUN_BY_HAND: Final = "SqlQueue.RunByHand"

# The priority that the sender chose, "high" or "low": specific to sqlqueue.
PRIORITY: Final = "SqlQueue.Priority"

# The name of the file that has the body, which is empty in the row: specific to sqlqueue.
CLAIM_CHECK: Final = "SqlQueue.ClaimCheck"

# Rate limits: the time that is reserved for a message; specific to sqlqueue.
RATE_RESERVATION: Final = "SqlQueue.RateReservation"

# On the message of a Django task's retry: the id of its result, which is that of the first message.
TASK_RESULT: Final = "SqlQueue.TaskResult"

# Failures (docs/internals/wire.md#error-queue-headers) and retries.
FAILED_QUEUE: Final = "NServiceBus.FailedQ"
TIME_OF_FAILURE: Final = "NServiceBus.TimeOfFailure"
EXCEPTION_TYPE: Final = "NServiceBus.ExceptionInfo.ExceptionType"
EXCEPTION_INNER_TYPE: Final = "NServiceBus.ExceptionInfo.InnerExceptionType"
EXCEPTION_MESSAGE: Final = "NServiceBus.ExceptionInfo.Message"
EXCEPTION_STACK_TRACE: Final = "NServiceBus.ExceptionInfo.StackTrace"
EXCEPTION_SOURCE: Final = "NServiceBus.ExceptionInfo.Source"
EXCEPTION_DATA_PREFIX: Final = "NServiceBus.ExceptionInfo.Data."
HANDLER_START_TIME: Final = EXCEPTION_DATA_PREFIX + "Handler start time"
IMMEDIATE_RETRIES: Final = "NServiceBus.FLRetries"
DELAYED_RETRIES: Final = "NServiceBus.Retries"
DELAYED_RETRIES_TIMESTAMP: Final = "NServiceBus.Retries.Timestamp"
RETRY_UNIQUE_MESSAGE_ID: Final = "ServiceControl.Retry.UniqueMessageId"
RETRY_ACKNOWLEDGEMENT_QUEUE: Final = "ServiceControl.Retry.AcknowledgementQueue"
RETRY_ACKNOWLEDGEMENT_SENT: Final = "ServiceControl.Retry.AcknowledgementSent"
RETRY_SUCCESSFUL: Final = "ServiceControl.Retry.Successful"
RETRY_TO: Final = "ServiceControl.RetryTo"
TARGET_ENDPOINT_ADDRESS: Final = "ServiceControl.TargetEndpointAddress"
EDIT_OF: Final = "ServiceControl.EditOf"

# Audit (docs/internals/wire.md#audit-headers).
PROCESSING_STARTED: Final = "NServiceBus.ProcessingStarted"
PROCESSING_ENDED: Final = "NServiceBus.ProcessingEnded"
PROCESSING_ENDPOINT: Final = "NServiceBus.ProcessingEndpoint"
PROCESSING_MACHINE: Final = "NServiceBus.ProcessingMachine"
HOST_ID: Final = "$.diagnostics.hostid"
HOST_DISPLAY_NAME: Final = "$.diagnostics.hostdisplayname"
ORIGINATING_ADDRESS: Final = "NServiceBus.OriginatingAddress"

# Delayed delivery (docs/internals/wire.md#delayed-delivery).
FORWARDS: Final = "SqlQueue.Forwards"
"""The number of times that handlers have forwarded the message; specific to sqlqueue."""
MAX_FORWARDS: Final = 50
FORWARD_DESTINATION: Final = "NServiceBus.SqlServer.ForwardDestination"
TIMEOUT_EXPIRE: Final = "NServiceBus.Timeout.Expire"
TIMEOUT_ROUTE_TO: Final = "NServiceBus.Timeout.RouteExpiredTimeoutTo"
TIMEOUT_REPLY_TO_ADDRESS: Final = "NServiceBus.Timeout.ReplyToAddress"
TIMEOUT_ID: Final = "Timeout.Id"
CLEAR_TIMEOUTS: Final = "NServiceBus.ClearTimeouts"

Headers = dict[str, str | None]
"""Headers in memory: names exactly as on the wire, in the order of the text."""

_BOOLEANS: Final = {True: "true", False: "false"}
_TEXT: Final = frozenset({str})
_TEXT_OR_NONE: Final = frozenset({str, type(None)})


def read_headers(text: str | None) -> Headers:
    """Parse the headers of a row; ``None`` and the empty text mean none.

    Works like the reader of transport 3 to 9.0: a number, ``true``, ``{}`` or ``[]`` as a value becomes text (``1``,
    ``true``, and twice the empty text), a lone surrogate becomes U+FFFD. Raises :class:`NullHeaders` for the text
    ``null`` and :class:`PoisonMessage` for any other text that is not a flat JSON object: invalid JSON, a byte order
    mark, a duplicate name, a nested value.
    """
    if not text:
        return {}
    try:
        found, end = _raw_decode(text) if text[0] == "{" else (None, -1)
        if end != len(text):
            # surrounding white space, other text after the object, or no object
            found = _decode(text)
    except RecursionError:
        raise PoisonMessage("the headers are nested too deeply; expected one flat JSON object") from None
    except json.JSONDecodeError as error:
        raise PoisonMessage(f"the headers are not JSON ({error}): {_cut(text)}") from None
    if type(found) is not dict:
        return _no_object(found, text)
    for name, value in found.items():
        if type(value) is not str and value is not None:
            found[name] = _as_text(name, value)
    # Lone surrogates come from an escape or from non-ASCII text: both are rare, so the common case costs two look-ups.
    if "\\u" in text or not text.isascii():
        return _without_half_pairs(found)
    return found


def write_headers(headers: Mapping[str, str | None]) -> str:
    """The text of the headers: ASCII JSON without spaces, in order, with ``/`` as ``\\/`` like the originals.

    ASCII, because a ``varchar`` column stores it without loss. A lone surrogate becomes U+FFFD, because the reader of 9.1
    rejects it. Raises :class:`WireFormatError` for a name that is not text and a value that is neither text nor
    ``None``: readers of 9.1 treat any other value as poison.
    """
    if not (_TEXT.issuperset(map(type, headers)) and _TEXT_OR_NONE.issuperset(map(type, headers.values()))):
        for name, value in headers.items():
            check_kinds(name, value)
    text = _encode(dict(headers))
    if "\\ud" in text:
        text = _encode(_without_half_pairs(dict(headers)))
    return text.replace("/", "\\/")


def check_kinds(name: object, value: object) -> None:
    """Raise :class:`WireFormatError` for a name that is not text and a value that is neither text nor ``None``."""
    if not isinstance(name, str):
        raise WireFormatError(f"the header name {name!r} is {type(name).__name__}; expected str")
    if value is not None and not isinstance(value, str):
        raise WireFormatError(f"the header {name!r} is {type(value).__name__} ({value!r}); expected str or None: convert it first")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _doubled(name for name, _ in pairs)
    return found


# Numbers keep their literal text, as in 3..9.0, so no number is too long to convert.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_int=str, parse_float=str, parse_constant=str)
_decode: Final = _DECODER.decode
_raw_decode: Final = _DECODER.raw_decode
_encode: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _BOOLEANS[value]
    if value in ({}, []):
        return ""
    kind = "an object" if isinstance(value, dict) else "an array"
    raise PoisonMessage(f"the header {_cut(name)} is {kind}; expected text or null")


def _no_object(found: Any, text: str) -> Headers:
    if found is None:
        raise NullHeaders("the headers are null; expected a JSON object")
    if found == []:
        return {}
    raise PoisonMessage(f"the headers are not a JSON object: {_cut(text)}")


def _without_half_pairs(headers: Headers) -> Headers:
    if not any(map(has_half_pair, headers)) and not any(map(has_half_pair, headers.values())):
        return headers
    whole = {_whole(name): value and _whole(value) for name, value in headers.items()}
    if len(whole) != len(headers):
        raise _doubled(map(_whole, headers))
    return whole


def _whole(text: str) -> str:
    # One half may be escaped and the other raw: join them first, then replace the lone ones.
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return SURROGATE.sub("\ufffd", joined)


def _doubled(names: Iterable[str]) -> PoisonMessage:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return PoisonMessage(f"the header {_cut(name)} occurs twice; expected each name once")
        seen.add(name)
    return PoisonMessage("a header occurs twice; expected each name once")


def _cut(text: str) -> str:
    """The start of the text for an error message, enough to recognise the row."""
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."


def whole_number(text: str | None) -> int:
    """The count in a header: up to nine ASCII digits; 0 for any other text, which no supported writer produces."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


_REFUSED: Final = {
    "__type": "readers of transports 3 to 9.0 read it as the type of the dictionary, and treat the row as poison",
    FORWARD_DESTINATION: "receivers would forward the message to its value; set the destination with to=",
}


def _check_types(text: str) -> None:
    if not resolve_enclosed(text):
        raise WireFormatError(f"{text!r} names no message type; expected a full name such as 'Sales.PlaceOrder'")


def _check_time(text: str) -> None:
    # Cores 4 and 5 check the separators, too.
    if format_time(parse_time(text)) != text:
        raise WireFormatError(f"the time {text!r} is not like '2026-04-29 21:56:55:590807 Z'")


def _check_intent(text: str) -> None:
    if Intent.read(text) is Intent.UNDEFINED:
        raise WireFormatError(f"the intent {text!r} is unknown; expected {', '.join(filter(None, Intent))}")


_CHECKS: Final[dict[str, Callable[[str], object]]] = {
    TIME_SENT: _check_time,
    DELIVER_AT: _check_time,
    TIMEOUT_EXPIRE: _check_time,
    DELAYED_RETRIES_TIMESTAMP: _check_time,
    PROCESSING_STARTED: _check_time,
    PROCESSING_ENDED: _check_time,
    TIME_OF_FAILURE: _check_time,
    TIME_TO_BE_RECEIVED: parse_timespan,
    ENCLOSED_MESSAGE_TYPES: _check_types,
    MESSAGE_INTENT: _check_intent,
}


def check_custom_headers(headers: object) -> None:
    """Raise :class:`WireFormatError`, naming the header, for values that readers fail on, and unless it is a mapping of text.

    These are times and durations in another form or `None`, no type, an unknown intent, and names with another meaning to readers
    (docs/internals/wire.md#header-readers).
    """
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise WireFormatError(f"headers is {type(headers).__name__} ({headers!r:.200}); expected a dictionary of text")
    for name, value in headers.items():
        check_kinds(name, value)
        if (why := _REFUSED.get(name)) is not None:
            raise WireFormatError(f"the header name {name!r} cannot be used: {why}")
        if (check := _CHECKS.get(name)) is None:
            continue
        if not isinstance(value, str):
            raise WireFormatError(f"the header {name!r} is {value!r}; expected text: readers of NServiceBus fail on anything else")
        try:
            check(value)
        except WireFormatError as error:
            raise WireFormatError(f"the header {name!r} would fail at readers of NServiceBus: {error}") from None


class Intent(StrEnum):
    """The intent of a message (docs/internals/wire.md#headers); equal to its text on the wire."""

    UNDEFINED = ""
    SEND = "Send"
    PUBLISH = "Publish"
    SUBSCRIBE = "Subscribe"
    UNSUBSCRIBE = "Unsubscribe"
    REPLY = "Reply"

    @classmethod
    def read(cls, text: str | None) -> Intent:
        """Parse the intent of a header: a name in any case or its number; ``UNDEFINED`` if unknown or missing."""
        return _INTENTS.get((text or "").strip().lower(), cls.UNDEFINED)


_INTENTS: Final = {key: intent for number, intent in enumerate(Intent) for key in (intent.value.lower(), str(number)) if key}


def json_texts(text: str) -> tuple[str, ...]:
    """The forms of the text in JSON: unchanged, and as our headers, Python and .NET escape it."""
    in_dotnet = re.sub(r"""[^ -~]|["&'+<>`]""", lambda found: "".join(f"\\u{unit}" for unit in _utf16(found[0])), text)
    in_headers = write_headers({"": text})[len('{"":"') : -len('"}')]
    return tuple(dict.fromkeys((text, in_headers, json.dumps(text)[1:-1], in_dotnet)))


def _utf16(character: str) -> list[str]:
    raw = character.encode("utf-16-be", "replace").hex()
    return [raw[start : start + 4] for start in range(0, len(raw), 4)]


def message_id_texts(message_id: str) -> list[str]:
    """The alternative texts of a message id: the headers of the message contain one of them, whatever software wrote them."""
    return header_texts(MESSAGE_ID, message_id)


def header_texts(name: str, value: str) -> list[str]:
    """The alternative texts of a header: all headers with it contain one of them, whatever software wrote them."""
    texts = (text for text in json_texts(value) if "\0" not in text and text.isprintable())
    return [f'"{name}":{space}"{text}"' for text in texts for space in ("", " ")]
