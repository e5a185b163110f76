"""Handlers: registering functions for message types, finding them for an endpoint, wrapping and calling them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeVar

from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils.module_loading import autodiscover_modules

from sqlqueue_app.conf import TASK_HANDLER, TASK_MESSAGE, Settings
from sqlqueue_app.conf.kinds import load_callable
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import (
    AddressError,
    ConfigurationError,
    HandlerError,
    MessageTypeError,
    SeveralMessages,
    SoftTimeLimitExceeded,
    Unrecoverable,
    dotted_path,
)
from sqlqueue_app.messages.headers import CONTENT_TYPE, CONTROL_MESSAGE, ENCLOSED_MESSAGE_TYPES, Intent
from sqlqueue_app.messages.serializers import body_reader, deserialize_element, type_names_in
from sqlqueue_app.messages.type_hints import backtracking_budget
from sqlqueue_app.messages.types import full_name, name_fault, plain_name, registry as message_types, resolve_enclosed
from sqlqueue_app.messages.xml import Element, messages_in
from sqlqueue_app.policies.rates import EXPECTED, Rate
from sqlqueue_app.policies.recoverability import Retry, TransactionMode
from sqlqueue_app.receiving.context import MessageContext
from sqlqueue_app.receiving.destinations import AllowedDestinations, Destinations, Unroutable
from sqlqueue_app.sending.composer import Routes
from sqlqueue_app.sending.middleware import Middleware, wrapped
from sqlqueue_app.tables.subscriptions import SubscriptionRow, SubscriptionTable

logger = logging.getLogger("sqlqueue.receive")

HandlerFunction = Callable[[Any, Any], Any]
_Handler = TypeVar("_Handler", bound=HandlerFunction)


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function. `target` is the class of its messages, or None where the body arrives as a dict.

    `retry`: the retries of its messages; None: those of the endpoint. `call`, if set, is called instead of the function: an
    `async def` function in an event loop, or the function in middleware. `registered_at` is the module and line of the
    registration, which may differ from those of the function.
    """

    message_type: str
    function: HandlerFunction
    target: type | None
    call: HandlerFunction | None = None
    registered_at: tuple[str, int] = ("", 0)
    retry: Retry | None = None
    soft_time_limit: float | None = None
    """Seconds until SoftTimeLimitExceeded is raised in the function; None: never."""
    hard_time_limit: float | None = None
    """Seconds until the supervisor ends the process; None: never."""
    rate: Rate | None = None
    """How often messages of the type are handled, in all processes of the endpoint together; None: without a limit."""
    is_coroutine: bool = False
    """Whether it is an `async def` function, whose soft limit is that of its event loop."""
    is_timeout: bool = False
    """Whether it handles only timeouts, which an endpoint sends to itself: it does not subscribe to them."""
    check: Callable[[str, str, TransactionMode], None] | None = None
    """Raises ConfigurationError if an endpoint cannot call it: its name, the alias of its queues and its mode."""
    key: Callable[[Any], Any] | None = None
    """Returns the key of a message; messages with the same key are handled one at a time. None: no key."""

    @property
    def path(self) -> str:
        """The dotted path of the function, for logs and errors."""
        return dotted_path(self.function)

    def belongs_to(self, modules: Iterable[str]) -> bool:
        """Whether the function was defined, or registered, in one of the modules or below them."""
        own = (getattr(self.function, "__module__", "") or "", self.registered_at[0])
        return any(module == name or module.startswith(f"{name}.") for name in modules for module in own)


class HandlerRegistry:
    """Handlers by message type, in order of registration. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[tuple[object, ...], Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register a handler. The same function for the same type, or its successor (a module imported twice), replaces itself.

        Functions with the same path but registered at different places, such as lambdas, count as different.
        """
        with self._lock:
            self._handlers[self._key(handler)] = handler

    def _key(self, handler: Handler) -> tuple[object, ...]:
        for key, known in self._handlers.items():
            if known.function is handler.function and known.message_type == handler.message_type:
                return key
        # A method of a saga may handle a type both as a timeout and as a plain message.
        return handler.message_type, handler.path, handler.registered_at, handler.is_timeout

    def remove(self, handler: Handler) -> None:
        """Remove a registration, for tests."""
        with self._lock:
            self._handlers.pop(self._key(handler), None)

    def all(self) -> list[Handler]:
        """Every handler, in order of registration."""
        with self._lock:
            return list(self._handlers.values())


registry = HandlerRegistry()


