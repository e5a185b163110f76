"""The second argument of a handler: `MessageContext`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Unpack, overload

from django.core.exceptions import SynchronousOnlyOperation
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage, SagaMessage, complete_headers
from sqlqueue_app.messages.errors import AddressError, MessageTypeError, Unrecoverable
from sqlqueue_app.messages.headers import Intent, check_custom_headers, whole_number
from sqlqueue_app.messages.times import as_delay
from sqlqueue_app.messages.types import Body
from sqlqueue_app.policies.priorities import Priority
from sqlqueue_app.receiving.destinations import AllowedDestinations
from sqlqueue_app.sending.composer import Composer, ContextOptions, Options, SendOptions
from sqlqueue_app.sending.replies import in_event_loop, return_code_headers, return_code_of
from sqlqueue_app.sending.sender import current_handling

if TYPE_CHECKING:
    from sqlqueue_app.receiving.handlers import Handler
    from sqlqueue_app.tables.two_phase import TwoPhaseParticipants


class MessageContext:
    """The message being handled and the ways to answer it. Valid while the handlers run, in their thread or their event loop.

    Outgoing messages are collected and written when all handlers have returned: in the receive transaction, so that they are sent
    if and only if it commits; in modes receive_only and none in their own transaction.
    """

    # A class attribute, which is free for the usual body with one message.
    current_types: list[str] | None = None
    """Set by the caller of the handlers, for one of several messages in one body."""
    participants: TwoPhaseParticipants | None = None
    """Set by the caller of the handlers: the other databases that share the receive transaction."""

    def __init__(
        self,
        incoming: IncomingMessage,
        *,
        attempt: int,
        composer: Composer,
        connection: BaseDatabaseWrapper | None,
        send_at_once: Callable[[Sequence[OutgoingMessage]], None],
        allowed: AllowedDestinations | None = None,
    ) -> None:
        self._incoming = incoming
        self._composer = composer
        self._send_at_once = send_at_once
        self._allowed = allowed
        self.outgoing: list[OutgoingMessage] = []
        """The messages that the handlers have sent so far, in order."""
        self.attempt = attempt
        """The number of this attempt, from 1."""
        self.called: Handler | None = None
        """Set by the caller of the handlers."""
        self.connection = connection
        """Django's connection of the receive transaction; None in mode none, where there is none."""

    @cached_property
    def headers(self) -> dict[str, str | None]:
        """A copy of the headers: changing it affects nothing else."""
        return dict(self._incoming.headers)

    @property
    def message_id(self) -> str:
        """The header NServiceBus.MessageId, or the row's id if there is none."""
        return self._incoming.message_id

    @property
    def handler(self) -> str:
        """The dotted path of the handler that is being called."""
        return self.called.path if self.called is not None else ""

    @property
    def message_types(self) -> list[str]:
        """The type names of the message, the concrete one first. If a body holds several messages, those of the current one."""
        return self._incoming.message_types if self.current_types is None else self.current_types

    @property
    def endpoint(self) -> str:
        """The endpoint that handles the message."""
        return self._composer.identity.endpoint or ""

    @overload
    def send(self, message: str, body: Body = None, *, to: str | None = None, **options: Unpack[ContextOptions]) -> str: ...

    @overload
    def send(self, message: object, *, to: str | None = None, **options: Unpack[ContextOptions]) -> str: ...

    def send(
        self,
        message: object,
        body: object = None,
        *,
        to: str | None = None,
        headers: Mapping[str, str | None] | None = None,
        time_to_be_received: timedelta | None = None,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        priority: Priority | None = None,
        immediate: bool = False,
    ) -> str:
        """Send by route, or to an address, when the receive transaction commits, and return the message id.

        `immediate` sends at once, in its own transaction, even if the handled message fails (on SQLite, which has one writer,
        right after the receive transaction ends). `delay`, `deliver_at` and `priority` work as in `send()`. Raises
        MessageTypeError for a type without a route, AddressError for a bad address, MessageBodyError for a bad body.
        """
        options = SendOptions(to, headers, time_to_be_received, as_delay(delay), deliver_at, priority=priority)
        return self._send(message, body, options, immediate=immediate)

    @overload
    def send_local(self, message: str, body: Body = None, **options: Unpack[ContextOptions]) -> str: ...

    @overload
    def send_local(self, message: object, **options: Unpack[ContextOptions]) -> str: ...

    def send_local(
        self,
        message: object,
        body: object = None,
        *,
        headers: Mapping[str, str | None] | None = None,
        time_to_be_received: timedelta | None = None,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        priority: Priority | None = None,
        immediate: bool = False,
    ) -> str:
        """Send as `send`, but to the queue of the handling endpoint, regardless of routes."""
        to = self._composer.identity.reply_to
        options = SendOptions(to, headers, time_to_be_received, as_delay(delay), deliver_at, priority=priority)
        return self._send(message, body, options, immediate=immediate)

    def _send(self, message: object, body: object, options: SendOptions, *, immediate: bool) -> str:
        outgoing = self._composer.compose(message, body, options, incoming=self._incoming)
        if immediate:
            self._send_at_once([outgoing])
        else:
            self.outgoing.append(outgoing)
        return outgoing.message_id or ""

    @overload
    def publish(self, message: str, body: Body = None, *, immediate: bool = False, **options: Unpack[Options]) -> str: ...

    @overload
    def publish(self, message: object, *, immediate: bool = False, **options: Unpack[Options]) -> str: ...

    def publish(
        self,
        message: object,
        body: object = None,
        *,
        headers: Mapping[str, str | None] | None = None,
        time_to_be_received: timedelta | None = None,
        immediate: bool = False,
    ) -> str:
        """Send an event, as `send` does, to all subscribers of its type or of one of its parents, and return the message id.

        Sends nothing without subscribers. Raises QueueNotFound if there is no subscription table, AddressError if a row of it
        holds no address, MessageTypeError for an unknown type, MessageBodyError for a bad body, SynchronousOnlyOperation in a
        coroutine.
        """
        if in_event_loop():
            # Always, not only where the subscriptions are not cached.
            raise SynchronousOnlyOperation(
                "context.publish() reads the subscriptions from the database: in a coroutine, await apublish()"
            )
        options = SendOptions(headers=headers, time_to_be_received=time_to_be_received)
        message_id, copies = self._composer.compose_event(message, body, options, incoming=self._incoming)
        if not immediate:
            self.outgoing.extend(copies)
        elif copies:
            self._send_at_once(copies)
        return message_id

    @overload
    def reply(self, message: str, body: Body = None, *, headers: Mapping[str, str | None] | None = None) -> str: ...

    @overload
    def reply(self, message: object, *, headers: Mapping[str, str | None] | None = None) -> str: ...

    def reply(self, message: object, body: object = None, *, headers: Mapping[str, str | None] | None = None) -> str:
        """Reply to the message's reply-to address, with its priority if that endpoint has PRIORITIES, and return the message id.

        The reply is a message, or an int or an Enum of ints for a requester that expects a return code. Raises MessageTypeError
        if the message names no reply-to address; ConfigurationError if ALLOWED_DESTINATIONS forbids it; WireFormatError for a
        return code above 32 bits. If the queue does not exist, the handled message fails when its handlers are done.
        """
        address = self._composer.reply_address(self._incoming)
        if not address:
            raise MessageTypeError(
                f"message {self.message_id!r} has no reply-to address: its sender does not wait for a reply "
                "(it is not an endpoint and has no SEND_AS)"
            )
        if names.ORIGINATING_SAGA_ID in self._incoming.headers:
            check_custom_headers(headers)
            headers = {**_saga_asking(self._incoming), **(headers or {})}
        return reply_at(self, address, message, body, headers)

    def forward(self, to: str) -> None:
        """Forward the message, with the same id, headers and body, to the queue of an address.

        It keeps its priority if that endpoint has PRIORITIES. Values that only the columns of its row held go into the headers.
        A header counts the forwards: Unrecoverable after 50.
        """
        destination = self._composer.destination(to)
        if self._composer.priorities:
            destination = self._composer.priorities.kept(destination, self._incoming.headers.get(names.PRIORITY))
        forwards = whole_number(self._incoming.headers.get(names.FORWARDS))
        if forwards >= names.MAX_FORWARDS:
            raise Unrecoverable(
                f"message {self.message_id!r} was forwarded {forwards} times, now to {to!r}: it is forwarded in a circle; "
                "check the handlers that call context.forward()"
            )
        incoming = self._incoming
        complete = complete_headers(
            incoming.headers,
            message_id=incoming.message_id,
            correlation_id=incoming.correlation_id,
            reply_to=incoming.reply_address,
        )
        # The body is written to a file of its own if it needs one there.
        complete.pop(names.CLAIM_CHECK, None)
        self.outgoing.append(OutgoingMessage(destination, complete | {names.FORWARDS: str(forwards + 1)}, incoming.body))


