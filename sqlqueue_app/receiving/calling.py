"""From a message to its handlers: which are called, with what, in which order."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import HandlerError, MessageTypeError, SeveralMessages
from sqlqueue_app.messages.headers import CONTROL_MESSAGE, ENCLOSED_MESSAGE_TYPES
from sqlqueue_app.messages.serializers import deserialize, deserialize_element, type_names_in
from sqlqueue_app.messages.tries import limited_tries
from sqlqueue_app.messages.types import find_message_type, plain_name
from sqlqueue_app.messages.xml_document import messages_in
from sqlqueue_app.receiving.control_messages import SubscriptionMessages
from sqlqueue_app.receiving.handlers import Handler
from sqlqueue_app.receiving.several import bound_to, types_of

_REMEMBERED_TEXTS = 1000
_LONGEST_REMEMBERED = 4000


def refuse_unrun(result: object, handler: Handler) -> None:
    """HandlerError for what a handler returned if nothing of the handler has run yet: it was not to be seen at registration."""
    if inspect.iscoroutine(result):
        result.close()
        raise HandlerError(
            f"handler {handler.path} returned a coroutine: it must do its work itself; wrap the call in async_to_sync"
        )
    kind = "a generator" if inspect.isgenerator(result) else "an asynchronous generator" if inspect.isasyncgen(result) else None
    if kind is not None:
        raise HandlerError(f"handler {handler.path} returned {kind}, of which nothing has run: it must do its work itself")


class HandlerTable:
    """The handlers of one endpoint by message type. Immutable; shared by all threads."""

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
        self._body_names = body_names
        self._serializer = serializer
        self._subscriptions = subscriptions
        self._found: dict[str, list[Handler]] = {}

    @property
    def message_types(self) -> list[str]:
        """The types that have a handler, sorted; type arguments as they were written, for so they are topics of .NET."""
        names = {handler.message_type for handlers in self._by_type.values() for handler in handlers}
        return sorted({name if "[" in name else plain_name(name) for name in names})

    def handlers_for(self, incoming: IncomingMessage) -> list[Handler]:
        """The handlers of every enclosed type, concrete type first, each function once; MessageTypeError if there is none.

        Without the header the body may name its type: by a `$type`, or by the root of XML. MessageBodyError if it cannot be read.
        """
        header = incoming.headers.get(ENCLOSED_MESSAGE_TYPES) or ""
        if (known := self._found.get(header)) is not None:
            return known
        # A native sender may leave the header out, and have the body say what it is (transport reference 6.10).
        enclosed = incoming.message_types or type_names_in(incoming.body, incoming.content_type, self._serializer)
        handlers = self._of_types(enclosed, incoming)
        # Whoever writes headers decides how many different texts there are, and how long: remember the usual ones only.
        if header and len(header) <= _LONGEST_REMEMBERED and len(self._found) < _REMEMBERED_TEXTS:
            self._found[header] = handlers
        return handlers

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

    def calls(self, incoming: IncomingMessage) -> list[tuple[Handler, Any]]:
        """Each handler with its message, the body read once per class; MessageBodyError if it cannot be read.

        Of several messages in one body the handlers of the first, then those of the next.
        """
        control = self._subscriptions if CONTROL_MESSAGE in incoming.headers else None
        if control is not None and (own := control.handler_for(incoming)) is not None:
            return [(own, incoming)]
        handlers = self.handlers_for(incoming)
        bodies: dict[type | None, Any] = {}
        try:
            for handler in handlers:
                if handler.target not in bodies:
                    bodies[handler.target] = self._read(incoming, handler)
        except SeveralMessages:
            bodies = {}
        # What is raised there comes without the error that led to it, which is nobody's failure.
        return [(handler, bodies[handler.target]) for handler in handlers] if bodies else self._calls_of_each(incoming)

    def _read(self, incoming: IncomingMessage, handler: Handler) -> Any:
        return deserialize(incoming.body, incoming.content_type, handler.target, self._names_for(handler), self._serializer)

    def _calls_of_each(self, incoming: IncomingMessage) -> list[tuple[Handler, Any]]:
        """All bodies are read before the first handler is called."""
        found: list[tuple[Handler, Any]] = []
        enclosed = incoming.message_types
        with limited_tries(len(incoming.body)):
            for element in messages_in(incoming.body):
                bodies: dict[type | None, Any] = {}
                types = types_of(element, enclosed)
                for handler in self._of_types(types, incoming):
                    if handler.target not in bodies:
                        bodies[handler.target] = deserialize_element(element, handler.target, self._names_for(handler))
                    found.append((bound_to(handler, types), bodies[handler.target]))
        return found

    def _names_for(self, handler: Handler) -> str:
        """How the members of its messages are spelled."""
        known = find_message_type(handler.message_type) if handler.target is not None else None
        return (known.names if known else None) or self._body_names
