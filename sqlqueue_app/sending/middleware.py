"""Middleware: loading and composing it, around handlers and around sent messages; what outgoing middleware sees."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlqueue_app.conf import Settings
from sqlqueue_app.conf.kinds import load_callable
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage
from sqlqueue_app.messages.errors import ConfigurationError, WireFormatError
from sqlqueue_app.messages.headers import Headers, Intent, check_custom_headers
from sqlqueue_app.messages.serializers import Writer
from sqlqueue_app.sending.composer import Composer, SenderIdentity, SendOptions, TypeForm, utc_now
from sqlqueue_app.sending.subscribers import Subscribers

Call = Callable[[Any, Any], Any]
Middleware = Callable[[Call], Call]
"""Like Django's: `def middleware(call)` returns `def handle(message, context)`, which does its part and calls `call`."""

_EXPECTED = "expected `def middleware(call)` that returns `def handle(message, context)`"


def load_middleware(entries: Sequence[str | Callable[..., object]], *, setting: str) -> list[Middleware]:
    """The callables of the setting, outermost first. ConfigurationError, which names the setting, for an unusable one."""
    loaded: list[Middleware] = []
    for place, entry in enumerate(entries):
        where = f"{setting}[{place}]"
        found = load_callable(entry, setting=where)
        try:
            inspect.signature(found).bind(None)
        except TypeError as error:
            raise ConfigurationError(f"{where} is {_shown(found)}, which must take (call): {error}; {_EXPECTED}") from error
        except ValueError:
            pass  # written in C: has no signature
        loaded.append(found)
    return loaded


def wrapped(call: Call, middleware: Sequence[Middleware], *, setting: str) -> Call:
    """The call wrapped in all middleware, the first outermost. ConfigurationError if a middleware does not return a function."""
    for place in reversed(range(len(middleware))):
        made: Any = middleware[place](call)
        what = f"{setting}[{place}] is {_shown(middleware[place])}, which returned {made!r}"
        if inspect.iscoroutine(made):
            made.close()
        if not callable(made):
            raise ConfigurationError(f"{what}; {_EXPECTED}")
        if inspect.iscoroutinefunction(made):
            raise ConfigurationError(f"{what}, which is async: it could not share the transaction of its caller; {_EXPECTED}")
        call = made
    return call


def _shown(found: object) -> str:
    return f"{getattr(found, '__module__', '?')}.{getattr(found, '__qualname__', None) or type(found).__qualname__}"


class OutgoingContext:
    """A message on its way out, as outgoing middleware sees it. Valid during the call, in the thread of the sender."""

    __slots__ = ("_write", "body", "destination", "endpoint", "headers", "incoming_headers", "message_type")

    def __init__(
        self,
        headers: Headers,
        *,
        endpoint: str | None,
        message_type: str,
        destination: str | None,
        incoming: IncomingMessage | None,
        write: Callable[[Any, Headers], bytes],
    ) -> None:
        self.headers = headers
        """All headers of the message. Change them in place, before or after the message is serialized."""
        self.endpoint = endpoint
        """The endpoint that sends; None in a process that is not an endpoint."""
        self.message_type = message_type
        """The full name of the type; empty for a reply that is only a return code."""
        self.destination = destination
        """The address of the queue; None for an event, which goes to its subscribers."""
        self.incoming_headers: Mapping[str, str | None] | None = None if incoming is None else incoming.headers
        """The headers of the message that is being handled; None outside a handler."""
        self.body: bytes | None = None
        """The serialized body; None until the innermost call."""
        self._write = write

    @property
    def message_id(self) -> str:
        """The id of the message."""
        return self.headers.get(names.MESSAGE_ID) or ""

    @property
    def intent(self) -> str:
        """`Send`, `Publish` or `Reply`."""
        return self.headers.get(names.MESSAGE_INTENT) or ""


class ComposerWithMiddleware(Composer):
    """Calls the outgoing middleware around the serialization of each message. Immutable; shared by all threads."""

    has_middleware = True

    def __init__(
        self,
        settings: Settings,
        book: AddressBook,
        identity: SenderIdentity,
        *,
        subscribers: Subscribers | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__(settings, book, identity, subscribers=subscribers, now=now)
        middleware = load_middleware(settings.outgoing_middleware, setting=_SETTING)
        self._run = wrapped(_serialize, middleware, setting=_SETTING)

    def body_writer(
        self,
        form: TypeForm,
        options: SendOptions,
        headers: Headers,
        destination: QueueAddress | None,
        incoming: IncomingMessage | None,
    ) -> Writer:
        """A writer that calls the middleware with the payload, which may change it and `headers`."""
        usual = super().body_writer(form, options, headers, destination, incoming)
        before = _format_of(headers)

        def write(payload: Any, final: Headers) -> bytes:
            return (usual if _format_of(final) == before else self.writer_of(form, final))(payload)

        return lambda payload: self._through_middleware(payload, headers, form.name, destination, incoming, write)

    def control(
        self, to: str, headers: Mapping[str, str | None], *, incoming: IncomingMessage | None = None, intent: Intent
    ) -> OutgoingMessage:
        """Compose a control message, which has no payload: the middleware gets None."""
        made = super().control(to, headers, incoming=incoming, intent=intent)
        self._through_middleware(None, made.headers, "", made.destination, incoming, lambda _payload, _headers: b"")
        return made

    def _through_middleware(
        self,
        payload: object,
        headers: Headers,
        message_type: str,
        destination: QueueAddress | None,
        incoming: IncomingMessage | None,
        write: Callable[[Any, Headers], bytes],
    ) -> bytes:
        context = OutgoingContext(
            headers,
            endpoint=self.identity.endpoint,
            message_type=message_type,
            destination=None if destination is None else self._book.canonical(destination),
            incoming=incoming,
            write=write,
        )
        self._run(payload, context)
        if context.body is None:
            what = f"the middleware of {_SETTING} has not called its `call` for the message {message_type!r}"
            raise ConfigurationError(f"{what}: return call(message, context), or raise an error to refuse the message")
        check_custom_headers(headers)
        # An event is addressed by its types.
        for name in (names.MESSAGE_ID,) if destination is not None else (names.MESSAGE_ID, names.ENCLOSED_MESSAGE_TYPES):
            if not headers.get(name):
                raise WireFormatError(f"the middleware of {_SETTING} has removed the header {name!r}: keep it")
        return context.body


_SETTING = 'SQLQUEUE["OUTGOING_MIDDLEWARE"]'


def _serialize(message: Any, context: OutgoingContext) -> None:
    """The innermost call."""
    context.body = context._write(message, context.headers)


def _format_of(headers: Headers) -> tuple[str | None, str | None]:
    return headers.get(names.CONTENT_TYPE), headers.get(names.ENCLOSED_MESSAGE_TYPES)


def composer_for(
    settings: Settings, book: AddressBook, identity: SenderIdentity, *, subscribers: Subscribers | None = None
) -> Composer:
    """The composer of a sender: with the outgoing middleware of the settings, or without any."""
    kind = ComposerWithMiddleware if settings.outgoing_middleware else Composer
    return kind(settings, book, identity, subscribers=subscribers)
