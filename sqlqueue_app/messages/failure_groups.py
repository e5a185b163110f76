"""Group similar failures with the classifiers of ServiceControl, with its titles and ids.

See docs/internals/operations.md#failure-groups.

A failure is in the same groups here and in ServicePulse, so a note or link with a group works in both. Python traces are read
as ServiceControl reads them: the title contains the innermost frame of a trace in the form of .NET, which our endpoints write
first, and `No stacktrace` for a plain traceback from other software.
"""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import is_blank
from sqlqueue_app.messages.envelope import guid_of

_WORD: Final = re.compile(r"[ \t]*\w+[ \t]+")
# Only white space ends a name, a line break does not; longer text is not a name.
_NAME: Final = re.compile(r"[^ \t]{0,4000}")
_SPACES: Final = re.compile(r"[ \t]*")
_SPACE: Final = re.compile(r"[ \t]")
_PARENTHESES: Final = re.compile(r"\)")
# The text before and after the name of a file.
_IN: Final = re.compile(r"[ \t]+\w+[ \t]+(?:[A-Za-z]:|/)")
_LINE: Final = re.compile(r":\w+[ \t]+[0-9]+")
_MONO: Final = re.compile(r"[ \t]+\[0x[0-9a-f]+\][ \t]+\w+[ \t]+<[^>]{1,1000}>:[0-9]+\s*", re.IGNORECASE)


def first_frame(trace: str) -> str | None:
    """The method of the first frame of a .NET stack trace, as ``Type.Method(parameters)``; None if no line is a frame.

    A frame is text that matches ServiceControl's regular expression, which has a time limit of 5 seconds
    (docs/internals/operations.md#failure-groups). Any sender of messages controls a trace, so this is a parser of our own, whose
    time grows only with the length of the trace:

        at <type>.<method>(<parameters>) in <file>:line <number>

    ``at``, ``in`` and ``line`` may be any word, because .NET translates them. Parameters are empty or a type and a name at least.
    The location is optional; its file starts with ``/`` or a drive letter, or it has the form of Mono. Nothing else may follow.
    """
    frames = _Frames(trace)
    start = 0
    while start <= len(trace):
        word = _WORD.match(trace, start)
        found = frames.method_at(word.end()) if word is not None else None
        if found is not None:
            return found
        start = frames.end_of_line(start) + 1
    return None


@dataclass(frozen=True, slots=True)
class _Line:
    """A line: the positions of the parentheses after which a frame may end, and of its white space."""

    closing: tuple[int, ...]
    spaces: tuple[int, ...]


class _Frames:
    """A trace; each line is examined once."""

    def __init__(self, trace: str) -> None:
        self._trace = trace
        self._lines: dict[int, _Line] = {}

    def end_of_line(self, position: int) -> int:
        """The end of the line that contains the position."""
        end = self._trace.find("\n", position)
        return len(self._trace) if end < 0 else end

    def method_at(self, start: int) -> str | None:
        """The method whose name starts at this position."""
        trace = self._trace
        end = _end(_NAME, trace, start)
        openings = [each for each in range(start + 3, end) if trace[each] == "("]
        behind = _end(_SPACES, trace, end)
        if trace.startswith("(", behind):
            openings.append(behind)
        ends = {each: closed for each in openings if (closed := self._end_of_parameters(each)) is not None}
        if not ends:
            return None
        # The type takes as much as possible, the method as little as possible; both have at least one character.
        dot = trace.rfind(".", start + 1, min(max(ends), end) - 1)
        if dot < 0:
            return None
        opening = next(each for each in ends if min(each, end) >= dot + 2)
        return trace[start : min(opening, end)] + trace[opening : ends[opening]]

    def _end_of_parameters(self, opening: int) -> int | None:
        line = self._line(opening)
        nothing = _end(_SPACES, self._trace, opening + 1)
        # A type, white space, a name.
        later = bisect_left(line.spaces, opening + 2)
        named = line.spaces[later] + 2 if later < len(line.spaces) else sys.maxsize
        for closing in line.closing[bisect_left(line.closing, opening) :]:
            if closing == nothing or closing >= named:
                return closing + 1
        return None

    def _line(self, position: int) -> _Line:
        end = self.end_of_line(position)
        line = self._lines.get(end)
        if line is None:
            start = self._trace.rfind("\n", 0, position) + 1
            text_end = start + len(self._trace[start:end].rstrip())
            colon = self._colon_after_file(start, text_end)
            found = (each.start() for each in _PARENTHESES.finditer(self._trace, start, end))
            closing = tuple(each for each in found if each + 1 >= text_end or self._is_place(each + 1, colon, end))
            spaces = tuple(each.start() for each in _SPACE.finditer(self._trace, start, end)) if closing else ()
            line = self._lines[end] = _Line(closing, spaces)
        return line

    def _colon_after_file(self, start: int, end: int) -> int:
        """The position of the colon of ``:line 42`` at the end of a line, with or without a punctuation mark; -1 if missing."""
        punctuated = end > start and unicodedata.category(self._trace[end - 1]).startswith("P")
        for last in (end - 1, end) if punctuated else (end,):
            colon = self._trace.rfind(":", start, last)
            if colon >= 0 and _LINE.fullmatch(self._trace, colon, last):
                return colon
        return -1

    def _is_place(self, after: int, colon: int, end: int) -> bool:
        before = _IN.match(self._trace, after, end)
        # There is at least one character between the root of the file and the colon.
        return (before is not None and before.end() < colon) or _MONO.fullmatch(self._trace, after, end) is not None


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return start if found is None else found.end()


