"""`subscribe()` and `unsubscribe()`: for scripts, and for what the worker does not do by itself."""

from __future__ import annotations

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError, MessageTypeError, QueueNotFound
from sqlqueue_app.messages.types import message_type_name
from sqlqueue_app.sending.current import current_handling
from sqlqueue_app.sending.sender import sender_as
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.subscriptions import Subscription


def subscribe(event: type | str, *, endpoint: str | None = None) -> None:
    """Have events of a type, and of types derived from it, sent to the queue of an endpoint from now on.

    `event` is a class of a message type, or a type name; `endpoint` the one whose message is handled, else SEND_AS.
    Committed on return, whatever transaction is open (SQLite has one writer: there it joins an open one). Other processes that
    publish see it within 5 seconds. To subscribe again changes nothing.

    MessageTypeError for a class that is no message type, ConfigurationError without an endpoint, QueueNotFound if its queue, or the
    subscription table, does not exist.
    """
    topic, name = _topic(event), _endpoint(endpoint)
    chosen = sender_as(name)
    queue = queue_table(chosen.alias, chosen.dispatcher.book.of_queue(name))
    if not queue.exists():
        raise QueueNotFound(f"endpoint {name!r} cannot subscribe to {topic!r}: its queue {queue.qualified} does not exist")
    chosen.composer.subscribers.table.subscribe(Subscription(name, topic, chosen.composer.identity.reply_to or ""))


def unsubscribe(event: type | str, *, endpoint: str | None = None) -> bool:
    """End the subscription of an endpoint to a type; whether there was one. Arguments, transactions and errors as of `subscribe`.

    The queue need not exist. A worker of the endpoint that still handles the type subscribes again when it starts.
    """
    topic, name = _topic(event), _endpoint(endpoint)
    return sender_as(name).composer.subscribers.table.unsubscribe(name, topic)


def _topic(event: object) -> str:
    if not isinstance(event, str):
        return message_type_name(event)
    if not event.strip():
        raise MessageTypeError(f"the event type {event!r} is blank: expected a name such as 'Sales.OrderPlaced'")
    return event.strip()


def _endpoint(given: str | None) -> str:
    handled = current_handling()
    name = given or (handled.endpoint if handled is not None else get_settings().send_as)
    if name is None:
        raise ConfigurationError('nobody to subscribe: name the endpoint with endpoint=, or set SQLQUEUE["SEND_AS"]')
    return name