def handles(
    *messages: type | str,
    retry: Retry | None = None,
    soft_time_limit: float | timedelta | None = None,
    hard_time_limit: float | timedelta | None = None,
    rate_limit: str | None = None,
    key: Callable[[Any], Any] | None = None,
) -> Callable[[_Handler], _Handler]:
    """Register a handler `f(message, context)` for classes of a `message_type`, or for type names whose bodies arrive as dicts.

    The handler runs inside the receive transaction: its work on the queue's database commits or rolls back with the receive. That
    holds for an `async def` function too: it runs in an event loop of its own, which ends with it, and Django runs the `a…`
    methods of the ORM and thread-sensitive `sync_to_async` in the thread that received the message.

    `retry` replaces the retries of the endpoint for messages that fail in this handler. The time limits, in seconds or as a
    timedelta, replace SOFT_TIME_LIMIT and HARD_TIME_LIMIT of the endpoint. `rate_limit`, such as "10/m", limits how often messages
    of these types are handled, in all processes of the endpoint together.

    `key` is a function of the message. Messages of one endpoint with the same key are handled one at a time, in the order of their
    rows, in all processes. It returns a str, int, UUID or bytes, or None for a message without a key, and always the same for
    the same message. If it raises, the message fails as if the handler had raised.

    Raises HandlerError for a generator function, for a function that does not take two positional arguments, for a class
    that is not a message type, for a `retry` that is not a `Retry`, for a time limit that is not a positive time, for a hard
    limit that is not above the soft one, for an invalid `rate_limit`, for a `key` that is not a function of the message, and for
    a bare `@handles`.
    """
    if not messages:
        raise HandlerError(
            "@handles() names no message type: expected a message class or a type name, as in @handles('Sales.PlaceOrder')"
        )
    if retry is not None and not isinstance(retry, Retry):
        raise HandlerError(f"@handles(…, retry={retry!r}): expected a Retry, as in retry=Retry(delays=[10, 60])")
    soft, hard = time_limits(soft_time_limit, hard_time_limit)
    rate = _rate(rate_limit)
    if key is not None:
        _check_key(key)
    named = [named_type(message) for message in messages]

    def register(function: _Handler) -> _Handler:
        call = _checked_call(function)
        caller = sys._getframe(1)
        place = (str(caller.f_globals.get("__name__", "")), caller.f_lineno)
        for name, target in named:
            registry.add(Handler(name, function, target, call, place, retry, soft, hard, rate, call is not None, key=key))
        return function

    return register


def time_limits(soft: Any, hard: Any, *, where: str = "@handles") -> tuple[float | None, float | None]:
    """The seconds of both time limits. `where`: the decorator that they are passed to."""
    seconds = _time_limit("soft_time_limit", soft, where), _time_limit("hard_time_limit", hard, where)
    if seconds[0] is not None and seconds[1] is not None and seconds[0] >= seconds[1]:
        raise HandlerError(
            f"{where}(…, soft_time_limit={soft!r}, hard_time_limit={hard!r}): expected a hard limit above the soft one"
        )
    return seconds


def _time_limit(name: str, value: Any, where: str) -> float | None:
    found = value.total_seconds() if isinstance(value, timedelta) else value
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise HandlerError(f"{where}(…, {name}={value!r}): expected a number of seconds above 0, or a timedelta")
    return float(found)


def _rate(value: Any) -> Rate | None:
    try:
        return None if value is None else Rate.parse(value)
    except ValueError as error:
        raise HandlerError(f"@handles(…, rate_limit={value!r}): expected {EXPECTED}") from error


def _check_key(key: Any) -> None:
    """Raise HandlerError unless it can be called with the message, and returns its result at once."""
    expected = "expected a function of the message, as in key=lambda message: message.customer_id"
    if inspect.iscoroutinefunction(key):
        raise HandlerError(f"@handles(…, key={dotted_path(key)}): it is `async def`; {expected}")
    if not callable(key):
        raise HandlerError(f"@handles(…, key={key!r}): {expected}")
    with contextlib.suppress(ValueError):  # written in C: has no signature
        try:
            inspect.signature(key).bind(None)
        except TypeError as error:
            raise HandlerError(f"@handles(…, key={dotted_path(key)}): {error}; {expected}") from error


