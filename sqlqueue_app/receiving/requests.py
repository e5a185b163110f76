"""`request()`: send a message, and wait for the reply in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async
from django.db import connections

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import new_message_id
from sqlqueue_app.messages.errors import ConfigurationError, ReplyLost
from sqlqueue_app.messages.types import Body
from sqlqueue_app.policies.priorities import Priority
from sqlqueue_app.sending.composer import RequestOptions, SendOptions
from sqlqueue_app.sending.replies import Request, check_returns, in_event_loop, pending, read_reply
from sqlqueue_app.sending.sender import current_handling, sender_as

T = TypeVar("T")

# The headers that match a reply with its request.
_OURS = (names.REPLY_TO_ADDRESS, names.CORRELATION_ID, names.CALLBACK_QUEUE, names.MESSAGE_ID)


@overload
def request(message: str, body: Body = None, *, returns: None = None, **options: Unpack[RequestOptions]) -> Request[Any]: ...


@overload
def request(message: object, *, returns: None = None, **options: Unpack[RequestOptions]) -> Request[Any]: ...


@overload
def request(message: str, body: Body = None, *, returns: type[T], **options: Unpack[RequestOptions]) -> Request[T]: ...


@overload
def request(message: object, *, returns: type[T], **options: Unpack[RequestOptions]) -> Request[T]: ...


def request(
    message: object,
    body: object = None,
    *,
    to: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    time_to_be_received: timedelta | None = None,
    message_id: str | None = None,
    priority: Priority | None = None,
    returns: type | None = None,
) -> Request[Any]:
    """Send a message and return a future for the reply, which arrives in this process: `request(…).result(timeout=5)`.

    Sends as `send()` does, as the endpoint SEND_AS; the message is committed on return. `returns` is the type of the reply: int,
    an Enum of return codes, dict, or a class. Without it a return code becomes an int, an object its message type, else a dict.
    The first call leases a callback queue for the process and starts a thread that receives from it (see `close_callbacks`).

    In a coroutine use `await request(…)`: Django's thread for synchronous code writes the message right after the call, and the
    await raises its errors.

    Raises as `send()`, and ConfigurationError inside a transaction or a handler (the reply could not arrive before their end), if
    callbacks are disabled, or if no callback queue is free and none can be created. Nothing is sent then.
    """
    _refuse_in_handler()
    _refuse_headers(headers)
    check_returns(returns)
    kind = message if isinstance(message, str) else type(message).__qualname__
    chosen_id = message_id or new_message_id()
    waiting: Request[Any] = Request(pending, message_id=chosen_id, what=f"message {chosen_id!r} ({kind})")
    options = SendOptions(to, dict(headers or {}), time_to_be_received, message_id=chosen_id, priority=priority)
    send = partial(_send, waiting, message, body, options, returns)
    if in_event_loop():
        # Keep a reference: the event loop holds tasks weakly.
        waiting.sending = asyncio.ensure_future(_send_from_coroutine(waiting, send))
    else:
        send()
    return waiting


async def _send_from_coroutine(waiting: Request[Any], send: Callable[[], None]) -> None:
    try:
        await sync_to_async(send)()
    except BaseException as error:
        waiting.fail(error)
        if not isinstance(error, Exception):
            raise


def close_callbacks(timeout: float | None = None) -> None:
    """Stop the callback receivers that `request()` has started in this process and release their queues.

    Waits at most `timeout` seconds for their threads. Waiting requests end with ReplyLost; the next `request()` starts a new
    receiver. Runs automatically when the interpreter exits; call it where a process ends by `os._exit`, as those of
    multiprocessing do. Does nothing in a process without a request.
    """
    # Imported late: see `_send`.
    from sqlqueue_app.receiving.reply_listeners import close_listeners  # noqa: PLC0415

    close_listeners(timeout)


def _send(waiting: Request[Any], message: object, body: object, options: SendOptions, returns: type | None) -> None:
    """Compose and write the message; the request is registered before the reply can arrive."""
    # Imported at the first request: they need the models, and `request` is importable before Django is set up.
    from sqlqueue_app.receiving.reply_listeners import reply_listener, reply_listeners  # noqa: PLC0415

    _refuse_in_transaction()
    listener = reply_listener(get_settings().send_as)
    if listener.legacy_header:
        options = replace(options, headers={**(options.headers or {}), names.CALLBACK_QUEUE: listener.queue})
    composer = listener.composer
    outgoing = composer.compose(message, body, options)
    read = partial(read_reply, returns=returns, spelling=composer.spelling, serializer=composer.serializer)
    pending.add(waiting, listener.queue, read)
    try:
        if not reply_listeners.has(listener):
            raise ReplyLost(
                f"nothing was sent: this process has just lost the callback queue {listener.queue!r}; call request() again"
            )
        if waiting.done():
            return
        sender_as(get_settings().send_as).when_possible(partial(listener.dispatcher.dispatch, [outgoing]))
    except BaseException:
        pending.discard(waiting)
        raise
    listener.poll_soon()


def _refuse_in_handler() -> None:
    if (handled := current_handling()) is not None:
        raise ConfigurationError(
            f"request() was called in the handler of message {handled.incoming.message_id!r}: it would be sent only when the "
            "handler has ended, too late for the reply; call send() instead, and handle the reply as a message"
        )


def _refuse_headers(headers: Mapping[str, str | None] | None) -> None:
    names.check_custom_headers(headers)
    if taken := [name for name in _OURS if name in (headers or {})]:
        raise ConfigurationError(f"headers= of request() names {taken[0]!r}, which identifies the reply: leave it out")


def _refuse_in_transaction() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block and (connection.connection is None or connection.autocommit):
            continue
        what = f"request() was called inside a transaction on {connection.alias!r}: it would be sent only with the commit"
        if connection.settings_dict.get("ATOMIC_REQUESTS"):
            raise ConfigurationError(
                f"{what}; ATOMIC_REQUESTS opens a transaction for each view: decorate the view with "
                f"@transaction.non_atomic_requests(using={connection.alias!r})"
            )
        raise ConfigurationError(f"{what}; call it before or after the atomic() block, or use send()")
