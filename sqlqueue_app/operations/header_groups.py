"""The headers of a message in groups that a person looks for."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.headers import Headers


class GroupName(enum.StrEnum):
    """What the headers of a group are about, in the order of the page."""

    FAILURE = "failure"
    MESSAGE = "message"
    ROUTING = "routing"
    TIMES = "times"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class HeaderGroup:
    """The headers of one group with their values, in the order of the row."""

    name: GroupName
    headers: tuple[tuple[str, str | None], ...]


_MESSAGE: Final = frozenset(
    {
        names.MESSAGE_ID,
        names.CORRELATION_ID,
        names.CONVERSATION_ID,
        names.PREVIOUS_CONVERSATION_ID,
        names.RELATED_TO,
        names.MESSAGE_INTENT,
        names.ENCLOSED_MESSAGE_TYPES,
        names.CONTENT_TYPE,
        names.VERSION,
        names.CONTROL_MESSAGE,
        names.NON_DURABLE_MESSAGE,
        names.RETURN_MESSAGE_ERROR_CODE,
        names.SUBSCRIPTION_MESSAGE_TYPE,
        names.SAGA_ID,
        names.SAGA_TYPE,
        names.ORIGINATING_SAGA_ID,
        names.ORIGINATING_SAGA_TYPE,
        names.IS_SAGA_TIMEOUT_MESSAGE,
        names.LEGACY_CORRELATION_ID,
    }
)
_ROUTING: Final = frozenset(
    {
        names.REPLY_TO_ADDRESS,
        names.ORIGINATING_ENDPOINT,
        names.ORIGINATING_MACHINE,
        names.ORIGINATING_HOST_ID,
        names.ORIGINATING_ADDRESS,
        names.SUBSCRIBER_ADDRESS,
        names.SUBSCRIBER_ENDPOINT,
        names.CALLBACK_QUEUE,
        names.PROCESSING_ENDPOINT,
        names.PROCESSING_MACHINE,
        names.HOST_ID,
        names.HOST_DISPLAY_NAME,
        names.FORWARD_DESTINATION,
        names.TIMEOUT_ROUTE_TO,
        names.TIMEOUT_REPLY_TO_ADDRESS,
    }
)
_TIMES: Final = frozenset(
    {
        names.TIME_SENT,
        names.DELIVER_AT,
        names.IS_DEFERRED_MESSAGE,
        names.TIME_TO_BE_RECEIVED,
        names.PROCESSING_STARTED,
        names.PROCESSING_ENDED,
        names.TIMEOUT_EXPIRE,
    }
)
_FAILURE: Final = frozenset({names.FAILED_QUEUE, names.TIME_OF_FAILURE, names.IMMEDIATE_RETRIES})
_FAILURE_PREFIXES: Final = ("NServiceBus.ExceptionInfo.", names.DELAYED_RETRIES, "ServiceControl.Retry.")


def group_of(header: str) -> GroupName:
    """The group that a header belongs to; what nobody knows is OTHER."""
    if header in _FAILURE or header.startswith(_FAILURE_PREFIXES):
        return GroupName.FAILURE
    for name, members in ((GroupName.MESSAGE, _MESSAGE), (GroupName.ROUTING, _ROUTING), (GroupName.TIMES, _TIMES)):
        if header in members:
            return name
    return GroupName.OTHER


def grouped_headers(headers: Headers) -> tuple[HeaderGroup, ...]:
    """Every header once, in groups; empty groups are left out."""
    found: dict[GroupName, list[tuple[str, str | None]]] = {name: [] for name in GroupName}
    for name, value in headers.items():
        found[group_of(name)].append((name, value))
    return tuple(HeaderGroup(name, tuple(members)) for name, members in found.items() if members)
