"""By what failures are alike: the classifiers of ServiceControl with its titles and ids (operations reference 3.2).

So one failure is in the same groups here and in ServicePulse, and a note or a link that names a group holds for both. For that,
the trace of a Python program is read as ServiceControl reads it: one in the form of .NET, which our endpoints write first, has its
innermost frame in the title; a bare traceback of somebody else has `No stacktrace`, also here.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.identifiers import is_blank
from sqlqueue_app.messages.stack_frames import first_frame

Headers = Mapping[str, str | None]


def deterministic_guid(*parts: str) -> uuid.UUID:
    """The id that ServiceControl makes of texts: the MD5 of all of them in a row, in the byte order of .NET."""
    text = "".join(parts).encode("utf-8", "replace")
    return uuid.UUID(bytes_le=hashlib.md5(text, usedforsecurity=False).digest())


def guid_of(text: str | None) -> uuid.UUID | None:
    """The id that a text is; None for any other text."""
    try:
        return uuid.UUID(text or "")
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Classifier:
    """A way to group: `name` is ServiceControl's, `key` stands in addresses of pages, `field` is the column of FailedMessage."""

    key: str
    name: str
    field: str
    title_of: Callable[[Headers], str | None]

    def group_id(self, title: str) -> uuid.UUID:
        """The id of the group of this title."""
        return deterministic_guid(self.name, title)


@dataclass(frozen=True, slots=True)
class Group:
    """A group that a failure is in."""

    classifier: Classifier
    title: str

    @property
    def id(self) -> uuid.UUID:
        """ServiceControl's id of it."""
        return self.classifier.group_id(self.title)


def groups_of(headers: Headers) -> tuple[Group, ...]:
    """The groups of a failed message, at most one of each classifier."""
    titles = ((each, each.title_of(headers)) for each in CLASSIFIERS.values())
    return tuple(Group(each, title) for each, title in titles if title is not None)


def unique_message_id(headers: Headers, *, native_id: str) -> uuid.UUID:
    """What ServiceControl calls the message, the same for all its failures.

    `native_id` is the id of the row, which stands in for a missing message id. Where a retry has written what is no id, it is made
    as for a first failure.
    """
    try:
        return uuid.UUID(headers.get(names.RETRY_UNIQUE_MESSAGE_ID) or "")
    except ValueError:
        return deterministic_guid(headers.get(names.MESSAGE_ID) or native_id, processing_endpoint(headers))


def processing_endpoint(headers: Headers) -> str:
    """The endpoint at which the message failed; empty if nothing says it."""
    said = headers.get(names.PROCESSING_ENDPOINT)
    if said is not None:
        return said
    address = headers.get(names.FAILED_QUEUE) or headers.get(names.REPLY_TO_ADDRESS) or ""
    return address.partition("@")[0]


# --- the titles ---------------------------------------------------------------------------------------------------------------


def exception_title(exception_type: str | None, message: str | None, trace: str | None) -> str:
    """The type of an exception and the method of the first frame of its trace."""
    frame = None
    if trace is not None and not is_blank(trace):
        # ServiceControl does so too, lest the message be taken for frames.
        frame = first_frame(trace.replace(message, "") if message else trace)
    return f"{exception_type or ''}: {frame or 'No stacktrace'}"


def _by_exception(headers: Headers) -> str | None:
    told = (headers.get(name) for name in (names.EXCEPTION_TYPE, names.EXCEPTION_MESSAGE, names.EXCEPTION_STACK_TRACE))
    return exception_title(*told)


def _by_type(headers: Headers) -> str | None:
    types = headers.get(names.ENCLOSED_MESSAGE_TYPES)
    return types.partition(",")[0] if types else None


def _by_address(headers: Headers) -> str | None:
    return headers.get(names.FAILED_QUEUE)


def _by_instance(headers: Headers) -> str | None:
    told = headers.get(names.METRIC_INSTANCE_ID)
    if told is not None:
        return told
    if _by_endpoint(headers) is None:
        return None
    try:
        return uuid.UUID(headers.get(names.HOST_ID) or str(uuid.UUID(int=0))).hex
    except ValueError:
        return None


def _by_endpoint(headers: Headers) -> str | None:
    """The receiving endpoint. ServiceControl knows none where nothing says on which machine it was."""
    queue, _at, place = (headers.get(names.FAILED_QUEUE) or "").partition("@")
    host = headers.get(names.HOST_DISPLAY_NAME, headers.get(names.PROCESSING_MACHINE)) or place
    return (headers.get(names.PROCESSING_ENDPOINT) or queue or None) if host else None


CLASSIFIERS: Final[Mapping[str, Classifier]] = {
    each.key: each
    for each in (
        Classifier("exception", "Exception Type and Stack Trace", "exception_group", _by_exception),
        Classifier("type", "Message Type", "type_group", _by_type),
        Classifier("address", "Endpoint Address", "address_group", _by_address),
        Classifier("instance", "Endpoint Instance", "instance_group", _by_instance),
        Classifier("endpoint", "Endpoint Name", "endpoint_group", _by_endpoint),
    )
}