def named_type(message: Any, *, where: str = "@handles") -> tuple[str, type | None]:
    """The type name and the class for an argument of a decorator. Checked at registration, so that mistakes surface early."""
    if inspect.isroutine(message) or (inspect.isclass(message) and "__call__" in vars(message)):
        raise HandlerError(
            f"{where} decorates {dotted_path(message)} without a message type: "
            f"write {where}(PlaceOrder) for a message class, or {where}('Sales.PlaceOrder') for a type name"
        )
    if not isinstance(message, str):
        return message_types.of(message).name, message
    if fault := "is a pattern" if "*" in message else name_fault(message):
        raise HandlerError(
            f"{where}({message!r}): the name {fault}; expected a message type name, as in {where}('Sales.PlaceOrder'); "
            "several names are several arguments"
        )
    return message.strip(), None


def handlers_of(modules: Iterable[str] | None) -> list[Handler]:
    """Import modules (None: `handlers` of every app) and return their handlers; ConfigurationError for a missing module."""
    if modules is None:
        autodiscover_modules("handlers")
        return registry.all()
    names = list(modules)
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
                raise ConfigurationError(
                    f"HANDLERS names the module {name!r}, which does not exist: write the dotted path of a Python module"
                ) from error
            raise
    return [handler for handler in registry.all() if handler.belongs_to(names)]


def _checked_call(function: Any) -> HandlerFunction | None:
    """Check a handler; return the function to call instead of an `async def` one."""
    if not callable(function):
        raise HandlerError(f"@handles decorates {function!r}: expected a function that takes (message, context)")
    call = function if inspect.isroutine(function) else function.__call__
    if inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
        kind = "an async generator" if inspect.isasyncgenfunction(call) else "a generator"
        raise HandlerError(f"handler {dotted_path(function)} is {kind}, whose body would not run: write it without yield")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise HandlerError(f"handler {dotted_path(function)} must take (message, context): {error}") from error
    except ValueError as error:  # written in C: has no signature
        raise HandlerError(
            f"handler {dotted_path(function)} has no signature to check: expected a function that takes (message, context)"
        ) from error
    return async_to_sync(with_timeout(call)) if inspect.iscoroutinefunction(call) else None


