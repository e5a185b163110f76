"""Headers of a caller's own: none that a reader of NServiceBus fails on (transport reference 6.2, 6.4 and 18)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import Intent
from sqlqueue_app.messages.errors import WireFormatError
from sqlqueue_app.messages.times import format_time, parse_time, parse_timespan
from sqlqueue_app.messages.types import resolve_enclosed

_REFUSED: Final = {
    "__type": "readers of transports 3 to 9.0 take it for the type of the dictionary, and the row for poison",
    names.FORWARD_DESTINATION: "receivers would send the message on to what it says; say where it goes by to=",
}


def _check_types(text: str) -> None:
    if not resolve_enclosed(text):
        raise WireFormatError(f"{text!r} names no message type; expected a full name such as 'Sales.PlaceOrder'")


def _check_time(text: str) -> None:
    # Cores 4 and 5 look at the separators, too.
    if format_time(parse_time(text)) != text:
        raise WireFormatError(f"the time {text!r} is not like '2026-04-29 21:56:55:590807 Z'")


def _check_intent(text: str) -> None:
    if Intent.read(text) is Intent.UNDEFINED:
        raise WireFormatError(f"the intent {text!r} is unknown; expected {', '.join(filter(None, Intent))}")


_CHECKS: Final[dict[str, Callable[[str], object]]] = {
    names.TIME_SENT: _check_time,
    names.DELIVER_AT: _check_time,
    names.TIMEOUT_EXPIRE: _check_time,
    names.DELAYED_RETRIES_TIMESTAMP: _check_time,
    names.PROCESSING_STARTED: _check_time,
    names.PROCESSING_ENDED: _check_time,
    names.TIME_OF_FAILURE: _check_time,
    names.TIME_TO_BE_RECEIVED: parse_timespan,
    names.ENCLOSED_MESSAGE_TYPES: _check_types,
    names.MESSAGE_INTENT: _check_intent,
}


def check_custom_headers(headers: object) -> None:
    """Raise :class:`WireFormatError`, naming the header, for what readers fail on, and for what is no mapping of text.

    That is a time or duration in another form or `None`, no type, an unknown intent, names that mean something else to readers.
    What a header may say otherwise is its sender's business.
    """
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise WireFormatError(f"headers is {type(headers).__name__} ({headers!r:.200}); expected a dictionary of text")
    for name, value in headers.items():
        names.check_kinds(name, value)
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
