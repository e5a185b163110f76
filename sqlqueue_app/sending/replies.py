"""Replies: their content (a return code or an object), and the requests of this process that wait for them."""

from __future__ import annotations

import asyncio
import enum
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, InvalidStateError
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import ConfigurationError, MessageTypeError, SqlQueueError, WireFormatError
from sqlqueue_app.messages.headers import Intent, check_custom_headers
from sqlqueue_app.messages.serializers import deserialize
from sqlqueue_app.messages.type_hints import check_mappable, find_member
from sqlqueue_app.messages.types import registry

NO_CODE: Final = -(2**31)
"""The code of a reply with neither a code nor a body, as core 5 reads it."""

_INT32: Final = range(-(2**31), 2**31)
# Since core 5 the intent header marks a reply.
_FIRST_WITH_INTENT: Final = 5


def is_reply(incoming: IncomingMessage) -> bool:
    """Whether a message is a reply: by its intent; from cores before 5, by a correlation id that is not its own."""
    if incoming.intent is Intent.REPLY:
        return True
    major = (incoming.headers.get(names.VERSION) or "").partition(".")[0]
    is_old = major.isdecimal() and int(major) < _FIRST_WITH_INTENT
    return is_old and incoming.correlation_id not in (None, incoming.message_id)


def check_returns(returns: object) -> None:
    """Raise MessageTypeError unless a reply can become `returns`: int, an Enum, dict, or a message class."""
    if returns is None or returns in (int, dict) or (isinstance(returns, type) and issubclass(returns, enum.Enum)):
        return
    if not isinstance(returns, type):
        raise MessageTypeError(f"returns={returns!r} is not a class; expected int, an Enum, dict, or a class of messages")
    try:
        check_mappable(returns)
    except MessageTypeError as error:
        raise MessageTypeError(f"returns={returns.__qualname__}: {error}") from None


def read_reply(incoming: IncomingMessage, returns: type | None, spelling: Callable[[str], str], serializer: str = "json") -> Any:
    """Read a reply as `returns`; without it an int for a return code, else an object of the message type, else a dict.

    `spelling` gives the spelling of a type's members, `serializer` the format of a body of unknown content type. A code that is a
    name matches a member of an Enum regardless of case and underscores; without an Enum it is text.
    Raises WireFormatError or MessageBodyError for a reply that does not match.
    """
    code = incoming.headers.get(names.RETURN_MESSAGE_ERROR_CODE)
    expects_code = returns is not None and (returns is int or issubclass(returns, enum.Enum))
    if code is not None or not incoming.body:
        if returns is not None and not expects_code:
            raise WireFormatError(f"the reply is the return code {code!r}; expected an object, for returns={returns.__qualname__}")
        return _code(NO_CODE if code is None else _number(code), returns)
    types = incoming.message_types
    if expects_code and returns is not None:
        what = ", ".join(types) or "an object without a type"
        raise WireFormatError(f"the reply is {what}; expected a return code, for returns={returns.__qualname__}")
    known = next((found for name in types if (found := registry.by_name(name)) is not None), None)
    target = returns or (known.cls if known is not None else None)
    return deserialize(incoming.body, incoming.content_type, target, spelling(known.name if known else ""), serializer)