Headers = Mapping[str, str | None]


def deterministic_guid(*parts: str) -> uuid.UUID:
    """The id that ServiceControl computes from texts: the MD5 of their concatenation, in the byte order of .NET."""
    text = "".join(parts).encode("utf-8", "replace")
    return uuid.UUID(bytes_le=hashlib.md5(text, usedforsecurity=False).digest())


@dataclass(frozen=True, slots=True)
class Classifier:
    """A way to group: `name` is ServiceControl's, `key` is used in URLs, `field` is the column of FailedMessage."""

    key: str
    name: str
    field: str
    title_of: Callable[[Headers], str | None]

    def group_id(self, title: str) -> uuid.UUID:
        """The id of the group with this title."""
        return deterministic_guid(self.name, title)


@dataclass(frozen=True, slots=True)
class Group:
    """A group of a failure."""

    classifier: Classifier
    title: str

    @property
    def id(self) -> uuid.UUID:
        """The id of the group in ServiceControl."""
        return self.classifier.group_id(self.title)


def groups_of(headers: Headers) -> tuple[Group, ...]:
    """The groups of a failed message, at most one per classifier."""
    titles = ((each, each.title_of(headers)) for each in CLASSIFIERS.values())
    return tuple(Group(each, title) for each, title in titles if title is not None)


def unique_message_id(headers: Headers, *, native_id: str) -> uuid.UUID:
    """ServiceControl's id of the message, the same for all its failures.

    `native_id` is the id of the row, which replaces a missing message id. If a retry wrote an invalid id, it is computed as for a
    first failure. An edited copy is a separate message: it names the original only for the acknowledgement.
    """
    retried = guid_of(headers.get(names.RETRY_UNIQUE_MESSAGE_ID))
    if retried is None or retried == guid_of(headers.get(names.EDIT_OF)):
        return deterministic_guid(headers.get(names.MESSAGE_ID) or native_id, processing_endpoint(headers))
    return retried


def processing_endpoint(headers: Headers) -> str:
    """The endpoint at which the message failed; empty if unknown."""
    endpoint = headers.get(names.PROCESSING_ENDPOINT)
    if endpoint is not None:
        return endpoint
    address = headers.get(names.FAILED_QUEUE) or headers.get(names.REPLY_TO_ADDRESS) or ""
    return address.partition("@")[0]


def exception_title(exception_type: str | None, message: str | None, trace: str | None) -> str:
    """The type of an exception and the method of the first frame of its trace."""
    frame = None
    if trace is not None and not is_blank(trace):
        # Like ServiceControl, so that the message is not parsed as frames.
        frame = first_frame(trace.replace(message, "") if message else trace)
    return f"{exception_type or ''}: {frame or 'No stacktrace'}"


def _by_exception(headers: Headers) -> str | None:
    return exception_title(*map(headers.get, (names.EXCEPTION_TYPE, names.EXCEPTION_MESSAGE, names.EXCEPTION_STACK_TRACE)))


def _by_type(headers: Headers) -> str | None:
    types = headers.get(names.ENCLOSED_MESSAGE_TYPES)
    return types.partition(",")[0] if types else None


def _by_address(headers: Headers) -> str | None:
    return headers.get(names.FAILED_QUEUE)


def _by_instance(headers: Headers) -> str | None:
    instance = headers.get(names.METRIC_INSTANCE_ID)
    if instance is not None:
        return instance
    if _by_endpoint(headers) is None:
        return None
    host_id = guid_of(headers.get(names.HOST_ID) or str(uuid.UUID(int=0)))
    return None if host_id is None else host_id.hex


def _by_endpoint(headers: Headers) -> str | None:
    """The receiving endpoint; None without a machine, as in ServiceControl."""
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