def with_timeout(call: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """A coroutine function that is cancelled at the soft time limit of its handler."""

    async def limited(message: Any, context: Any) -> Any:
        handler: Handler | None = getattr(context, "called", None)
        if handler is None or handler.soft_time_limit is None:
            return await call(message, context)
        try:
            async with asyncio.timeout(handler.soft_time_limit) as timeout:
                return await call(message, context)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise SoftTimeLimitExceeded from error

    return limited


_REMEMBERED_TEXTS = 1000
_MAX_CACHED_LENGTH = 4000


def refuse_unrun(result: object, handler: Handler) -> None:
    """Raise HandlerError for a result that means that the handler has not run yet, which registration could not detect."""
    if inspect.iscoroutine(result):
        result.close()
        raise HandlerError(
            f"handler {handler.path} returned a coroutine: it must do its work itself; wrap the call in async_to_sync"
        )
    kind = "a generator" if inspect.isgenerator(result) else "an asynchronous generator" if inspect.isasyncgen(result) else None
    if kind is not None:
        raise HandlerError(f"handler {handler.path} returned {kind} that has not run: it must do its work itself")


@dataclass(frozen=True, slots=True)
class _Plan:
    """The parts shared by all messages with the same enclosed-types text and content type."""

    handlers: list[Handler]
    """In the order in which they are called."""
    readers: dict[type | None, Callable[[bytes], Any]]
    """The readers of the body, each called once for its class of messages."""


class HandlerTable:
    """The handlers of one endpoint by message type. Immutable except for its cache; shared by all threads."""

    def __init__(
        self,
        handlers: Iterable[Handler],
        *,
        body_names: str,
        serializer: str = "json",
        subscriptions: SubscriptionMessages | None = None,
    ) -> None:
        self._by_type: dict[str, list[Handler]] = {}
        for handler in handlers:
            self._by_type.setdefault(plain_name(handler.message_type), []).append(handler)
        own = (handler for each in self._by_type.values() for handler in reversed(each) if handler.retry is not None)
        self.retries = {plain_name(handler.message_type): handler.retry for handler in own if handler.retry is not None}
        """The types whose handlers have retries of their own; of several handlers, the first."""
        self.rates: dict[str, Rate] = {}
        """The types whose messages have a rate limit; of several handlers, the one with the longest interval."""
        for name, each in self._by_type.items():
            if limits := [handler.rate for handler in each if handler.rate is not None]:
                self.rates[name] = max(limits, key=lambda rate: rate.interval)
        self._body_names = body_names
        self._serializer = serializer
        self._subscriptions = subscriptions
        self._plans: dict[tuple[str, str | None], _Plan] = {}

    @property
    def message_types(self) -> list[str]:
        """The types that have a handler, sorted, with the assemblies of type arguments as in the topics of .NET."""
        return sorted({full_name(handler.message_type) for handlers in self._by_type.values() for handler in handlers})

    @property
    def has_hard_limits(self) -> bool:
        """Whether a handler has a hard time limit, which only a supervisor can enforce."""
        return any(handler.hard_time_limit is not None for handlers in self._by_type.values() for handler in handlers)

    @property
    def timeout_types(self) -> frozenset[str]:
        """The types whose handlers all take only timeouts."""
        return frozenset(name for name, handlers in self._by_type.items() if all(each.is_timeout for each in handlers))

    def _plan(self, incoming: IncomingMessage) -> _Plan:
        enclosed = incoming.message_types
        plan = _Plan(self._of_types(enclosed or self.types_in_body(incoming), incoming), {})
        for handler in plan.handlers:
            if handler.target not in plan.readers:
                names_of_members = self._names_for(handler)
                plan.readers[handler.target] = body_reader(
                    incoming.content_type, handler.target, names_of_members, self._serializer
                )
        key = incoming.headers.get(ENCLOSED_MESSAGE_TYPES) or "", incoming.content_type
        # Senders control the number and length of these texts: cache only the usual ones. Types in a body are those of one message.
        if enclosed and len(key[0]) + len(key[1] or "") <= _MAX_CACHED_LENGTH and len(self._plans) < _REMEMBERED_TEXTS:
            self._plans[key] = plan
        return plan

    def types_in_body(self, incoming: IncomingMessage) -> list[str]:
        """The types of a message without the header, which a native sender may omit (docs/internals/wire.md#native-senders).

        Raises MessageBodyError for an unreadable body.
        """
        return type_names_in(incoming.body, incoming.content_type, self._serializer)

    def _of_types(self, types: Sequence[str], incoming: IncomingMessage) -> list[Handler]:
        handlers: list[Handler] = []
        for handler in (handler for name in types for handler in self._by_type.get(name, ())):
            if all(handler.function != other.function for other in handlers):
                handlers.append(handler)
        if not handlers:
            named = ", ".join(map(repr, types)) or "none (the header NServiceBus.EnclosedMessageTypes is missing)"
            raise MessageTypeError(
                f"no handler for message {incoming.message_id!r}: its types are {named}; "
                f"this endpoint handles {', '.join(self.message_types) or 'nothing'}"
            )
        return handlers

    def retry_of(self, incoming: IncomingMessage, failed: Handler | None) -> Retry | None:
        """The `Retry` of the handler that failed; if none is known, after a lost transaction, the first one of the message."""
        if failed is not None:
            return failed.retry
        if not self.retries:
            return None
        try:
            handlers = self._of_types(incoming.message_types, incoming)
        except MessageTypeError:
            return None
        return next((handler.retry for handler in handlers if handler.retry is not None), None)

    def calls(self, incoming: IncomingMessage) -> list[tuple[Handler, Any]]:
        """Each handler of the enclosed types, concrete type first, with its message. The body is read once per class.

        For several messages in one body: the handlers of the first, then those of the next. Raises MessageTypeError if there is
        no handler, MessageBodyError if the body cannot be read.
        """
        headers = incoming.headers
        control = self._subscriptions if CONTROL_MESSAGE in headers or names.SUBSCRIPTION_MESSAGE_TYPE in headers else None
        if control is not None and (own := control.handler_for(incoming)) is not None:
            return [(own, incoming)]
        known = self._plans.get((headers.get(ENCLOSED_MESSAGE_TYPES) or "", headers.get(CONTENT_TYPE) or None))
        plan = known or self._plan(incoming)
        try:
            bodies = {target: read(incoming.body) for target, read in plan.readers.items()}
        except SeveralMessages:
            bodies = {}
        # Outside the except block: an error raised there must not have this one, which is not a failure, as its context.
        return [(handler, bodies[handler.target]) for handler in plan.handlers] if bodies else self._calls_of_each(incoming)

    def _calls_of_each(self, incoming: IncomingMessage) -> list[tuple[Handler, Any]]:
        """The calls for several messages in one body, as cores 3 and 4 wrote them (docs/internals/wire.md#bodies).

        All bodies are read before the first handler is called. If one message fails, the whole row is retried.
        """
        found: list[tuple[Handler, Any]] = []
        enclosed = incoming.message_types
        with backtracking_budget(len(incoming.body)):
            for element in messages_in(incoming.body):
                bodies: dict[type | None, Any] = {}
                types = types_of(element, enclosed)
                for handler in self._of_types(types, incoming):
                    if handler.target not in bodies:
                        bodies[handler.target] = deserialize_element(element, handler.target, self._names_for(handler))
                    found.append((bound_to(handler, types), bodies[handler.target]))
        return found

    def _names_for(self, handler: Handler) -> str:
        """The spelling of the members of the handler's messages."""
        known = message_types.by_name(handler.message_type) if handler.target is not None else None
        return (known.names if known else None) or self._body_names


def around(handlers: Iterable[Handler], middleware: Sequence[Middleware], *, setting: str) -> list[Handler]:
    """Wrap each handler in the middleware. ConfigurationError if a middleware does not return a function."""
    if not middleware:
        return list(handlers)
    return [replace(handler, call=wrapped(_checked(handler), middleware, setting=setting)) for handler in handlers]


def _checked(handler: Handler) -> HandlerFunction:
    """Check the result of the handler itself, because middleware may return something else."""
    run = handler.call or handler.function

    def call(message: Any, context: Any) -> Any:
        result = run(message, context)
        if result is not None:
            refuse_unrun(result, handler)
        return result

    return call


_BEFORE_NAME: Final = re.compile(r".*[.+]", re.DOTALL)


def types_of(element: Element, enclosed: Sequence[str]) -> list[str]:
    """The type names of one message, the concrete one first, then its bases; `enclosed` lists those of all messages.

    If there are enclosed types, the type and its bases (declared by its element, or those of its class) are among them; otherwise
    the element alone decides. MessageTypeError for an element that matches none of the enclosed types, or two of them.
    """
    if not enclosed:
        return _with_bases(element.type_names, element)
    own = [name for name in element.type_names[:1] if name in enclosed]
    own = own or [name for name in dict.fromkeys(enclosed) if _may_be(element, name)]
    if len(own) != 1:
        what = "matches none of" if not own else "matches several of"
        raise MessageTypeError(
            f"the body holds a message {element.name!r} of the namespace {element.namespace!r}, which {what} "
            f"the types in the header NServiceBus.EnclosedMessageTypes: {', '.join(map(repr, enclosed))}"
        )
    return [name for name in _with_bases(own, element) if name in enclosed]


def bound_to(handler: Handler, types: list[str]) -> Handler:
    """The handler for one of several messages: while it runs, the context returns the types of that message."""
    call = handler.call or handler.function

    def run(message: Any, context: MessageContext) -> Any:
        context.current_types = types
        return call(message, context)

    return replace(handler, call=run)


def _may_be(element: Element, name: str) -> bool:
    """Whether an enclosed type has the name of the element, and its namespace if any; the class may be nested."""
    if name == element.name:
        return True
    space = element.namespace.rpartition("/")[2]
    return _BEFORE_NAME.sub("", name) == element.name and (not space or name.startswith((f"{space}.", f"{space}+")))


def _with_bases(names: Sequence[str], element: Element) -> list[str]:
    found = [*names, *element.base_types]
    for name in names:
        if (known := message_types.by_name(name)) is not None:
            found += resolve_enclosed(message_types.enclosed(known.cls))
    return list(dict.fromkeys(found))


_INTENTS = (Intent.SUBSCRIBE, Intent.UNSUBSCRIBE)


def is_subscription_message(incoming: IncomingMessage) -> bool:
    """Whether a message concerns subscriptions: by its intent and the header that names an event; as a control message, by one."""
    names_event = names.SUBSCRIPTION_MESSAGE_TYPE in incoming.headers
    if incoming.is_control_message:
        return names_event or incoming.intent in _INTENTS
    return names_event and incoming.intent in _INTENTS


class SubscriptionMessages:
    """Handles subscribe and unsubscribe messages of older endpoints (docs/internals/wire.md#control-messages).

    Writes into the subscription table in the receive transaction. Shared by all threads.
    """

    def __init__(self, table: SubscriptionTable, book: AddressBook, *, own: str, allowed: AllowedDestinations | None) -> None:
        self._table = table
        self._book = book
        what = "the subscriber's address is"
        self._destinations = Destinations(table.alias, book, satellites=frozenset(), own=own, allowed=allowed, what=what)
        self._handler = Handler("Subscribe", self.handle, None)

    def handler_for(self, incoming: IncomingMessage) -> Handler | None:
        """The handler of the message, if the message concerns subscriptions."""
        return self._handler if is_subscription_message(incoming) else None

    def handle(self, incoming: IncomingMessage, _context: object) -> None:
        """Subscribe or unsubscribe. Unrecoverable for a message without intent, subscriber or event type."""
        topic = _topic(incoming)
        endpoint, address = self._subscriber(incoming)
        if incoming.intent is Intent.SUBSCRIBE:
            try:
                queue = self._destinations.table(address)
                self._table.subscribe(SubscriptionRow(endpoint, topic, self._book.canonical(queue.address)), join=True)
            except (Unroutable, ConfigurationError) as error:
                raise Unrecoverable(f"endpoint {endpoint!r} cannot subscribe to {topic!r}: {error}") from error
            log = partial(logger.info, "endpoint %s has subscribed to %s", endpoint, topic, extra={"event": "subscribed"})
        else:
            self._table.unsubscribe(endpoint, topic, join=True)
            log = partial(logger.info, "endpoint %s has unsubscribed from %s", endpoint, topic, extra={"event": "unsubscribed"})
        transaction.on_commit(log, using=self._table.alias)

    def _subscriber(self, incoming: IncomingMessage) -> tuple[str, str]:
        """The subscriber's endpoint and the text of its address."""
        header = incoming.headers.get
        address, endpoint = header(names.SUBSCRIBER_ADDRESS), header(names.SUBSCRIBER_ENDPOINT)
        if address and not endpoint:
            raise Unrecoverable(f"the message has the header {names.SUBSCRIBER_ADDRESS}, but no {names.SUBSCRIBER_ENDPOINT}")
        # Transport 2.x also names the callback queue of the process, which disappears with the process.
        address = address or incoming.reply_address or incoming.reply_to
        if not address:
            raise Unrecoverable("the message names no subscriber: it has no reply-to address")
        try:
            return endpoint or self._book.received(address).table, address
        except AddressError as error:
            raise Unrecoverable(f"the message names no subscriber: {error}") from error


def _topic(incoming: IncomingMessage) -> str:
    """The full name of the event type, without its assembly."""
    topic = full_name(incoming.headers.get(names.SUBSCRIPTION_MESSAGE_TYPE) or "")
    if not topic:
        raise Unrecoverable(
            f"the message has the intent {incoming.intent.value}, but its header {names.SUBSCRIPTION_MESSAGE_TYPE} names no event"
        )
    if incoming.intent not in _INTENTS:
        raise Unrecoverable(
            f"the message names the event {topic!r} in its header {names.SUBSCRIPTION_MESSAGE_TYPE}, "
            f"but its intent is {incoming.headers.get(names.MESSAGE_INTENT)!r}: expected Subscribe or Unsubscribe"
        )
    return topic


def with_retries(handlers: Iterable[Handler], retries: Mapping[str, Retry]) -> list[Handler]:
    """The handlers with the retries of the setting RETRIES, by type or `Namespace.*`, which override those in the code."""
    if not retries:
        return list(handlers)
    found = Routes(retries)
    return [replace(handler, retry=found.find(plain_name(handler.message_type)) or handler.retry) for handler in handlers]


def with_time_limits(handlers: Iterable[Handler], soft: float | None, hard: float | None) -> list[Handler]:
    """The handlers with the time limits of the settings where they have none. ConfigurationError if a soft one never applies."""
    limited = [
        replace(each, soft_time_limit=each.soft_time_limit or soft, hard_time_limit=each.hard_time_limit or hard)
        for each in handlers
    ]
    for each in limited:
        if each.hard_time_limit is not None and (each.soft_time_limit or 0) >= each.hard_time_limit:
            raise ConfigurationError(
                f"handler {each.path} has a soft time limit of {each.soft_time_limit:g} s and a hard one of "
                f"{each.hard_time_limit:g} s, which is always first: expected a hard limit above the soft one"
            )
    return limited


def task_handlers(settings: Settings, endpoint: str) -> list[Handler]:
    """The handlers of tasks that Django's setting TASKS sends to this endpoint, by path: nothing imports the backend."""
    if not takes_tasks(settings, endpoint):
        return []
    return [Handler(TASK_MESSAGE, load_callable(TASK_HANDLER, setting="TASKS"), None)]


def takes_tasks(settings: Settings, endpoint: str) -> bool:
    """Whether TASKS sends anything to this endpoint."""
    return any(backend.takes_tasks(endpoint, settings.endpoints) for backend in settings.task_backends.values())