# For sagas; handlers use the methods.


def incoming_of(context: MessageContext) -> IncomingMessage:
    """The message as it was received."""
    return context._incoming


def originator_of(context: MessageContext) -> str:
    """The address to which `reply` would send, for a later `reply_at`; empty if there is none, as written if it is not valid."""
    try:
        return context._composer.reply_address(context._incoming) or ""
    except AddressError:
        return context._incoming.reply_to or ""


def reply_at(context: MessageContext, address: str, message: object, body: object, headers: Mapping[str, str | None] | None) -> str:
    """Reply to an address; otherwise as `reply`."""
    code = return_code_of(message, body)
    if context._allowed is not None:
        context._allowed.check(context._composer.destination(address), message_id=context.message_id, what="a reply")
    if code is not None:
        code_headers = return_code_headers(code, headers)
        outgoing = context._composer.control(address, code_headers, incoming=context._incoming, intent=Intent.REPLY)
    else:
        priority = context._composer.priority_of_reply(address, context._incoming)
        options = SendOptions(to=address, headers=headers, priority=priority)
        outgoing = context._composer.compose(message, body, options, incoming=context._incoming, intent=Intent.REPLY)
    context.outgoing.append(outgoing)
    return outgoing.message_id or ""


@contextmanager
def in_saga(context: MessageContext, saga_id: str, saga_type: str) -> Iterator[None]:
    """Name a saga in the headers of all messages that are sent in the block, by its context or by `send()`."""
    plain, handled = context._incoming, current_handling()
    context._incoming = SagaMessage(plain, saga_id=saga_id, saga_type=saga_type)
    if handled is not None:
        handled.incoming = context._incoming
    try:
        yield
    finally:
        context._incoming = plain
        if handled is not None:
            handled.incoming = plain


def _saga_asking(incoming: IncomingMessage) -> dict[str, str | None]:
    """The headers by which a reply finds the saga that sent the message."""
    header = incoming.headers.get
    found = {names.SAGA_ID: header(names.ORIGINATING_SAGA_ID), names.SAGA_TYPE: header(names.ORIGINATING_SAGA_TYPE)}
    return {name: value for name, value in found.items() if value}