def _number(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text.strip()


def _code(code: int | str, returns: Any) -> Any:
    if returns is None:
        return code
    if returns is int:
        if isinstance(code, int):
            return code
        raise WireFormatError(f"the return code is {code!r}; expected a number, for returns=int: name the Enum instead")
    if (found := find_member(returns, code)) is None:
        known = ", ".join(f"{name} = {member.value!r}" for name, member in returns.__members__.items())
        raise WireFormatError(f"the return code is {code!r}; expected one of {returns.__qualname__}: {known}")
    return found


def return_code_of(message: object, body: object) -> int | None:
    """The return code passed to `context.reply()`: an int, or an Enum whose value is one; None for a message.

    Raises MessageTypeError for a bool, any other Enum or a body with the code; WireFormatError for a number above 32 bits.
    """
    if not isinstance(message, (int, enum.Enum)):
        return None
    value: object = message.value if isinstance(message, enum.Enum) else message
    if isinstance(value, bool) or not isinstance(value, int):
        raise MessageTypeError(f"a return code is an integer, or an Enum whose values are integers; got {message!r}")
    if body is not None:
        raise MessageTypeError(f"a body was passed with the return code {message!r}: a return code has none")
    if value not in _INT32:
        raise WireFormatError(f"the return code {value} does not fit: expected {_INT32.start} to {_INT32.stop - 1} (32 bits)")
    return int(value)


def return_code_headers(code: int, custom: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """The caller's headers, then those of a return code. Raises WireFormatError as `check_custom_headers`."""
    check_custom_headers(custom)
    return {**(custom or {}), names.RETURN_MESSAGE_ERROR_CODE: str(code), names.CONTROL_MESSAGE: "True"}


T = TypeVar("T")

# While a request waits, its queue is polled after an eighth of the time that the last request has waited. That delays a reply
# by at most an eighth, and costs the database some 8 polls for each doubling of the time.
SHARE_OF_WAITING = 8
MIN_WAIT_SECONDS = 0.005


class Request(Future[T], Generic[T]):
    """The reply to one request: a `concurrent.futures.Future` that is also awaitable. Safe from any thread.

    Callbacks run in the thread that receives replies, after the reply is committed: they must be quick, and must not wait for
    another request. A request without references and without a callback is dropped.
    """

    def __init__(self, pending: PendingRequests, *, message_id: str, what: str) -> None:
        super().__init__()
        self.message_id = message_id
        """The id of the request on the wire."""
        self.queue = ""
        """The literal name of the callback queue for the reply, once the request is sent."""
        self.read: Callable[[IncomingMessage], Any] = lambda incoming: incoming
        """Reads the reply from its message."""
        self.sending: asyncio.Task[None] | None = None
        self._what = what
        self._pending = pending
        super().add_done_callback(pending.discard)

    def result(self, timeout: float | timedelta | None = None) -> T:
        """Wait for the reply, at most `timeout` seconds (None: no limit), and return it.

        Raises TimeoutError if none arrives in time: this ends the request, and a later reply is only logged. Raises
        CancelledError after `cancel()`; MessageBodyError, WireFormatError or MessageTypeError for a reply that does not match the
        request; ReplyLost if the process lost its callback queue.
        """
        self._end_within(timeout)
        return super().result()

    def exception(self, timeout: float | timedelta | None = None) -> BaseException | None:
        """Wait as `result`, and return the exception that it would raise, or None."""
        self._end_within(timeout)
        return super().exception()

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn(request)` when the request ends, with or without a reply; at once if it has ended."""
        self._pending.keep(self)
        super().add_done_callback(partial(_call, fn))

    def __await__(self) -> Generator[Any, None, T]:
        """Wait in a coroutine; cancelling the task cancels the request. For a time limit use `asyncio.timeout`."""
        return asyncio.wrap_future(self).__await__()

    def succeed(self, value: T) -> bool:
        """End with the reply. Returns False if the request had ended before."""
        try:
            self.set_result(value)
        except InvalidStateError:
            return False
        return True

    def fail(self, error: BaseException) -> bool:
        """End with an error. Returns False if the request had ended before."""
        try:
            self.set_exception(error)
        except InvalidStateError:
            return False
        return True

    def _end_within(self, timeout: float | timedelta | None) -> None:
        if self.sending is not None and not self.done() and in_event_loop():
            raise RuntimeError("a request in a coroutine must be awaited: reply = await request(...)")
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        try:
            super().exception(seconds)
        except TimeoutError:
            # Has no effect if the reply has arrived at this moment.
            self.fail(TimeoutError(f"no reply to {self._what} within {seconds:g} s; a later reply is only logged"))


def _call(callback: Callable[[Any], object], request: Future[Any]) -> None:
    """Call a callback. A SystemExit would end the thread that receives replies; as an Exception it is logged by Future."""
    try:
        callback(request)
    except BaseException as error:
        if isinstance(error, Exception) or threading.current_thread() is threading.main_thread():
            raise
        raise RuntimeError(f"a callback of a request raised {type(error).__name__}") from error


class PendingRequests:
    """The waiting requests of this process. Safe from any thread; a forked child starts without any.

    A reply belongs to the request whose message id is its correlation id; the first one wins (docs/internals/wire.md#callbacks).
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Drop everything, in a forked child."""
        self._lock = threading.Lock()
        # Weak: a caller that drops its request never reads the reply.
        self._waiting: WeakValueDictionary[str, Request[Any]] = WeakValueDictionary()
        self._kept: set[Request[Any]] = set()
        self._requested_at: dict[str, float] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._waiting)

    def add(self, request: Request[Any], queue: str, read: Callable[[IncomingMessage], Any]) -> None:
        """Register a request for its reply in the named queue. ConfigurationError if another waits under its message id."""
        with self._lock:
            if request.message_id in self._waiting:
                raise ConfigurationError(
                    f"message_id {request.message_id!r} belongs to another request that waits for its reply; "
                    "omit message_id=, or choose another"
                )
            request.queue, request.read = queue, read
            self._waiting[request.message_id] = request
            self._requested_at[request.queue] = self._clock()

    def keep(self, request: Request[Any]) -> None:
        """Hold a request until it ends, for its callbacks."""
        with self._lock:
            # A request that ends from here on is discarded after this.
            if not request.done():
                self._kept.add(request)

    def find(self, message_id: str | None) -> Request[Any] | None:
        """The request that waits under this id."""
        with self._lock:
            return self._waiting.get(message_id or "")

    def discard(self, request: Future[Any]) -> None:
        """Remove a request that has ended."""
        if isinstance(request, Request):
            with self._lock:
                self._kept.discard(request)
                if self._waiting.get(request.message_id) is request:
                    del self._waiting[request.message_id]

    def lose(self, queue: str, error: SqlQueueError) -> None:
        """End all requests that expect their replies in this queue."""
        with self._lock:
            lost = [request for request in self._waiting.values() if request.queue == queue]
        for request in lost:
            request.fail(error)

    def longest_wait(self, queue: str) -> float | None:
        """The seconds until the next poll of this callback queue; None if no request waits for a reply from it."""
        with self._lock:
            if not any(request.queue == queue for request in self._waiting.values()):
                return None
            return max(MIN_WAIT_SECONDS, (self._clock() - self._requested_at[queue]) / SHARE_OF_WAITING)


def in_event_loop() -> bool:
    """Whether the caller runs in an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


pending = PendingRequests()
"""The requests of this process."""

os.register_at_fork(after_in_child=pending.reset)
